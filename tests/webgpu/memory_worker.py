"""Run in a process with the counting layer; prints what it counted as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from bench.webgpu_measure import counted_runs
from remat_cli.runtime.providers import parse_device, place_of, placed_value, require_device
from tests.webgpu.vulkan_layer import Counters


def held_for(sizes: list[int]) -> list[int]:
    """Sizes of the buffers that values of so many bytes on the device take."""
    device = parse_device("webgpu:0")
    require_device(device)
    counters = Counters.of_process()
    values = [placed_value(np.zeros(size // 4, np.float32), place_of(device)) for size in sizes]
    found = counters.sizes("storage")
    values.clear()
    return found


def main() -> None:
    """`plan PLAN FEEDS`, or `values BYTES ...`."""
    mode, *words = sys.argv[1:]
    found = (
        counted_runs(Path(words[0]), Path(words[1])) if mode == "plan" else {"sizes": held_for(list(map(int, words)))}
    )
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
