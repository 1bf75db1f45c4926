"""Run a model and files that were compiled from it, where this Python runs, and say how they compare.

It needs numpy and onnxruntime only, of any version, as it runs under emulators and in environments of old releases:

    python targets_probe.py FEEDS.npz ORIGINAL.onnx OUTPUTS.npz COMPILED.onnx ...

The original runs only where a file gave outputs to compare with; its own are kept in OUTPUTS.npz, and taken from there
where that file exists. One line of JSON tells of each: what happened, where, and by how much outputs differ.
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
    tried = [ran(path, feeds) for path in compiled]
    first: dict[str, Any] | None = None
    wanted: list[Any] = []
    if any(found["stage"] == "done" for found, _ in tried):
        first, wanted = original_outputs(original, feeds, kept)
    found = [compared(found, outputs, wanted) for found, outputs in tried]
    sys.stdout.write(json.dumps({"runtime": ort.__version__, "original": first, "files": found}) + "\n")


def original_outputs(path: Path, feeds: dict[str, Any], kept: Path) -> tuple[dict[str, Any], list[Any]]:
    """How far the original came, and its outputs, of an earlier run if there was one."""
    if kept.exists():
        with np.load(kept) as stored:
            return {"stage": "done"}, [stored[f"arr_{at}"] for at in range(len(stored.files))]
    first, outputs = ran(path, feeds)
    if first["stage"] == "done":
        np.savez(kept, *outputs)
    return first, outputs


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


def compared(found: dict[str, Any], outputs: list[Any], wanted: list[Any]) -> dict[str, Any]:
    """The same, with whether outputs are the original's, bit for bit, and the largest difference."""
    if found["stage"] != "done" or not wanted:
        return found
    pairs = list(zip(wanted, outputs, strict=True))
    return {
        **found,
        "has_same_bits": all(have_same_bits(*pair) for pair in pairs),
        "difference": max((difference(*pair) for pair in pairs), default=0.0),
    }


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
