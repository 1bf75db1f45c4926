"""POFO's tables where bytes come in quanta: figures for the compiled loops, and entries by the questions of `pofo`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from remat_cli.base.errors import ModelError
from remat_cli.solvers.base import never
from remat_cli.solvers.published._pofo import pofo_kernels as kernels
from remat_cli.solvers.published._pofo.pofo_kernels import Ints, PofoNet

LARGEST_TABLE = 2**30
ENTRY_BYTES = 8


@dataclass(frozen=True)
class PofoFigures:
    """A chain as `pofo` reads it, by stage, entry 0 the chain's input: times in ticks, bytes in whole quanta.

    `write` and `read` are ticks per byte; `last` is where a run of the forward sweep may end at the latest.
    """

    budget: int
    quantum: int
    write: int
    read: int
    last: int
    may_page: bool
    forward_ticks: Sequence[int]
    backward_ticks: Sequence[int]
    whole_bytes: Sequence[int]
    value_bytes: Sequence[int]
    gradient_bytes: Sequence[int]
    bare_extra: Sequence[int]
    save_need: Sequence[int]
    back_need: Sequence[int]

    @property
    def stages(self) -> int:
        """How many stages there are, the loss among them."""
        return len(self.forward_ticks) - 1

    @property
    def slots(self) -> int:
        """Quanta of the budget."""
        return self.budget // self.quantum


@dataclass(frozen=True)
class PofoTables:
    """C and OC for every number of quanta."""

    figures: PofoFigures
    blocks: Ints
    forwards: Ints

    def block(self, s: int, t: int, kept: int, backlog: int) -> int:
        """Ticks of a block; `backlog` in ticks."""
        quantum = self.figures.quantum
        row = kernels.row_of(self.figures.stages, s, t)
        return int(self.blocks[row, kept // quantum, backlog // (quantum * self.figures.read)])

    def forward(self, is_whole: bool, s: int, kept: int, backlogs: tuple[int, int]) -> int:
        """Ticks of everything from a stage on; backlogs of writes and reads in ticks."""
        quantum, (out, back) = self.figures.quantum, backlogs
        place = kept // quantum, out // (quantum * self.figures.write), back // (quantum * self.figures.read)
        return int(self.forwards[int(is_whole), s, *place])


def table_bytes(stages: int, slots: int) -> int:
    """What tables of so many stages and slots take."""
    width = slots + 1
    return (stages * (stages + 1) // 2 * width**2 + 2 * (stages + 1) * width**3) * ENTRY_BYTES


def can_add_up(ticks: int, stages: int) -> bool:
    """Whether sums of all times of a chain, and of what it takes to move all that it may hold, fit the entries."""
    return ticks * (stages + 1) ** 2 < kernels.NEVER


def fill_tables(figures: PofoFigures, is_over: Callable[[], bool] = never) -> PofoTables | None:
    """Both tables. O(n^3 S^2) and O(n^2 S^3) for n stages and S slots; None when it was over before, seen each stage.

    Raises:
        ModelError: the tables are too large, or times do not fit their entries.
    """
    stages, slots = figures.stages, figures.slots
    if (size := table_bytes(stages, slots)) > LARGEST_TABLE:
        most = f"more than {LARGEST_TABLE >> 20} MiB: fewer slots take less"
        raise ModelError(f"POFO's tables for {stages} stages and {slots} slots take {size >> 20} MiB, {most}")
    work = sum(figures.forward_ticks) + sum(figures.backward_ticks)
    moved = figures.budget * (figures.write + figures.read)
    if not can_add_up(work + moved, stages):
        raise ModelError(
            f"POFO's tables cannot add up times of {work} ticks; give the link a bandwidth in fewer digits"
        )
    net = _net(figures)
    width = slots + 1
    blocks = np.empty((stages * (stages + 1) // 2, width, width), dtype=np.int64)
    forwards = np.full((2, stages + 1, width, width, width), kernels.NEVER, dtype=np.int64)
    spare = np.empty((2, width), dtype=np.int64)
    for stage in range(stages, 0, -1):
        if is_over():
            return None
        kernels.fill_blocks(net, blocks, stage)
        kernels.fill_forwards(net, blocks, forwards, stage, spare)
    return PofoTables(figures, blocks, forwards)


def _net(figures: PofoFigures) -> PofoNet:
    quantum, stages = figures.quantum, figures.stages
    rows = [
        np.cumsum(figures.forward_ticks),
        figures.backward_ticks,
        *(
            [size // quantum for size in row]
            for row in (
                figures.whole_bytes,
                figures.value_bytes,
                figures.gradient_bytes,
                figures.back_need,
                figures.save_need,
            )
        ),
    ]
    write, read = quantum * figures.write, quantum * figures.read
    most, last, late, early = (np.zeros((stages + 1, stages + 1), dtype=np.int64) for _ in range(4))
    for s in range(1, stages + 1):
        high, behind, ahead, passed = 0, 0, 0, 0
        for k in range(s, stages + 1):
            need = figures.value_bytes[k] + figures.bare_extra[k] + (0 if k == s else figures.value_bytes[k - 1])
            need //= quantum
            high, behind = max(high, need), max(behind - figures.forward_ticks[k], need * read)
            ahead = max(ahead, need * write - passed)
            passed += figures.forward_ticks[k]
            most[s, k], last[s, k], late[s, k], early[s, k] = high, need, behind, ahead
    units = np.array([write, read, figures.last, figures.may_page], dtype=np.int64)
    return PofoNet(np.array(rows, dtype=np.int64), most, last, late, early, units)
