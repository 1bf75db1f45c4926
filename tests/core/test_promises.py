"""Every measure, kept and not kept, under every kind of budget: what follows, and what is said first."""

from __future__ import annotations

import msgspec
import pytest

from remat_cli.core.values.family import FamilySeen, SizeSeen
from remat_cli.core.values.promises import (
    KEPT_BYTES,
    PHASES,
    PROCESS_ROOM_BYTES,
    Asked,
    CheaperBudget,
    consequence_of,
    is_dear,
    is_kept,
    judged,
    worst,
)
from remat_cli.core.values.resident import ProcessMemory, ProcessSeen
from remat_cli.report.compile import CompileReport, VerifyReport
from remat_cli.report.style import Style
from tests.report import samples

MIB = 2**20
PREDICTED = ProcessMemory(
    load_peak_bytes=10 * MIB,
    loaded_bytes=8 * MIB,
    first_run_bytes=30 * MIB,
    later_runs_bytes=40 * MIB,
    mapped_bytes=0,
    anonymous_bytes=40 * MIB,
)
ORIGINAL = ProcessMemory(12 * MIB, 12 * MIB, 50 * MIB, 60 * MIB, 0, 60 * MIB)
FIELDS = dict(zip(PHASES, ("load_peak_bytes", "loaded_bytes", "first_run_bytes", "later_runs_bytes"), strict=True))
BUDGETS = {"share": None, "live bytes": None, "process": 48 * MIB}
INPUT_BYTES = MIB


def process(budget, **changes):
    rewritten = msgspec.structs.replace(PREDICTED, **changes)
    return ProcessSeen(ORIGINAL, rewritten, PREDICTED, INPUT_BYTES, budget)


def family(**changes):
    run = SizeSeen({"seq": 7}, True, 100_000, 200_000)
    found = FamilySeen(100_000, (run,), resident_bytes=10 * MIB, resident_at_largest_bytes=10 * MIB)
    return msgspec.structs.replace(found, **changes)


def sized(**changes):
    return family(runs=(msgspec.structs.replace(family().runs[0], **changes),))


def above(phase, factor=1.03, room=PROCESS_ROOM_BYTES, more=1):
    """A phase that holds a byte more than what still keeps its prediction."""
    return {FIELDS[phase]: int(getattr(PREDICTED, FIELDS[phase]) * factor) + room + more}


# measure: (changes of a verification that break it, its exit code, what the first line says)
BROKEN = {
    "outputs": ({"outputs_identical": False}, 5, "NOT KEPT: the outputs differ"),
    "order": ({"order_honoured": False, "first_op_out_of_order": "a"}, 5, "NOT KEPT: the runtime did not run the ops"),
    "live": ({"measured_peak_bytes": 24 * MIB - 1}, 4, "NOT KEPT: the measured peak is"),
    "default_session": ({"within_budget": False}, 4, "NOT KEPT: a session needs"),
    "outputs_at_sizes": ({"family": sized(outputs_identical=False)}, 5, "NOT KEPT: at seq=7 the outputs differ"),
    "order_at_sizes": ({"family": sized(order_honoured=False)}, 5, "NOT KEPT: at seq=7 ops run in another order"),
    "runs_at_sizes": ({"family": sized(peak_bytes=100_001 + KEPT_BYTES)}, 4, "NOT KEPT: at seq=7 runs held"),
    "after_all_sizes": ({"family": family(resident_bytes=15 * MIB)}, 4, "NOT KEPT: after runs of many sizes"),
}


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("measure", BROKEN)
def test_what_was_asked_for_and_not_kept_is_never_exit_0(measure, budget):
    changes, code, first = BROKEN[measure]
    base = msgspec.structs.replace(samples.verification(), family=family(), process=process(BUDGETS[budget]))
    check(base, None, 0, "fits: ", BUDGETS[budget])
    check(msgspec.structs.replace(base, **changes), measure, code, first, BUDGETS[budget])


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_process_above_its_prediction_is_a_warning_in_the_first_line(phase, budget):
    """Within a budget on the process it is one too: the budget was asked for, the prediction was not."""
    limit = BUDGETS[budget]
    kept = msgspec.structs.replace(samples.verification(), process=process(limit, **above(phase, more=0)))
    check(kept, None, 0, "fits: ", limit)
    broken = msgspec.structs.replace(samples.verification(), process=process(limit, **above(phase)))
    check(broken, phase, 0, "fits: ", limit)
    assert "; WARNING, not kept: " in report_of(broken, limit).verdict
    assert "promised" in report_of(broken, limit).verdict


