"""Fewest forwards that reverse several branches of equal layers meeting in a loss (Shilova 2021, ch. 1).

The model is that of `revolve`; counts are of forwards only, as there. A set of branches is a bit mask.
`wanted` are the branches whose input gradient must be kept when they are finished (b = 1 in the thesis).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numba
import numpy as np
from numpy.typing import NDArray

from remat_cli.solvers._chains.revolve import LOSS, NEVER, SlotAction, forward_table, keep_and_advance, reverse


@dataclass(frozen=True)
class JoinTable:
    """Least forwards for every rest of the branches, number of slots and superset of `wanted`.

    `counts[mask, cell, m]`: `cell` numbers the rests of all branches, `strides[k]` apart per layer of branch k. The
    last m is enough for no forward to be repeated.
    """

    lengths: tuple[int, ...]
    wanted: int
    strides: tuple[int, ...]
    single: NDArray[np.int64]
    counts: NDArray[np.int32]

    @property
    def most_slots(self) -> int:
        """More slots than this save nothing."""
        return sum(self.lengths) + len(self.lengths)

    def for_wanted(self, wanted: int) -> JoinTable:
        """The same table asked for a superset of the wanted gradients it was filled for."""
        return replace(self, wanted=wanted)

    def forwards(self, slots: int) -> int | None:
        """Fewest forwards within that many slots; None where they are too few."""
        count = int(self.counts[self.wanted, -1, min(slots, self.most_slots)])
        return count if slots >= 0 and count < NEVER else None

    def actions(self, slots: int) -> Iterator[SlotAction]:
        """The operations of an optimal sequence; of several best first choices the first branch, the fewest layers."""
        return _play(self, self.single, self.wanted, min(slots, self.most_slots))

    def choose(self, left: Sequence[int], wanted: int, slots: int) -> tuple[int, int]:
        """The branch to finish last and how far to go on it, where `left` layers have not been passed."""
        cell = sum(layers * stride for layers, stride in zip(left, self.strides, strict=True))
        goal = self.counts[wanted, cell, slots]
        for branch, stride in enumerate(self.strides):
            room = _room(slots, wanted, branch)
            for step in range(1, left[branch] + 1):
                rest = self.counts[wanted | 1 << branch, cell - step * stride, slots - 1]
                if room >= 2 and step + int(rest) + int(self.single[step - 1, room]) == goal:
                    return branch, step
        raise ValueError(f"{slots} slots are too few for branches of {left} layers")


@dataclass(frozen=True)
class OrderedTable:
    """The same where the backwards of all branches have a fixed order: `order` names the branch of each.

    `counts[t, m]` are the least forwards for the first t backwards in m slots; `runs[t]` is how many of their last are
    of one branch.
    """

    lengths: tuple[int, ...]
    wanted: int
    order: tuple[int, ...]
    single: NDArray[np.int64]
    runs: tuple[int, ...]
    counts: NDArray[np.int64]

    @property
    def most_slots(self) -> int:
        """More slots than this save nothing."""
        return len(self.order) + len(self.lengths)

    def forwards(self, slots: int) -> int | None:
        """Fewest forwards within that many slots; None where they are too few."""
        count = int(self.counts[-1, min(slots, self.most_slots)])
        return count if slots >= 0 and count < NEVER else None

    def actions(self, slots: int) -> Iterator[SlotAction]:
        """The operations of an optimal sequence in that order."""
        return _play(self, self.single, self.wanted, min(slots, self.most_slots))

    def choose(self, left: Sequence[int], wanted: int, slots: int) -> tuple[int, int]:
        """As for any order, but the branch is that of the last backward."""
        done = sum(left)
        branch = self.order[done - 1]
        room = _room(slots, wanted, branch)
        steps = np.arange(1, self.runs[done] + 1)
        return branch, 1 + int(np.argmin(steps + self.counts[done - steps, slots - 1] + self.single[steps - 1, room]))


def fewest_slots(lengths: Sequence[int], wanted: int = 0) -> int:
    """m_min: no sequence has fewer slots, and one has as many."""
    least = len(lengths) + sum(length > 0 for length in lengths)
    is_spare = any(length == 1 or (length == 0 and not wanted >> branch & 1) for branch, length in enumerate(lengths))
    return least if is_spare or not any(lengths) else least + 1


def table_work(lengths: Sequence[int]) -> int:
    """How many steps `join_table` takes, for those who would rather not."""
    cells = prod(length + 1 for length in lengths) << len(lengths)
    return cells * sum(lengths) * (sum(lengths) + len(lengths)) // 2


def join_table(lengths: Sequence[int], wanted: int = 0) -> JoinTable:
    """Fill the table with the thesis' recurrence, each entry once.

    Opt(L, m, b) = min over k with L_k > 0 and 1 <= i <= L_k of
        i + Opt(L with L_k - i, m - 1, b with b_k = 1) + Opt0(i - 1, m - sum of the other b)

    Branch k is finished last: keep its input, go on i layers, solve what is left, reverse the i layers in all memory
    that is free then. O(m K (2L)^(K+1)); `table_work` says how much that is.
    """
    slots = sum(lengths) + len(lengths)
    shape = np.array(lengths, dtype=np.int64)
    strides = np.array([prod(length + 1 for length in lengths[k + 1 :]) for k in range(len(lengths))], dtype=np.int64)
    single = forward_table(max(lengths, default=0), slots)
    counts = np.full((1 << len(lengths), prod(length + 1 for length in lengths), slots + 1), NEVER, dtype=np.int32)
    _fill(counts, single.astype(np.int32), shape, strides, wanted)
    return JoinTable(tuple(lengths), wanted, tuple(int(stride) for stride in strides), single, counts)


@numba.njit(cache=True)
def _fill(counts, single, lengths, strides, wanted):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Masks from all branches down to `wanted`, cells upwards: each entry reads only larger masks or smaller cells."""
    masks, cells, width = counts.shape
    branches = len(lengths)
    for mask in range(masks - 1, -1, -1):
        if mask & wanted != wanted:
            continue
        counts[mask, 0, branches:] = 0
        for cell in range(1, cells):
            entry = counts[mask, cell]
            for k in range(branches):
                others = 0
                for j in range(branches):
                    if j != k:
                        others += mask >> j & 1
                left = cell // strides[k] % (lengths[k] + 1)
                for i in range(1, left + 1):
                    rest = counts[mask | 1 << k, cell - i * strides[k]]
                    back = single[i - 1]
                    for m in range(others + 2, width):
                        entry[m] = min(entry[m], i + rest[m - 1] + back[m - others])


