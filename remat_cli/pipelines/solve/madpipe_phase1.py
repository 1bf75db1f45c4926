"""MadPipe, first phase: an allocation with one special device that may own several stages (Shilova 2021, ch. 7).

The value is a lower bound on every 1-periodic schedule of such an allocation whose stages run as blocks, memory with
buffers; it need not be attained. On a grid it is one only where figures are rounded down.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import msgspec
import numpy as np

from remat_cli.pipelines.plan.chain import PipelineChain, PipelineStage
from remat_cli.pipelines.solve import madpipe_kernels as rows
from remat_cli.pipelines.solve.madpipe_kernels import NEVER, Table, label_all

_FIRST_ROWS = 1 << 12


@dataclass(frozen=True)
class Grid:
    """How many steps the figures of a label have: time on the special device, its bytes, saved bytes, delay.

    Up: what is found fits. Down: nothing that fits is missed, so that the value is a lower bound.
    """

    times: int = 101
    memories: int = 11
    saved: int = 101
    delays: int = 51
    is_up: bool = True


class MadPipeAllocation(msgspec.Struct, frozen=True):
    """Stages by device: the special one has the highest number; `bottleneck` is D at the period they were found at.

    Neighbours on the special device stay apart: as one block they may need more memory than D counts.
    """

    bottleneck: int
    period: int
    stages: tuple[PipelineStage, ...]

    @property
    def bound(self) -> int:
        """The period that these stages cannot beat at that target."""
        return max(self.bottleneck, self.period)


@dataclass(frozen=True)
class MadPipeQuestion:
    """A chain, how many devices, the memory of each; the memory model of the special device (`tight` or as printed).

    Attributes:
        grid: none: exact.
        below: only values below this are looked for.
    """

    chain: PipelineChain
    devices: int
    memory: int
    is_tight: bool = True
    grid: Grid | None = None
    below: int | None = None


def madpipe_dp(question: MadPipeQuestion, period: int) -> list[MadPipeAllocation]:
    """D(n, P-1, 0, 0, 0, 0) at a target period: the best allocation first, then others that are best in some figure."""
    chain, grid, n = question.chain, question.grid, question.chain.layers
    figures = np.zeros((5, n + 1), np.int64)
    figures[rows.LOADS, 1:] = list(accumulate(map(sum, zip(chain.forward, chain.backward, strict=True))))
    figures[rows.SAVED_SUMS, 1:] = list(accumulate(chain.saved_bytes))
    figures[rows.WEIGHT_SUMS, 1:] = list(accumulate(chain.copies * weight for weight in chain.weights))
    figures[rows.BUFFERS, 1:n] = [chain.ways * size for size in chain.sizes[1:n]]
    figures[rows.LINKS, 1:n] = [chain.ways * time for time in chain.transfers]
    steps = [1, 1, 1, 1]
    if grid is not None:
        load = sum(chain.forward) + sum(chain.backward)
        ranges = (load, grid.times), (question.memory, grid.memories), (question.memory, grid.saved)
        steps = [max(1, most // (count - 1)) for most, count in (*ranges, (chain.longest_period, grid.delays))]
    ceiling = NEVER if question.below is None else question.below
    is_up = grid is None or grid.is_up
    settings = np.array([question.memory, period, ceiling, *steps, is_up, question.is_tight], np.int64)
    size, is_done = _FIRST_ROWS, False
    while not is_done:
        labels = np.zeros((size, rows.WIDTH), np.int64)
        labels[0, rows.PARENT] = labels[0, rows.NEXT] = rows.NONE
        heads = np.full((n + 1, question.devices), rows.NONE, np.int64)
        heads[n, question.devices - 1] = 0
        is_done = label_all(labels, heads, np.zeros(5, np.int64), figures, settings)
        size *= 4
    ends = []
    for p in range(question.devices):
        label = int(heads[0, p])
        while label != rows.NONE:
            ends.append(label)
            label = int(labels[label, rows.NEXT])
    values = {label: int(max(labels[label, rows.BOTTLENECK], labels[label, rows.TIME])) for label in ends}
    return [
        MadPipeAllocation(values[label], period, _stages(labels, label, question.devices))
        for label in sorted(ends, key=lambda label: (values[label], label))
    ]


def madpipe_phase1(
    question: MadPipeQuestion, rounds: int = 64, may_go_on: Callable[[], bool] = lambda: True
) -> list[MadPipeAllocation]:
    """The allocations of the target period that minimises max(D, period), best first; none: nothing fits.

    D falls as the period grows, so the best is where they cross: at the least period that is not below its D, or one
    before. Exact for whole numbers, unless `rounds` or `may_go_on`, asked before each, ends the bisection early.
    """
    chain = question.chain
    load = sum(chain.forward) + sum(chain.backward)
    low = max(1, -(-load // question.devices))
    high = max(low, chain.longest_period)
    if question.below is not None:
        high = min(high, question.below - 1)
    best: list[MadPipeAllocation] = []
    if low > high:
        return best
    best = madpipe_dp(question, high)
    for _ in range(rounds):
        if low >= high or not best or not may_go_on():
            break
        middle = (low + high) // 2
        found = madpipe_dp(question, middle)
        if found and (found[0].bound < best[0].bound):
            best = found
        if found and found[0].bottleneck <= middle:
            high = middle
        else:
            low = middle + 1
    return best


def _stages(labels: Table, label: int, devices: int) -> tuple[PipelineStage, ...]:
    """The stages that lead to a label, from the first layer on."""
    found: list[PipelineStage] = []
    first, ordinary = 1, 0
    while int(labels[label, rows.PARENT]) != rows.NONE:
        last, is_special = int(labels[label, rows.LAST]), bool(labels[label, rows.SPECIAL])
        device = devices - 1 if is_special else ordinary
        ordinary += not is_special
        found.append(PipelineStage(first, last, device))
        first, label = last + 1, int(labels[label, rows.PARENT])
    return tuple(found)