def test_a_process_above_its_budget_is_not_kept_however_near_it_is_to_the_prediction():
    over = process(48 * MIB, anonymous_bytes=47 * MIB + 1)
    seen = msgspec.structs.replace(samples.verification(), process=over)
    check(
        seen, "process", 4, "NOT KEPT: the process holds 50,331,649 bytes, more than the budget of 50,331,648", 48 * MIB
    )
    exact = msgspec.structs.replace(samples.verification(), process=process(48 * MIB, anonymous_bytes=47 * MIB))
    check(exact, None, 0, "fits: 48.00 MiB of 48.00 MiB in the process (was 61.00 MiB)", 48 * MIB)


def test_a_budget_on_a_process_that_nobody_watched_is_not_known_to_be_kept():
    report = report_of(samples.verification(), 48 * MIB, process_bytes=41 * MIB)
    assert [(each.measure, each.measured, each.kept) for each in report.promises][-1] == ("process", None, None)
    assert report.verdict.startswith("fits by prediction: 41.00 MiB of 48.00 MiB in the process")
    over = report_of(samples.verification(), 40 * MIB, process_bytes=41 * MIB)
    assert over.verdict.startswith("does not fit by prediction: 41.00 MiB of 40.00 MiB in the process")
    assert (report.fits, over.fits) == (True, False)


@pytest.mark.parametrize(("most", "kept"), [(9.0, False), (9.25, True), (20.0, True)])
def test_a_verdict_on_time_changes_no_exit_code(most, kept):
    report = report_of(samples.verification(), None, max_overhead_percent=most)
    assert [(each.measure, each.promised, each.measured, each.kept) for each in report.promises][-1] == (
        "max_overhead",
        most,
        9.25,
        kept,
    )
    assert report.exit_code == 0
    assert ("not kept: +9.2 % time, at most +9 % was asked for" in report.verdict) is not kept


@pytest.mark.parametrize(
    ("predicted", "measured", "cheaper", "words"),
    [
        (10.0, 30.0, None, ", +30 % time"),
        (204.0, 212.0, None, ", +212 % time, predicted +204 %: DEAR, no cheaper budget is known"),
        (31.0, None, None, ", +31 % time: DEAR, no cheaper budget is known"),
        (
            10.0,
            45.0,
            CheaperBudget(75, 12.0),
            ", +45 % time, predicted +10 %: DEAR, --budget 75% is known to take +12 %",
        ),
    ],
)
def test_a_dear_plan_says_its_price_and_the_next_cheaper_budget(predicted, measured, cheaper, words):
    seen = msgspec.structs.replace(
        samples.verification(), predicted_overhead_percent=predicted, measured_overhead_percent=measured
    )
    solution = msgspec.structs.replace(samples.solution(), overhead_percent=predicted)
    report = msgspec.structs.replace(report_of(seen, None, cheaper=cheaper, is_looked_up=True), solution=solution)
    verify = msgspec.structs.replace(samples.verify_report(seen), asked=report.asked)
    assert report.verdict.endswith(words)
    assert verify.verdict == report.verdict
    assert is_dear(predicted, measured) is ("DEAR" in words)


def test_live_bytes_are_equal_or_not_kept_and_all_else_is_at_most():
    assert [is_kept("live", 5, seen) for seen in (4, 5, 6)] == [False, True, False]
    assert [is_kept("process", 5, seen) for seen in (4, 5, 6)] == [True, True, False]
    assert is_kept("process", 5, None) is None
    assert consequence_of(judged("process", 5, None)) == "none"
    assert worst([]) == "none"
    assert worst([judged("later_runs", 0, 2**30), judged("process", 1, 2)]) == "memory"
    assert worst([judged("outputs", True, False), judged("process", 1, 2)]) == "broken"


def report_of(seen, process_budget, **asked) -> CompileReport:
    """What compile tells of a verification."""
    terms = Asked(process_budget_bytes=process_budget, **asked)
    return msgspec.structs.replace(samples.compile_report(seen), asked=terms)


def check(seen, broken_measure, code, first, process_budget):
    """Compile and verify say the same, in text, JSON fields and exit code, and only one promise is not kept."""
    compiled = report_of(seen, process_budget)
    verified: VerifyReport = msgspec.structs.replace(samples.verify_report(seen), asked=compiled.asked)
    for report in (compiled, verified):
        assert report.exit_code == code
        assert report.lines(Style())[0] == report.verdict
        assert report.verdict.startswith(first), report.verdict
        assert report.fits is (code == 0)
        assert [each.measure for each in report.promises if each.kept is False] == [broken_measure] * bool(
            broken_measure
        )
    assert compiled.promises == verified.promises
