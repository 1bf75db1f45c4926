"""Run a model and files that were compiled from it, where this Python runs, and say how they compare.

It needs numpy and onnxruntime only, of any version, as it runs under emulators and in environments of old releases:

    python targets_probe.py FEEDS.npz ORIGINAL.onnx OUTPUTS.npz COMPILED.onnx ...

Outputs of the original are kept in OUTPUTS.npz, and taken from there where that file exists. One line of JSON tells of
the original and of each file: what happened, where, and by how much outputs differ.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

LONGEST_MESSAGE = 2000


def main() -> None:
    """Print what happened to each file."""
    feeds_path, original, kept, *compiled = map(Path, sys.argv[1:])
    with np.load(feeds_path) as stored:
        feeds = dict(stored)
    if kept.exists():
        with np.load(kept) as stored:
            wanted = [stored[f"arr_{at}"] for at in range(len(stored.files))]
        first: dict[str, Any] = {"stage": "done"}
    else:
        first, wanted = ran(original, feeds)
        if first["stage"] == "done":
            np.savez(kept, *wanted)
    found = [compared(path, feeds, wanted) for path in compiled]
    sys.stdout.write(json.dumps({"runtime": ort.__version__, "original": first, "files": found}) + "\n")


def ran(path: Path, feeds: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """How far a file came in an ordinary session (`load`, `run`, `done`), and its outputs."""
    options, stage = ort.SessionOptions(), "load"
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # threads that wait cost emulators most
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        stage = "run"
        return {"stage": "done"}, session.run(None, feeds)
    except Exception as error:  # whatever the runtime raises is what is asked for
        return {"stage": stage, "message": str(error)[:LONGEST_MESSAGE]}, []


def compared(path: Path, feeds: dict[str, Any], wanted: list[Any]) -> dict[str, Any]:
    """The same, with whether outputs are the original's, bit for bit, and the largest difference."""
    found, outputs = ran(path, feeds)
    if found["stage"] == "done" and wanted:
        pairs = list(zip(wanted, outputs, strict=True))
        found["has_same_bits"] = all(have_same_bits(*pair) for pair in pairs)
        found["difference"] = max(map(difference, *zip(*pairs, strict=True)), default=0.0)
    return found


def have_same_bits(one: Any, other: Any) -> bool:
    """Whether two arrays are equal in type, shape and every byte."""
    return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())


def difference(one: Any, other: Any) -> float:
    """The largest difference, relative to the largest magnitude; infinite where shapes or numbers do not compare."""
    if one.shape != other.shape:
        return float("inf")
    if one.size == 0:
        return 0.0
    ours, theirs = one.astype(np.float64), other.astype(np.float64)
    apart = float(np.max(np.abs(ours - theirs)))
    return apart / max(float(np.max(np.abs(ours))), 1e-30) if np.isfinite(apart) else float("inf")


if __name__ == "__main__":
    main()
