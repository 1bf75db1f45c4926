"""Run two models on the same inputs in one Python, which needs numpy and ONNX Runtime only, and compare the outputs.

`PYTHON bench/opsets_run.py ORIGINAL FILE FEEDS.npz` prints one line of JSON. It is given to other versions of the
runtime, so it imports nothing of the project.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import onnxruntime as ort

SILENT = 4
LONGEST = 120  # characters of a refusal


def outputs_of(path: str, feeds: dict[str, Any]) -> tuple[list[Any] | None, str]:
    """What a model gives in an ordinary session, or why it does not run."""
    options = ort.SessionOptions()
    options.log_severity_level = SILENT
    try:
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, feeds), ""
    except Exception as error:  # each version has kinds of its own
        line = str(error).splitlines()[0]
        return None, (line.partition("failed:")[2] or line)[:LONGEST]


def compared(original: str, file: str, feeds: dict[str, Any]) -> dict[str, Any]:
    """How far apart the outputs are: at most, and beside the largest number of the original."""
    ours, original_error = outputs_of(original, feeds)
    theirs, file_error = outputs_of(file, feeds)
    found: dict[str, Any] = {"runtime": ort.__version__, "original_error": original_error, "file_error": file_error}
    if ours is None or theirs is None:
        return found
    pairs = list(zip(map(np.asarray, ours), map(np.asarray, theirs), strict=True))
    difference = max(float(np.abs(np.subtract(*pair, dtype=np.float64)).max(initial=0)) for pair in pairs)
    largest = max(float(np.abs(one.astype(np.float64)).max(initial=0)) for one, _ in pairs)
    same = all(one.tobytes() == other.tobytes() for one, other in pairs)
    return {**found, "same_bits": same, "difference": difference, "relative": difference / (largest or 1)}


if __name__ == "__main__":
    with np.load(sys.argv[3]) as archive:
        arrays = {name: archive[name] for name in archive.files}
    sys.stdout.write(json.dumps(compared(sys.argv[1], sys.argv[2], arrays)) + "\n")
