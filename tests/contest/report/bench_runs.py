"""Runs of a bench, made up for tests."""

from __future__ import annotations

from typing import Any

from remat_cli.contest.report.bench_run import BenchRun


def bench_run(**changes: Any) -> BenchRun:
    """A run of `auto` on `net` at 0.9 that reached 2 % after 0.5 s; changes win."""
    values: dict[str, Any] = {
        "suite": "small",
        "instance": "net",
        "instance_path": "net.json",
        "instance_sha256": "0" * 16,
        "budget": "0.9",
        "order": "free",
        "solver": "auto",
        "label": "auto",
        "seed": 0,
        "threads": 1,
        "time_limit_seconds": 2.0,
        "status": "feasible",
        "ops": 9,
        "baseline_peak_bytes": 100,
        "floor_bytes": 40,
        "time": 102,
        "overhead_percent": 2.0,
        "lower_bound_percent": 1.0,
        "gap_percent": 1.0,
        "recomputed_ops": 1,
        "seconds": 2.0,
        "cpu_seconds": 1.5,
        "seconds_to_first": 0.1,
        "seconds_to_best": 0.5,
        "trace": ((0.1, 5.0, None), (0.3, 5.0, 1.0), (0.5, 2.0, 1.0)),
        "peak_rss_mib": 150.0,
        "versions": {"remat": "0.1.0"},
    }
    return BenchRun(**(values | changes))


def without_plan(**changes: Any) -> BenchRun:
    """A run that found nothing."""
    nothing = dict.fromkeys(
        ("time", "overhead_percent", "gap_percent", "recomputed_ops", "seconds_to_first", "seconds_to_best")
    )
    return bench_run(**({"status": "not_found", "trace": ((0.3, None, 1.0),)} | nothing | changes))
