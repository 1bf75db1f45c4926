"""Resident memory and time of a model in this process: `python -m bench.real.resident MODEL FEEDS THREADS PATTERN`.

Prints one JSON object. Nothing but numpy and ONNX Runtime is loaded, as in a small service. The inputs are there
before anything is measured; outputs of a run are held until the next one has ended, as in `out = session.run(...)`.
Linux only: the system's peak of a process can be begun anew there.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

LEAST_RUNS = 3
LEAST_SECONDS, MOST_RUNS = 2.0, 30  # short runs are repeated, since their times are noisy


def measure(model: str, feeds: dict[str, Any], threads: int, has_pattern: bool) -> dict[str, Any]:
    """Bytes: `load_peak` above the imported runtime, `loaded` what stays of it, `run_1` and `run_3` above that.

    `run_1` is the peak until the first run has ended, `run_3` until the third has.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.enable_mem_pattern = has_pattern
    imported = _status("VmRSS")
    _forget_peak()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    loaded, load_peak = _status("VmRSS"), _status("VmHWM")
    _forget_peak()
    times, peaks = _run(session, feeds)
    return {
        "load_peak": load_peak - imported,
        "loaded": loaded - imported,
        "run_1": peaks[0] - loaded,
        "run_3": max(peaks) - loaded,
        "best_run_ns": min(times),
        "runs": len(times),
        "has_pattern": has_pattern,
    }


def _run(session: Any, feeds: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Times of all runs, and the peaks so far after each of the first ones."""
    times: list[int] = []
    peaks: list[int] = []
    while len(times) < LEAST_RUNS or (sum(times) < LEAST_SECONDS * 1e9 and len(times) < MOST_RUNS):
        started = time.perf_counter_ns()
        held = session.run(None, feeds)
        times.append(time.perf_counter_ns() - started)
        if len(peaks) < LEAST_RUNS:
            peaks.append(_status("VmHWM"))
    del held
    return times, peaks


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    _, path, data, count, pattern = sys.argv
    with np.load(data) as arrays:
        given = {name: arrays[name] for name in arrays.files}
    sys.stdout.write(json.dumps(measure(path, given, int(count), pattern == "on")) + "\n")
