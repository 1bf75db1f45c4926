"""Three models of the bench of record at sizes that an emulator can run: `python -m bench.targets_models FOLDER`.

To be run in the environment of `bench/real`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from bench.real.architectures import MODELS, SEED, noise, tokens
from bench.real.export import export, say

SMALL_PIXELS = 96
SMALL_TOKENS = 96
VOCABULARY = 50368  # of ModernBERT
SMALL: dict[str, Callable[[], tuple[torch.Tensor, ...]]] = {
    "yolov8s": lambda: (noise(1, 3, SMALL_PIXELS, SMALL_PIXELS),),
    "u2net": lambda: (noise(1, 3, SMALL_PIXELS, SMALL_PIXELS),),
    "modernbert": lambda: (tokens(VOCABULARY, 1, SMALL_TOKENS),),
}


def main() -> None:
    """Write those that are missing."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, arguments in SMALL.items():
        path = folder / f"{name}-small.onnx"
        if not path.exists():
            say(f"making {path}")
            torch.manual_seed(SEED)
            draft = path.with_suffix(".part")
            export(replace(MODELS[name](), arguments=arguments()), draft)
            draft.rename(path)


if __name__ == "__main__":
    main()
