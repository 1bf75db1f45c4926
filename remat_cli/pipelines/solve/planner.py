"""The methods of `remat partition` by name, each as a schedule of stages; a finer clock than the planners need."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.base.present import present
from remat_cli.pipelines.plan.chain import PeriodicSchedule, PipelineChain, PipelineStage
from remat_cli.pipelines.plan.judge import simulate_pipeline
from remat_cli.pipelines.solve.bounds import memory_bound, period_bound
from remat_cli.pipelines.solve.contiguous import best_contiguous, least_contiguous_bytes
from remat_cli.pipelines.solve.integer_program import ProgramEffort, least_period
from remat_cli.pipelines.solve.joint import best_joint, segment_curve
from remat_cli.pipelines.solve.madpipe import madpipe
from remat_cli.pipelines.solve.onef1b_star import contiguous_schedule
from remat_cli.pipelines.solve.pipedream import pipedream_1f1b_star

SLOTS = 20_000
"""Ticks of all work together, where a method needs small numbers; times are rounded up to a tick."""
PROGRAM_BLOCKS = 8
"""The most blocks that the integer program takes."""
FEW_BLOCKS = 48
"""The most blocks for methods that look at many allocations, or at all stages and what each may recompute."""
SEGMENTS = 4
"""The most parts of a stage of which some run again."""
RECOMPUTING = frozenset({"auto", "joint"})
"""Methods whose stages may run parts of their forward again."""
NEAR = 1.01
"""Of the lower bound: a plan that close is not improved upon."""


@dataclass(frozen=True)
class PipelineQuestion:
    """A chain, how many devices, bytes of each, and seconds and workers to plan with."""

    chain: PipelineChain
    devices: int
    memory: int
    effort: ProgramEffort


@dataclass(frozen=True)
class StagePlan:
    """Stages (layers of the chain, owners) and a schedule whose layers they are; what the method proves of periods.

    `again` are the layers that run forward again in each stage's backward, first and last of each part.
    `is_impossible`: it has proved that there is none of the kind that it looks at.
    """

    stages: tuple[PipelineStage, ...]
    schedule: PeriodicSchedule | None
    bound: int | None = None
    again: tuple[tuple[tuple[int, int], ...], ...] = ()
    is_impossible: bool = False


NOTHING = StagePlan((), None)


def plan_stages(question: PipelineQuestion, method: str) -> StagePlan:
    """Plan with a method of `METHODS`; what it gives fits by the judge, with all that stages work on counted.

    Raises:
        ConfigError: no such method, or it cannot take so long a chain.
    """
    if method not in METHODS:
        raise ConfigError(f"no method named '{method}'; there are: {', '.join(METHODS)}")
    return METHODS[method](question)


def blocks_of(method: str, most: int) -> int:
    """How many blocks a chain may have for a method."""
    return min(most, {"pipeline-ilp": PROGRAM_BLOCKS, "joint": FEW_BLOCKS, "madpipe": FEW_BLOCKS}.get(method, most))


def least_bytes(chain: PipelineChain, devices: int) -> int:
    """The least memory per device within which stages of neighbouring layers run."""
    return least_contiguous_bytes(chain, devices, "full")


def lower_bounds(chain: PipelineChain, devices: int) -> tuple[int, int]:
    """No schedule has a smaller period (nanoseconds, rounded up), or needs less of its fullest device (bytes)."""
    period = period_bound(chain, devices)
    return -int(-period // 1), memory_bound(chain, devices, "full")


def neediest_layer(chain: PipelineChain) -> tuple[int, int]:
    """The layer that needs most by itself with one mini-batch in it, counted from 0, and the bytes."""
    works = map(max, zip(chain.forward_work_bytes, chain.backward_work_bytes, strict=True))
    rows = zip(chain.weights, chain.saved_bytes, works, strict=True)
    needs = [chain.copies * weight + saved + work for weight, saved, work in rows]
    return max(enumerate(needs), key=lambda each: each[1])


def plan_onef1b_star(question: PipelineQuestion) -> StagePlan:
    """The best contiguous partition, scheduled with 1F1B*: exact among stages of neighbouring layers."""
    chain = question.chain
    plan = best_contiguous(chain, question.devices, question.memory, "full")
    if plan is None:
        return StagePlan((), None, is_impossible=True)
    return _as_stages(chain, contiguous_schedule(chain, plan.cuts, plan.period), plan.period)


def plan_pipedream(question: PipelineQuestion) -> StagePlan:
    """PipeDream's cuts, scheduled with 1F1B*: the baseline of the literature."""
    chain = question.chain
    plan = pipedream_1f1b_star(chain, question.devices, question.memory, "full")
    if plan is None:
        return NOTHING
    return _as_stages(chain, contiguous_schedule(chain, plan.cuts, plan.period), None)


def plan_madpipe(question: PipelineQuestion) -> StagePlan:
    """A device may have several stages; never worse than the best contiguous partition."""
    contiguous, special = plan_onef1b_star(question), NOTHING
    tick, coarse = _coarse(question.chain)
    memory = question.memory
    for _ in range(4):
        # It counts no memory that stages work in: what the judge finds too much is taken off, and it plans again.
        found = madpipe(coarse, question.devices, memory, question.effort)
        if found.schedule is None:
            break
        excess = max(simulate_pipeline(coarse, found.schedule, "full").peak_bytes.values()) - question.memory
        if excess <= 0:
            bound = _proved(found.bound, tick, coarse) if memory == question.memory else None
            special = _slowed(_as_stages(coarse, found.schedule, bound), tick)
            break
        memory -= excess
    return _best([contiguous, special], special.bound)


