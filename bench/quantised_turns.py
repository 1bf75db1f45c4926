"""A conversation in one fresh process: a language model whose caches are fed back, and what the process holds.

`python -m bench.quantised_turns MODEL WAY TURNS` (tokens of each turn, in JSON) prints one JSON line: bytes above a
process with a tiny session after loading and at most in each turn, and a hash of all scores. Ways: `arrays`, outputs of
`run` are inputs of the next; `bound`, as values of an IOBinding that is cleared after each turn; `values`, by
`run_with_ort_values`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import numpy as np
import onnxruntime as ort

from bench.loading_measure import TINY, reset, session, status

WORDS = 2048  # of the vocabulary, at least
PAST = "past_key_values."


def caches_at_first(loaded: Any) -> dict[str, np.ndarray]:
    """Empty ones, of the model's heads."""
    read = [each for each in loaded.get_inputs() if each.name.startswith(PAST)]
    return {
        each.name: np.zeros([length if isinstance(length, int) else 0 for length in each.shape], np.float32)
        for each in read
    }


def turn(loaded: Any, way: str, feeds: dict[str, np.ndarray], caches: dict[str, Any]) -> tuple[bytes, list[Any]]:
    """Scores of one turn, and the caches that it makes."""
    if way == "arrays":
        made = loaded.run(None, {**feeds, **caches})
        return made[0].tobytes(), made[1:]
    values = {name: ort.OrtValue.ortvalue_from_numpy(value) for name, value in feeds.items()}
    values |= {
        name: ort.OrtValue.ortvalue_from_numpy(value) if isinstance(value, np.ndarray) else value
        for name, value in caches.items()
    }
    names = [each.name for each in loaded.get_outputs()]
    if way == "values":
        made = loaded.run_with_ort_values(names, values)
        return made[0].numpy().tobytes(), made[1:]
    binding = loaded.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for name in names:
        binding.bind_output(name)
    loaded.run_with_iobinding(binding)
    made = binding.get_outputs()
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()
    return made[0].numpy().tobytes(), made[1:]


def main(model: str, way: str, turns: list[int]) -> None:
    """Load, and go through all turns."""
    tiny, dice, scores = session(TINY), np.random.default_rng(0), hashlib.sha256()
    tiny.run(None, {"x": np.ones(1, np.float32)})
    words = [dice.integers(0, WORDS, (1, count)) for count in turns]
    np.ones(1).tobytes()
    reset()
    before = status()["VmRSS"]
    loaded = session(model)
    loaded_bytes, peaks, past = status()["VmRSS"] - before, [], 0
    caches: dict[str, Any] = caches_at_first(loaded)
    for count, tokens in zip(turns, words, strict=True):
        mask = np.ones((1, past + count), np.int64)
        reset()
        found, made = turn(loaded, way, {"input_ids": tokens, "attention_mask": mask}, caches)
        peaks.append(status()["VmHWM"] - before)
        scores.update(found)
        caches, past = dict(zip(caches, made, strict=True)), past + count
        del made
    print(json.dumps({"loaded": loaded_bytes, "turns": peaks, "scores": scores.hexdigest()}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
