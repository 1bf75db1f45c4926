"""A model for all sizes of a family: large tensors never whole, one plan at the largest sizes, the same file for all.

Which loops are tried is decided by their estimates, then by what they cost when measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from remat_cli.base import progress as stages
from remat_cli.base.units import format_bytes
from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.compiling.prepare import op_threads
from remat_cli.compiling.search.loop import KeepRule, Known, search
from remat_cli.compiling.search.loops import LoopCandidate, Loops
from remat_cli.compiling.search.tensor_cap import above_cap
from remat_cli.core.schedule.solver_run import Status

MOST_TRIALS = 3
MOST_LEAST_TRIALS = 6  # for `min`, each measured
LEAST_STEP_SHARE = 0.03  # less than the last trial is worth another


@dataclass(frozen=True)
class FewestTiles:
    """Proposes, of loops that should hold at most so many bytes, those with the fewest tiles, then tighter ones."""

    loops: Loops
    most_bytes: int

    def propose(self, known: Known) -> Iterator[LoopCandidate]:
        """Each holds less than the one before, by a step that is worth a trial, or is the one that holds least."""
        most_bytes, last_bytes = self.most_bytes, self.most_bytes + 1
        for _ in range(MOST_TRIALS):
            rung = self.loops.fitting(most_bytes) or self.loops.lowest()
            if rung is None or rung.peak_bytes >= last_bytes:
                return
            last_bytes, most_bytes = rung.peak_bytes, int(rung.peak_bytes * (1 - LEAST_STEP_SHARE))
            yield LoopCandidate(self.loops, rung, partial(fit_loops, self.loops, most_bytes))


@dataclass(frozen=True)
class LeastLoops:
    """Proposes loops that hold ever less, by bisection from the lowest on.

    Measured, loops that hold less hardly ever take less time.
    """

    loops: Loops

    def propose(self, known: Known) -> Iterator[LoopCandidate]:
        """Goes down from what could be kept, and up from what could not."""
        ladder = self.loops.ladder()
        low, high = 0, len(ladder) - 1
        for probe in range(MOST_LEAST_TRIALS):
            if low > high:
                return
            place = (low + high) // 2 if probe else high
            yield LoopCandidate(self.loops, ladder[place])
            if known.is_kept:
                low = place + 1
            else:
                high = place - 1


def run_here(whole: OneModel | Refused) -> OneModel | Refused:
    """A plan of whole ops, but refused where this machine cannot run it, nor the original: it could not be verified."""
    runnable = whole.prepared.runnable
    if isinstance(whole, Refused) or runnable is None or whole.written.plan.peak <= runnable.most_bytes:
        return whole
    run = replace(whole.answer.run, status=Status.NOT_FOUND, plan=None)
    told = f"this machine can run no plan that holds more than {format_bytes(runnable.most_bytes)}"
    return replace(whole.refused(replace(whole.answer, run=run)), obstacle=told)


def plan_family(loops: Loops) -> OneModel | Refused:
    """The plan with the fewest tiles that fits; for `min` the one that holds least and takes no longer than it may.

    Of plans that all take longer than the user allows, the fastest, which is for the caller to refuse. Where none fits
    whose tiles bear many threads, one that bears as many as there are here, which its file says.
    """
    found = _best(loops)
    if isinstance(found, Refused) and not loops.task.should_stop():
        own = op_threads(loops.task.request.conditions)
        again = _best(Loops(loops.task, own)) if own < loops.threads else found
        found = again if isinstance(again, OneModel) else found
    if isinstance(found, OneModel) and found.splitting is None:
        return replace(loops.with_dims(found), twin=partial(loops.twin, None))
    return found


def fit_loops(loops: Loops, most_bytes: int) -> OneModel | None:
    """The plan with the fewest tiles that fits, of those that hold at most so many bytes by estimate."""
    found = search(FewestTiles(loops, most_bytes), KeepRule(admits=loops.keeps_cap), loops.task.ending)
    return None if found is None else loops.with_dims(found)


def least_loops(loops: Loops) -> OneModel | None:
    """The loops that hold least of those whose plan takes no longer than it may."""
    task = loops.task
    rule = KeepRule(
        admits=lambda found: task.is_allowed(found) and loops.keeps_cap(found), is_enough=lambda found: False
    )
    found = search(LeastLoops(loops), rule, task.ending)
    return None if found is None else loops.with_dims(found)


def _best(loops: Loops) -> OneModel | Refused:
    task, whole = loops.task, loops.task.whole
    keeps_cap = loops.keeps_cap(whole)
    may_be_whole = keeps_cap and whole is run_here(whole)
    if isinstance(whole, OneModel) and may_be_whole and not task.question.least and task.is_allowed(whole):
        return whole
    task.progress.stage(stages.SPLITTING)
    if task.question.least:
        found = least_loops(loops)
    else:
        most_bytes = int(min(loops.most_bytes, task.question.most_bytes))
        lowest = None if loops.fitting(most_bytes) is not None else loops.lowest()  # tried all the same: estimates err
        found = fit_loops(loops, most_bytes if lowest is None else lowest.peak_bytes)
    if found is None:
        if not keeps_cap:
            return above_cap(whole, int(loops.cap_bytes), is_cut=loops.is_cut)
        return without_loops(loops) if may_be_whole else run_here(whole)
    return task.better(whole, found) if isinstance(whole, OneModel) and may_be_whole else found


def without_loops(loops: Loops) -> OneModel | Refused:
    """The plan without loops; that none of these fits proves nothing of loops that were not tried."""
    whole = loops.task.whole
    whole = replace(whole, obstacle=None if loops.is_cut else loops.obstacle())
    if whole.answer.run.status is not Status.INFEASIBLE:
        return whole
    return replace(whole, answer=replace(whole.answer, run=replace(whole.answer.run, status=Status.NOT_FOUND)))
