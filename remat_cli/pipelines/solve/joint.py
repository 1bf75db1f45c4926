"""Contiguous partition and recomputation together: a stage may buy memory with time.

What a stage can buy is a curve: ways to run it that take extra time in its backward and keep fewer bytes per
mini-batch, each with bytes that it works on once. To keep everything is always among them, so that no plan is worse
than that of the partition alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from remat_cli.pipelines.plan.chain import MemoryModel, PeriodicSchedule, PipelineChain, PipelineStage
from remat_cli.pipelines.solve.contiguous import add_delay
from remat_cli.pipelines.solve.memory import StageFigures
from remat_cli.pipelines.solve.onef1b_star import best_period, contiguous_schedule
from remat_cli.pipelines.solve.stages import merge


@dataclass(frozen=True, order=True)
class StageOption:
    """A way to run a stage: time added to its backward, bytes kept per mini-batch, bytes worked on, once.

    `again` are the layers that run forward again, first and last of each segment.
    """

    extra_time: int
    saved_bytes: int
    work_bytes: int
    again: tuple[tuple[int, int], ...] = ()


StageCurve: TypeAlias = Callable[[int, int], Sequence[StageOption]]
"""What layers i..j can buy as one stage, both counted from 1."""


@dataclass(frozen=True)
class JointPlan:
    """Cuts (last layer of each stage), how each stage runs, and the period.

    `stages` is the chain of the stages as they run: their weights are all that stays, what they work on included.
    """

    period: int
    cuts: tuple[int, ...]
    options: tuple[StageOption, ...]
    alive: tuple[int, ...]
    stages: PipelineChain

    @property
    def schedule(self) -> PeriodicSchedule:
        """1F1B* of the chain of stages, one per device."""
        return contiguous_schedule(self.stages, range(1, len(self.cuts) + 1), self.period)


@dataclass(frozen=True)
class _Tail:
    delay: int
    cuts: tuple[int, ...]
    options: tuple[StageOption, ...]


def best_joint(
    chain: PipelineChain, devices: int, memory: int, curve: StageCurve, model: MemoryModel = "buf"
) -> JointPlan | None:
    """The least period of all contiguous allocations and all choices on the curves; memory has buffers at least.

    Exact among stages that run as blocks: for a first layer and a number of stages the least delay is best, and of
    the options that fit, the one with least time. None: nothing fits.
    """
    figures = StageFigures(chain)
    options = {}  # by stage, least time first; to keep everything is one
    for i in range(1, chain.layers + 1):
        for j in range(i, chain.layers + 1):
            options[i, j] = pareto([StageOption(0, figures.saved_bytes(i, j), 0), *curve(i, j)])
    low = max(1, -(-(sum(chain.forward) + sum(chain.backward)) // devices))
    extra = max(option.extra_time for each in options.values() for option in each)
    high = max(low, chain.longest_period + chain.layers * extra)
    question = _Question(figures, options, devices, memory, model)
    found = _within(question, high)
    if found is None:
        return None
    while low < high:
        middle = (low + high) // 2
        tail = _within(question, middle)
        if tail is None:
            low = middle + 1
        else:
            high, found = middle, tail
    stages = as_they_run(chain, found.cuts, found.options, model)
    plan = best_period(stages, range(1, len(found.cuts) + 1), memory)
    return JointPlan(plan.period, found.cuts, found.options, plan.alive, stages) if plan else None


def pareto(options: Sequence[StageOption]) -> list[StageOption]:
    """Those that no other is at least as good as, least time first."""
    kept: list[StageOption] = []
    for option in sorted(set(options)):
        if not any(k.saved_bytes <= option.saved_bytes and k.work_bytes <= option.work_bytes for k in kept):
            kept.append(option)
    return kept


@dataclass(frozen=True)
class _Question:
    """What does not change while a period is looked for."""

    figures: StageFigures
    options: dict[tuple[int, int], list[StageOption]]
    devices: int
    memory: int
    model: MemoryModel

    def fixed_bytes(self, i: int, j: int) -> int:
        """What a stage takes however many mini-batches are alive."""
        held = self.figures.weight_bytes(i, j) + self.figures.buffer_bytes(i, j)
        return held + (max(self.figures.work_bytes(i, j)) if self.model == "full" else 0)


def _within(question: _Question, period: int) -> _Tail | None:
    layers = question.figures.chain.layers
    tails: list[_Tail | None] = [*[None] * layers, _Tail(0, (), ())]
    for _ in range(min(question.devices, layers)):
        found: list[_Tail | None] = [None] * len(tails)
        for j, tail in enumerate(tails):
            for i in range(j if tail else 0, 0, -1):
                if question.figures.load(i, j) > period:
                    break
                longer = tail and _prepend(question, (i, j), tail, period)
                best = found[i - 1]
                if longer and (best is None or longer.delay < best.delay):
                    found[i - 1] = longer
        tails = found
        if tails[0] is not None:
            return tails[0]
    return None


def _prepend(question: _Question, stage: tuple[int, int], tail: _Tail, period: int) -> _Tail | None:
    """The stage before the tail, run in the fastest way that fits."""
    (i, j), figures = stage, question.figures
    link = figures.link_load(i - 1)
    fixed = question.fixed_bytes(i, j)
    for option in question.options[stage]:
        load = figures.load(i, j) + option.extra_time
        if max(load, link) > period:
            return None
        alive = max(1, -(-(tail.delay + load) // period))
        if fixed + alive * option.saved_bytes + option.work_bytes <= question.memory:
            delay = add_delay(add_delay(tail.delay, load, period), link, period)
            return _Tail(delay, (j, *tail.cuts), (option, *tail.options))
    return None


def as_they_run(
    chain: PipelineChain, cuts: Sequence[int], options: Sequence[StageOption], model: MemoryModel = "buf"
) -> PipelineChain:
    """The chain of stages with their options; what a stage works on stays, beside all copies of its weights."""
    firsts = [1, *(cut + 1 for cut in cuts[:-1])]
    blocks = merge(chain, [PipelineStage(i, j, at) for at, (i, j) in enumerate(zip(firsts, cuts, strict=True))])
    works = [0] * blocks.layers
    if model == "full":
        works = list(map(max, zip(blocks.forward_work_bytes, blocks.backward_work_bytes, strict=True)))
    rows = zip(blocks.weights, options, works, strict=True)
    return PipelineChain(
        forward=blocks.forward,
        backward=tuple(time + option.extra_time for time, option in zip(blocks.backward, options, strict=True)),
        weights=tuple(chain.copies * weight + option.work_bytes + work for weight, option, work in rows),
        sizes=blocks.sizes,
        transfers=blocks.transfers,
        copies=1,
        saved=tuple(option.saved_bytes for option in options),
        has_gradients=chain.has_gradients,
    )


def segment_curve(chain: PipelineChain, most: int = 8) -> StageCurve:
    """What checkpoints in a stage buy: in 1..most segments, of which the first some run forward again.

    A segment that does keeps its input instead of all it saves, and what it saves lives while its backward runs.
    """
    figures = StageFigures(chain)

    def rerun(i: int, j: int) -> int:
        """What layers i..j hold anew as a segment, beside their input."""
        return figures.saved_bytes(i, j) - min(chain.sizes[i - 1], chain.saved_bytes[i - 1])

    def options(i: int, j: int) -> list[StageOption]:
        found = []
        for count in range(1, min(most, j - i + 1) + 1):
            # Last layers of at most so many segments whose largest cost is least.
            low, high = 0, rerun(i, j)
            while low < high:
                middle = (low + high) // 2
                if len(_filled(i, j, middle, rerun)) <= count:
                    high = middle
                else:
                    low = middle + 1
            ends = _filled(i, j, low, rerun)
            extra = kept = work = 0
            again: tuple[tuple[int, int], ...] = ()
            first = i
            for end in ends:
                extra += sum(chain.forward[first - 1 : end])
                kept += min(chain.sizes[first - 1], chain.saved_bytes[first - 1])
                work = max(work, rerun(first, end))
                again = (*again, (first, end))
                found.append(StageOption(extra, kept + figures.saved_bytes(end + 1, j), work, again))
                first = end + 1
        return pareto(found)

    return cache(options)


def _filled(i: int, j: int, limit: int, cost: Callable[[int, int], int]) -> list[int]:
    """Last layers of segments, each as long as the limit allows, and at least one layer."""
    ends = []
    first = i
    for layer in range(i, j + 1):
        if layer > first and cost(first, layer) > limit:
            ends.append(layer - 1)
            first = layer
    return [*ends, j]
