"""What is said where no plan was found: in the terms of the budget that was missed, with all that was asked for."""

import msgspec
import pytest

from remat_cli.core.values.promises import Asked, ProcessTerm
from remat_cli.report import render_json, render_text
from remat_cli.report.solution import NEAREST_PROCESS, NEAREST_TERMS
from remat_cli.report.style import Style
from tests.report import samples

MIB = samples.MIB
ROOMY = 40 * MIB  # above all that is live: only the process is too large


def refused(asked, **changes):
    solution = msgspec.structs.replace(samples.no_solution("not_found"), budget_bytes=ROOMY, **changes)
    return msgspec.structs.replace(samples.impossible_report(), solution=solution, asked=asked, budget="40MiB")


def test_figures_below_a_process_budget_are_told_as_live_tensors_beside_those_of_the_process():
    asked = Asked(process_budget_bytes=ROOMY, process_bytes=70 * MIB)
    report = refused(asked, facts={NEAREST_PROCESS: 45 * MIB})
    text = render_text(report, Style(200))
    assert "budget 40MiB = 41,943,040 bytes (40.00 MiB) of the process" in text
    assert "of the plans found the smallest needs 47,185,920 bytes (45.00 MiB) of the process by prediction" in text
    assert "(45.00 MiB) of the process by prediction, 5.00 MiB more than the budget" in text
    assert "for that plan give the same command --budget 45MiB" in text
    assert "the proved least" not in text  # of live tensors, which are not what is too large
    large = refused(asked, facts={NEAREST_PROCESS: 45 * MIB}, floor_bytes=ROOMY + 1)
    assert "for whole ops, of live tensors alone: try" in render_text(large, Style(200))
    assert "the process of the model needs 73,400,320 bytes (70.00 MiB) by prediction, with " in text
    unknown = render_text(refused(msgspec.structs.replace(asked, process_bytes=None)), Style(200))
    assert "of live tensors, and its process more" in unknown


def test_a_budget_of_live_bytes_says_nothing_of_a_process():
    text = render_text(refused(Asked()), Style(200))
    assert "process" not in text
    assert "live tensors" not in text


@pytest.mark.parametrize("is_short", [True, False])
def test_more_time_is_advised_only_where_it_ran_short(is_short):
    asked = Asked(time_limit_seconds=6.0, search_was_cut=is_short)
    text = render_text(refused(asked, seconds=80.0, floor_bytes=ROOMY - 1), Style(200))
    assert ("the search was cut after 6 s (--time-limit)" in text) is is_short
    assert ("try a longer --time-limit or " in text) is is_short
    assert "a larger --budget" in text


@pytest.mark.parametrize(("seconds", "told"), [(22.84, ", beside 22.8 s of runs of the model"), (0.4, "")])
def test_runs_of_the_model_are_told_apart_from_the_time_of_the_search(seconds, told):
    asked = Asked(time_limit_seconds=6.0, search_was_cut=True, run_seconds=seconds)
    assert f"the search was cut after 6 s (--time-limit){told}\n" in render_text(
        refused(asked, seconds=30.0), Style(200)
    )


@pytest.mark.parametrize("process_bytes", [None, ROOMY])
def test_a_refusal_keeps_what_was_asked_with_no_verdict_on_it(process_bytes):
    asked = Asked(process_budget_bytes=process_bytes, max_overhead_percent=10.0)
    told = msgspec.json.decode(render_json(refused(asked)))
    assert told["asked"]["max_overhead_percent"] == 10.0
    kept = {each["measure"]: (each["promised"], each["kept"]) for each in told["promises"]}
    bounded = {"default_session": (ROOMY, None)} if process_bytes is None else {"process": (ROOMY, None)}
    assert kept == {"live": (None, None), "max_overhead": (10.0, None), **bounded}


@pytest.mark.parametrize("process_bytes", [None, ROOMY])
def test_verify_prints_the_budget_that_was_asked_for(process_bytes):
    report = msgspec.structs.replace(
        samples.verify_report(), budget="40MiB", asked=Asked(process_budget_bytes=process_bytes)
    )
    line = render_text(report, Style(200)).splitlines()[2]
    live = "budget 40MiB = 27,262,976 bytes (26.00 MiB)"
    assert line == (live if process_bytes is None else "budget 40MiB = 41,943,040 bytes (40.00 MiB) of the process")


@pytest.mark.parametrize(
    ("live", "told"),
    [
        (25 * MIB, "what no plan makes smaller is 20.00 MiB of that, and leaves 20.00 MiB of the budget to a run"),
        (3 * MIB, "what no plan makes smaller, 42.00 MiB of that, is more than the budget"),
    ],
)
def test_the_part_of_a_process_that_does_not_fit_is_named(live, told):
    terms = (ProcessTerm("weights", 45 * MIB - live), ProcessTerm("a run", live, is_live=True))
    facts = {NEAREST_PROCESS: 45 * MIB, NEAREST_TERMS: terms}
    report = refused(Asked(process_budget_bytes=ROOMY, process_bytes=70 * MIB), facts=facts)
    lines = render_text(report, Style(200)).splitlines()
    assert f"  {(45 * MIB - live) // MIB}.00 MiB  weights" in lines
    assert told in lines
    values = msgspec.json.decode(render_json(report))["solution"]["facts"][NEAREST_TERMS]
    assert sum(each["bytes"] for each in values) == 45 * MIB


@pytest.mark.parametrize(("budget", "is_told"), [("80", True), ("80B", False), ("40MiB", False)])
def test_a_number_that_was_meant_as_a_share_is_answered_with_how_that_is_written(budget, is_told):
    report = msgspec.structs.replace(refused(Asked()), budget=budget)
    text = render_text(report, Style(200, is_short=True))
    assert (f"{budget} is that many bytes: a share is written --budget {budget}%" in text) is is_told
