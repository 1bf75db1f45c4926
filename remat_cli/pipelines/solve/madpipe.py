"""MadPipe as a whole: the best contiguous plan, then a special device with several stages where that promises more."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from remat_cli.base.errors import BrokenSolver
from remat_cli.pipelines.plan.chain import PeriodicSchedule, PipelineChain, PipelineStage
from remat_cli.pipelines.plan.judge import simulate_pipeline
from remat_cli.pipelines.solve.bounds import period_bound
from remat_cli.pipelines.solve.contiguous import best_contiguous
from remat_cli.pipelines.solve.integer_program import ProgramEffort, least_period
from remat_cli.pipelines.solve.madpipe_phase1 import Grid, MadPipeAllocation, MadPipeQuestion, madpipe_phase1
from remat_cli.pipelines.solve.onef1b_star import best_period, contiguous_schedule
from remat_cli.pipelines.solve.stages import merge, spell_out

EXACT_LAYERS = 24
"""Longer chains go on a grid: labels are too many to keep them all."""
FINE = Grid(2001, 201, 201, 1001)
"""Finer than the published 101, 11, 51: only labels that can be reached are kept, so that the cells cost nothing."""
_RUNNERS_UP = 3
_LEAST_SECONDS = 0.5  # below that CP-SAT does not get going


@dataclass(frozen=True)
class MadPipePlan:
    """A judged schedule, layer by layer, memory with buffers.

    Attributes:
        schedule: none where none was found; with `bound` none as well, nothing of this kind fits.
        bound: no schedule with one special device whose stages run as blocks has a smaller period; layers that run
            apart may. None: nothing fits.
        contiguous_period: of the best contiguous plan, which is where the search begins.
        is_exact: whether the first phase looked at all allocations, not at a grid of them.
    """

    schedule: PeriodicSchedule | None
    bound: int | None
    contiguous_period: int | None
    is_exact: bool

    @property
    def gap(self) -> float | None:
        """How far the period may be above the least of its kind, as a part of it."""
        if self.schedule is None or self.bound is None:
            return None
        return max(0.0, 1.0 - self.bound / self.schedule.period)


def madpipe(
    chain: PipelineChain,
    devices: int,
    memory: int,
    effort: ProgramEffort | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> MadPipePlan:
    """MadPipe (Shilova 2021, ch. 7) with a tight memory of the special device, never worse than the best contiguous.

    Args:
        chain: layers.
        devices: how many there are.
        memory: bytes of each.
        effort: seconds for everything together: a third each for a lower bound and for allocations, and half of what
            is left then for each program.
        clock: seconds.
    """
    effort = effort or ProgramEffort()
    end = clock() + effort.seconds
    contiguous = best_contiguous(chain, devices, memory)
    best = contiguous_schedule(chain, contiguous.cuts, contiguous.period) if contiguous else None
    below = contiguous.period if contiguous else None
    is_exact = chain.layers <= EXACT_LAYERS
    question = MadPipeQuestion(chain, devices, memory, below=below)
    bound, allocations = _first_phase(question, is_exact, _Turns(clock, end, effort.seconds / 3))
    # Stages as blocks first; then each in two blocks, which may run apart.
    views = list(dict.fromkeys(allocation.stages for allocation in allocations[: 1 + _RUNNERS_UP]))
    finer = [split_at_narrow_points(chain, stages) for stages in views]
    views += [halves for halves, stages in zip(finer, views, strict=True) if halves != stages]
    for stages in views:
        seconds = (end - clock()) / 2
        if bound is None or seconds < _LEAST_SECONDS or (best and best.period <= bound):
            break
        limits = replace(effort, seconds=seconds, below=best.period if best else None)
        best = _second_phase(chain, stages, memory, limits) or best
    if best:
        run = simulate_pipeline(chain, best, "buf")
        peak = max(run.peak_bytes.values())
        if peak > memory or run.normalized_period != best.period:
            raise BrokenSolver(
                f"madpipe planned a period of {best.period} within {memory} bytes; "
                f"the judge finds {run.normalized_period} and {peak}"
            )
    return MadPipePlan(best, bound, below, is_exact)


@dataclass
class _Turns:
    """Time of the searches of the first phase, one after another; `was_cut` says whether the last had too little."""

    clock: Callable[[], float]
    end: float
    seconds: float
    was_cut: bool = False

    def next(self) -> Callable[[], bool]:
        """Whether the search that begins now may go on."""
        until = min(self.end, self.clock() + self.seconds)
        self.was_cut = False

        def may_go_on() -> bool:
            self.was_cut = self.clock() > until
            return not self.was_cut

        return may_go_on


def _first_phase(
    question: MadPipeQuestion, is_exact: bool, turns: _Turns
) -> tuple[int | None, list[MadPipeAllocation]]:
    """A lower bound, and allocations that may come below the contiguous plan, best first."""
    coarse = question if is_exact else replace(question, grid=replace(FINE, is_up=False))
    lower = madpipe_phase1(coarse, may_go_on=turns.next())
    if not lower:
        return question.below, []
    bound = -int(-period_bound(question.chain, question.devices) // 1) if turns.was_cut else lower[0].bound
    if is_exact:
        return bound, lower
    return bound, madpipe_phase1(replace(question, grid=FINE), may_go_on=turns.next())


def split_at_narrow_points(chain: PipelineChain, stages: tuple[PipelineStage, ...]) -> tuple[PipelineStage, ...]:
    """Each stage of several layers as two on the same device, apart where the tensor between them is smallest."""
    found: list[PipelineStage] = []
    for stage in stages:
        if stage.first == stage.last:
            found.append(stage)
            continue
        cut = min(range(stage.first, stage.last), key=lambda layer: chain.sizes[layer])
        found += [PipelineStage(stage.first, cut, stage.device), PipelineStage(cut + 1, stage.last, stage.device)]
    return tuple(found)


def _second_phase(
    chain: PipelineChain, stages: tuple[PipelineStage, ...], memory: int, effort: ProgramEffort
) -> PeriodicSchedule | None:
    """The best schedule of settled stages that is below the limit; 1F1B* where each device has one."""
    owners = [stage.device for stage in stages]
    if len(set(owners)) == len(owners):
        cuts = [stage.last for stage in stages]
        plan = best_period(chain, cuts, memory)
        is_better = plan is not None and (effort.below is None or plan.period < effort.below)
        return contiguous_schedule(chain, cuts, plan.period) if plan and is_better else None
    answer = least_period(merge(chain, stages), len(set(owners)), memory, "buf", allocation=owners, effort=effort)
    return spell_out(chain, stages, answer.schedule) if answer.schedule else None
