"""A small comparison with figures that are easy to recognise."""

from __future__ import annotations

import msgspec

from remat_cli.contest.report.compare_report import ComparedBudget, CompareReport, CompareRun, NotApplicable

MIB = 2**20
BUDGETS = (ComparedBudget("90%", 90 * MIB), ComparedBudget("0.5", 50 * MIB), ComparedBudget("10MiB", 10 * MIB))


def run(solver: str, place: int, time: int | None, **changes) -> CompareRun:
    """What a solver reached at one of BUDGETS, with a baseline time of 1000."""
    budget = BUDGETS[place]
    overhead = None if time is None else (time - 1000) / 10
    values = {
        "solver": solver,
        "status": "not_found" if time is None else "feasible",
        "space": "free",
        "budget": budget.text,
        "budget_bytes": budget.bytes,
        "fixed_bytes": 2 * MIB,
        "floor_bytes": 20 * MIB,
        "baseline_peak_bytes": 100 * MIB,
        "peak_bytes": None if time is None else budget.bytes - MIB,
        "baseline_time": 1000,
        "time": time,
        "overhead_percent": overhead,
        "lower_bound_percent": None,
        "gap_percent": None,
        "recomputed_ops": None if time is None else 2,
        "seconds": 1.5,
        "seconds_to_best": None if time is None else 0.5,
        "seed": 3,
    }
    return CompareRun(**(values | changes))


RUNS = (
    run("keep-all", 0, None),
    run("moccasin", 0, 1010),
    run("auto", 0, 1010, lower_bound_percent=0.4, gap_percent=0.6),
    run("rotor", 0, 1300),
    run("checkmate", 0, 1020, status="optimal", space="staged", lower_bound_percent=2.0, gap_percent=0.0),
    run("keep-all", 1, None),
    run("moccasin", 1, None, space="free_c2", lower_bound_percent=9.0),
    run("auto", 1, 1080, lower_bound_percent=0.2, gap_percent=7.8),
    run("rotor", 1, 1400),
    run("checkmate", 1, None, status="infeasible", space="staged"),
    *(
        run(name, 2, None, status="infeasible", seconds=0.0)
        for name in ("keep-all", "moccasin", "auto", "rotor", "checkmate")
    ),
)


def compare_report(**changes) -> CompareReport:
    """Five solvers at three budgets, the last of which is below the floor."""
    report = CompareReport(
        model="nets/unet.train.onnx",
        device="cpu",
        ops=59,
        order="free",
        budgets=BUDGETS,
        time_limit_seconds=5.0,
        threads=2,
        run_threads=1,
        seed=3,
        baseline_peak_bytes=100 * MIB,
        baseline_time=1000,
        fixed_bytes=2 * MIB,
        floor_bytes=20 * MIB,
        runs=RUNS,
        not_applicable=(NotApplicable("multi-chain", "op conv_7 has two readers in the forward part"),),
        seconds=31.4,
    )
    return msgspec.structs.replace(report, **changes)
