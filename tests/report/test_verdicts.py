"""How a search ended, and what is said of it: only a proof is told as one, and in the space that it holds in."""

from __future__ import annotations

import msgspec
import pytest

from remat_cli.core.schedule.solver_run import ProvedFloor, SolverRun, Status, cut_short
from remat_cli.core.values.promises import Asked
from remat_cli.report import render_text
from remat_cli.report.solution import CHEAPEST_PERCENT, MOST_PERCENT, SolutionReport
from remat_cli.report.style import Style
from tests.report import device_samples, samples

PROOFS = ("impossible", "proved: none", "proved least", "proved optimal", "cannot help", "needs these at once")


def no_plan(status, **changes) -> SolutionReport:
    return msgspec.structs.replace(samples.no_solution(status), seconds=38.2, **changes)


def plan(**changes) -> SolutionReport:
    return msgspec.structs.replace(samples.solution(), **changes)


def text_of(solution: SolutionReport, **changes) -> str:
    report = samples.compile_report() if solution.time is not None else samples.impossible_report()
    report = msgspec.structs.replace(report, solution=solution, verification=None, **changes)
    if solution.interrupted or CHEAPEST_PERCENT in solution.facts:
        report = msgspec.structs.replace(report, blocking_op=None)  # as `stages.tell` leaves it out
    return render_text(report, Style(200))


DEAR = {CHEAPEST_PERCENT: 90.2, MOST_PERCENT: 10.0}
SPLITS = samples.split_report().regions
FLOOR, BUDGET = samples.no_solution("infeasible").floor_bytes, samples.no_solution("infeasible").budget_bytes

ENDS = {
    "whole ops proved too large": (no_plan("infeasible"), {}, 3, ("impossible: no schedule of whole ops needs less",)),
    "whole ops proved impossible without a floor": (
        no_plan("infeasible", floor_bytes=BUDGET - 1),
        {},
        3,
        ("impossible: no schedule of whole ops stays within the budget",),
    ),
    "whole ops too large, and the splits tried": (
        no_plan("not_found", floor_with_splitting_bytes=BUDGET + 7),
        {"split_obstacle": "op 'x' is large"},
        4,
        ("within budget was found in 38.2 s", "for whole ops, ", "with the best splits found", "a larger --budget"),
    ),
    "time is up": (
        no_plan("not_found", floor_bytes=BUDGET - 1),
        {"asked": Asked(time_limit_seconds=30.0, search_was_cut=True)},
        4,
        (
            "within budget was found in 38.2 s",
            "was cut after 30 s (--time-limit)",
            "for whole ops: try a longer --time-limit",
        ),
    ),
    "the solver goes through its list": (
        no_plan("not_found", facts={"least_peak_bytes": 2**30}),
        {},
        4,
        ("the smallest of the plans that", "try another --solver"),
    ),
    "interrupted without a plan": (no_plan("not_found", interrupted=True), {}, 130, ("interrupted after 38.2 s",)),
    "interrupted with one": (plan(interrupted=True), {}, 130, (", interrupted, seed",)),
    "too slow": (
        no_plan("not_found", facts=DEAR),
        {},
        4,
        ("costs at most +10.00 % time: the cheapest found costs +90.20 %",),
    ),
    "proved with splits": (
        plan(status="optimal"),
        {"regions": SPLITS},
        0,
        ("proved optimal (among all orders of ops, with these splits)",),
    ),
    "the least budget": (
        plan(status="optimal"),
        {"budget": "min"},
        0,
        ("proved optimal (among all orders of ops, for this peak)",),
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_is_said_is_what_is_known(end):
    solution, changes, code, told = ENDS[end]
    text = text_of(solution, **changes)
    assert solution.exit_code == code
    assert all(part in text for part in told), text


@pytest.mark.parametrize("end", ["interrupted without a plan", "too slow"])
def test_without_a_proof_none_is_claimed(end):
    solution, changes, _, _ = ENDS[end]
    for text in (text_of(solution, **changes), device_text(solution)):
        assert not [proof for proof in PROOFS if proof in text], text


def device_text(solution: SolutionReport) -> str:
    report = device_samples.no_plan("not_found")
    return render_text(msgspec.structs.replace(report, solution=solution), Style(200))


FIRST = {
    "whole ops proved too large": "does not fit: proved impossible within",
    "time is up": "does not fit: no plan was found within",
    "interrupted without a plan": "not known: interrupted before a plan was found within",
    "too slow": "does not fit: no plan was found within",
}


@pytest.mark.parametrize("end", FIRST)
def test_the_first_line_says_no_more(end):
    solution, changes, _, _ = ENDS[end]
    first = text_of(solution, **changes).splitlines()[0]
    assert first.startswith(FIRST[end])
    assert ("so little time as asked for" in first) == (end == "too slow")
    assert first.endswith(": the search was cut after 30 s (--time-limit)") == (end == "time is up")


@pytest.mark.parametrize("end", ["interrupted without a plan", "too slow"])
def test_plans_for_devices_say_the_same(end):
    solution, _, _, told = ENDS[end]
    assert told[0] in device_text(solution)


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("status", Status)
def test_an_interrupted_run_proves_nothing_of_what_was_not_searched(status, is_split):
    found = samples.plan() if status in (Status.OPTIMAL, Status.FEASIBLE) else None
    run = SolverRun(
        solver="auto",
        seed=0,
        status=status,
        space="free",
        floor=ProvedFloor(1),
        seconds=1.0,
        plan=found,
        bound_ns=7,
    )
    told = cut_short(run, is_split=is_split)
    assert told.interrupted
    assert told.status is (Status.NOT_FOUND if found is None else Status.FEASIBLE)
    assert told.bound_ns == (None if is_split else 7)


def test_wrong_outputs_are_told_even_where_the_search_was_interrupted():
    report = samples.failed_report()
    report = msgspec.structs.replace(report, solution=msgspec.structs.replace(report.solution, interrupted=True))
    assert report.exit_code == 5
