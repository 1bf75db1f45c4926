"""What stages cost: seconds and runs of models, wherever these run."""

from __future__ import annotations

from remat_cli.base.processes import Tell, forked, fresh, started
from remat_cli.base.progress import Progress, Stage, silent
from remat_cli.base.run_count import counting, ran
from remat_cli.base.stage_costs import BETWEEN, StageCost, StageCosts


def run_often(times: int, tell: Tell) -> int:
    """A child whose own child runs too."""
    ran(times)
    if times > 1:
        with started(run_often, 1, forked) as worker:
            worker.answer()
    return times


def test_runs_are_counted_in_all_processes_and_blocks():
    ran()  # nobody counts
    with counting() as outer:
        ran(2)
        with counting() as inner:
            ran()
        for start in (fresh, forked):
            with started(run_often, 3, start) as worker:
                assert worker.answer() == 3
    assert inner.runs == 1
    assert outer.runs == 2 + 1 + 2 * (3 + 1)


def test_parts_of_a_stage_are_added_up():
    passed, told = [0.0], []
    with counting() as count:
        costs = StageCosts(count, now=lambda: passed[0])
        progress = costs.listening(Progress(told.append))
        for stage, seconds, runs in (("one", 2.0, 1), ("two", 3.0, 0), ("two", 1.0, 4), ("one", 0.5, 2)):
            progress.stage(stage)
            passed[0] += seconds
            ran(runs)
    assert costs.ended() == (StageCost(BETWEEN, 0.0, 0), StageCost("one", 2.5, 3), StageCost("two", 4.0, 4))
    assert told == [Stage("one"), Stage("two"), Stage("two"), Stage("one")]
    assert not silent().should_stop()