def ordered_table(order: Sequence[int], branches: int, wanted: int = 0) -> OrderedTable:
    """Fill the table of a fixed order in O(m n^2) for n backwards, whatever the number of branches."""
    lengths = tuple(order.count(branch) for branch in range(branches))
    slots = len(order) + branches
    single = forward_table(max(lengths, default=0), slots)
    counts = np.full((len(order) + 1, slots + 1), NEVER, dtype=np.int64)
    counts[0, branches:] = 0
    runs = [0]
    for done, branch in enumerate(order, 1):
        runs.append(runs[-1] + 1 if done > 1 and order[done - 2] == branch else 1)
        mask = wanted
        for later in order[done:]:
            mask |= 1 << later
        first = slots - _room(slots, mask, branch) + 2
        for step in range(1, runs[done] + 1):
            count = step + counts[done - step, first - 1 : -1] + single[step - 1, 2 : slots - first + 3]
            counts[done, first:] = np.minimum(counts[done, first:], count)
    return OrderedTable(lengths, wanted, tuple(order), single, tuple(runs), counts)


def _room(slots: int, wanted: int, branch: int) -> int:
    """What is left for one branch when the gradients of the others are kept."""
    return slots - (wanted & ~(1 << branch)).bit_count()


def _play(table: JoinTable | OrderedTable, single: NDArray[np.int64], wanted: int, slots: int) -> Iterator[SlotAction]:
    """Read a sequence off a table: down to the loss, then back up."""
    left = list(table.lengths)
    finishing = []
    while any(left):
        branch, step = table.choose(left, wanted, slots)
        base = table.lengths[branch] - left[branch]
        yield from keep_and_advance(branch, base, step)
        finishing.append((branch, base, step, slots, wanted))
        left[branch] -= step
        wanted |= 1 << branch
        slots -= 1
    yield LOSS
    for branch, length in enumerate(table.lengths):
        if length == 0 and not wanted >> branch & 1:
            yield SlotAction("drop", branch)
    for branch, base, step, room, before in reversed(finishing):
        yield from reverse(single, step, _room(room, before, branch), branch, base)
        if not before >> branch & 1:
            yield SlotAction("drop", branch)
