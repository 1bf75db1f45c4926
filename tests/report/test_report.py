from __future__ import annotations

import msgspec
import pytest

from remat_cli.core.schedule.problem import make_problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.report.solution import overhead_percent, solution_report
from tests.report import samples


@pytest.mark.parametrize(("status", "code"), [("infeasible", 3), ("not_found", 4), ("feasible", 0), ("optimal", 0)])
def test_exit_code_follows_the_status(status, code):
    assert samples.solve_report(status).exit_code == code


def test_failed_verification_is_5():
    failed = samples.verification(outputs_identical=False)
    assert samples.compile_report(failed).exit_code == 5
    assert samples.verify_report(failed).exit_code == 5
    assert samples.compile_report().exit_code == samples.verify_report().exit_code == 0


def test_impossible_beats_verification():
    assert samples.impossible_report().exit_code == 3


def test_compile_without_verification_is_done():
    assert msgspec.structs.replace(samples.compile_report(), verification=None).exit_code == 0


def test_bound_below_the_baseline_time_counts_as_no_overhead():
    report = solution_report(samples.run(bound=3, found=samples.plan()), samples.problem(), baseline(samples.problem()))
    assert (report.lower_bound_percent, report.gap_percent) == (0.0, report.overhead_percent)


def test_unknown_bound_leaves_the_gap_unknown():
    run = samples.run(bound=None, found=samples.plan())
    report = solution_report(run, samples.problem(), baseline(samples.problem()))
    assert report.lower_bound_percent is None
    assert report.gap_percent is None
    assert report.overhead_percent == pytest.approx(10.0)


def test_splits_are_counted_from_the_whole_model():
    # Whole: 10 ms. Split: 10.42 ms, each op once, so nothing below that is possible with these splits.
    solution = samples.split_solution()
    assert solution.baseline_time == 10_000_000
    assert solution.baseline_peak_bytes == baseline(samples.problem()).peak
    assert solution.overhead_percent == pytest.approx(4.2)
    assert (solution.lower_bound_percent, solution.gap_percent) == (pytest.approx(4.2), 0.0)


def test_a_weak_bound_is_the_time_of_running_each_tile_once():
    judged = baseline(make_problem(samples.split_graph(), samples.split_profile()))
    found = solution_report(samples.run(bound=3, found=judged), samples.split_problem(), baseline(samples.problem()))
    assert found.lower_bound_percent == pytest.approx(4.2)


def test_no_time_has_no_overhead():
    assert overhead_percent(0, 0) is None


def test_inspect_knows_whether_it_fits():
    report = samples.inspect_report()
    assert report.fits is True
    (need,) = report.needs
    assert msgspec.structs.replace(report, budget_bytes=need.needed_bytes - 1).fits is False
    assert msgspec.structs.replace(report, budget_bytes=None).fits is None
