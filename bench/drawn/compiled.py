"""A model with open sizes, compiled in a process of its own; then it and the original run at many sizes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnxruntime as ort

from bench.compiling import Row, run_compiler
from bench.drawn.drawn import Drawn
from remat_cli.core.values.promises import is_kept
from remat_cli.runtime.sessions._ort import pack_all
from remat_cli.runtime.sessions.feeds import GivenFeeds
from remat_cli.runtime.sessions.session import SessionSettings
from remat_cli.runtime.verify.family import see_at_sizes
from remat_cli.runtime.verify.likeness import are_same_bits


def compiled(path: Path, flags: Sequence[str], output: Path, cache: Path) -> Row:
    """What `remat compile` says."""
    started = time.monotonic()
    exit_code, report, said = run_compiler(path, flags, output, cache)
    solution, seen = report.get("solution") or {}, report.get("verification") or {}
    broken = [each["measure"] for each in report.get("promises") or () if each["kept"] is False]
    failures = report["verdict"] if broken else ""
    cut = "the search was cut" if (report.get("asked") or {}).get("search_was_cut") else ""
    live = next((each["promised"] for each in report.get("promises") or () if each["measure"] == "live"), None)
    return {
        "exit_code": exit_code,
        "seconds": round(time.monotonic() - started, 1),
        "search_seconds": solution.get("seconds"),
        "original_bytes": solution.get("baseline_peak_bytes"),
        "promised_bytes": (seen.get("family") or {}).get("promised_bytes") or live,
        "overhead_percent": seen.get("measured_overhead_percent"),
        "reason": failures
        or ("" if exit_code == 0 else report.get("split_obstacle") or cut or said[:500] or report.get("verdict", "")),
        "said": said[:500],
        "broken": broken,
    }


def run_both(
    path: Path,
    made: Path,
    drawn: Drawn,
    turns: Sequence[Mapping[str, int]],
    promised_bytes: int,
    *,
    exact: bool = False,
) -> Row:
    """Bits in default sessions at sizes in turn, and peaks in one of `exact` or default options."""
    feeds = [drawn.feeds_at(sizes, at) for at, sizes in enumerate(turns)]
    options = ort.SessionOptions()
    options.log_severity_level = 4
    before, after = (ort.InferenceSession(str(each), options) for each in (path, made))
    wrong = []
    for sizes, fed in zip(turns, feeds, strict=True):
        pairs = zip(before.run(None, fed), after.run(None, fed), strict=True)
        if not all(are_same_bits(one, other) for one, other in pairs):
            wrong.append(told(sizes))
    given = [GivenFeeds(pack_all(each)) for each in feeds]
    peaks = see_at_sizes(made, given, SessionSettings(exact=exact)).peak_bytes
    above = [
        f"{told(sizes)} ({peak:,} of {promised_bytes:,} bytes)"
        for sizes, peak in zip(turns, peaks, strict=True)
        if not is_kept("runs_at_sizes", promised_bytes, peak)
    ]
    return {"wrong_bits": wrong, "above_promise": above}


def told(sizes: Mapping[str, int]) -> str:
    """Sizes as they are typed."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