def plan_program(question: PipelineQuestion) -> StagePlan:
    """The integer program, which takes short chains only."""
    tick, coarse = _coarse(question.chain)
    answer = least_period(coarse, question.devices, question.memory, "full", effort=question.effort)
    if answer.schedule is None:
        return StagePlan((), None, is_impossible=answer.is_infeasible)
    bound = _proved(answer.bound, tick, coarse)
    return _slowed(_as_stages(coarse, answer.schedule, bound), tick)


def plan_joint(question: PipelineQuestion) -> StagePlan:
    """The best contiguous partition whose stages may run parts of their forward again; exact on these blocks."""
    chain = question.chain
    if not chain.has_gradients:
        return plan_onef1b_star(question)
    curve = segment_curve(chain, SEGMENTS)
    plan = best_joint(chain, question.devices, question.memory, curve, "full")
    if plan is None:
        return NOTHING
    firsts = (1, *(cut + 1 for cut in plan.cuts[:-1]))
    stages = tuple(PipelineStage(i, j, at) for at, (i, j) in enumerate(zip(firsts, plan.cuts, strict=True)))
    return StagePlan(stages, plan.schedule, again=tuple(option.again for option in plan.options))


def plan_auto(question: PipelineQuestion) -> StagePlan:
    """The best contiguous partition first; where that leaves room above the bound also MadPipe, and recomputation.

    Of long chains only contiguous partitions are looked at.
    """
    first = plan_onef1b_star(question)
    least, _ = lower_bounds(question.chain, question.devices)
    if first.schedule is not None and first.schedule.period <= NEAR * least:
        return _best([first])
    plans = [first]
    if question.chain.layers <= FEW_BLOCKS:
        plans += [plan_madpipe(question), plan_joint(question)]
    return _best(plans)


def _best(plans: Sequence[StagePlan], bound: int | None = None) -> StagePlan:
    """The plan with the least period, with a bound of its own: that of one method is no proof for all."""
    found = [plan for plan in plans if plan.schedule is not None]
    best = min(found, key=lambda plan: plan.schedule.period if plan.schedule else 0, default=NOTHING)
    return StagePlan(best.stages, best.schedule, bound, again=best.again)


METHODS: Mapping[str, Callable[[PipelineQuestion], StagePlan]] = {
    "auto": plan_auto,
    "1f1b-star": plan_onef1b_star,
    "madpipe": plan_madpipe,
    "pipeline-ilp": plan_program,
    "pipedream": plan_pipedream,
    "joint": plan_joint,
}


def _coarse(chain: PipelineChain) -> tuple[int, PipelineChain]:
    """A tick in nanoseconds, and the chain with times in ticks, rounded up."""
    tick = max(1, chain.longest_period // SLOTS)

    def ticks(times: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(-(-time // tick) for time in times)

    times = {name: ticks(getattr(chain, name)) for name in ("forward", "backward", "transfers")}
    return tick, msgspec.structs.replace(chain, **times)


def _proved(bound: int | None, tick: int, coarse: PipelineChain) -> int | None:
    """A bound in ticks as nanoseconds: on a way round the pattern, each task was rounded up once at most."""
    if bound is None or tick == 1:
        return bound
    return max(0, bound - (2 * coarse.layers + coarse.ways * (coarse.layers - 1))) * tick


def _slowed(plan: StagePlan, tick: int) -> StagePlan:
    """A plan in ticks as one in nanoseconds."""
    schedule = present(plan.schedule, "the schedule of a plan in ticks")
    starts = tuple(tuple(start * tick for start in each) for each in schedule.starts)
    moves = tuple(tuple(None if move is None else move * tick for move in each) for each in schedule.transfers)
    slowed = PeriodicSchedule(schedule.period * tick, schedule.devices, starts, moves)
    return StagePlan(plan.stages, slowed, plan.bound)


def _as_stages(chain: PipelineChain, schedule: PeriodicSchedule, bound: int | None) -> StagePlan:
    """Layers of one device that always run back to back become one stage."""
    n = chain.layers
    ends = []
    for layer in range(1, n):
        # Whether it and the next run back to back on one device, both ways, in every mini-batch.
        there, back = layer - 1, 2 * n - layer - 1
        is_joined = schedule.devices[layer - 1] == schedule.devices[layer] and all(
            each[there] + chain.forward[layer - 1] == each[there + 1]
            and each[back] + chain.backward[layer] == each[back + 1]
            for each in schedule.starts
        )
        ends += [] if is_joined else [layer]
    stages = tuple(PipelineStage(i + 1, j, schedule.devices[i]) for i, j in pairwise((0, *ends, n)))
    firsts = [stage.first - 1 for stage in stages]
    lasts = [2 * n - stage.last for stage in reversed(stages)]
    starts = tuple(tuple(each[task] for task in (*firsts, *lasts)) for each in schedule.starts)
    forwards = [stage.last - 1 for stage in stages[:-1]]
    tasks = (*forwards, n - 1, *(2 * n - 2 - task for task in reversed(forwards)))
    moves = tuple(tuple(each[task] for task in tasks) for each in schedule.transfers)
    owners = tuple(stage.device for stage in stages)
    return StagePlan(stages, PeriodicSchedule(schedule.period, owners, starts, moves), bound)
