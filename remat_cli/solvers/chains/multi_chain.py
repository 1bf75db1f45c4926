"""Fewest forwards that reverse several branches of equal layers meeting in a loss (Shilova 2021, ch. 1).

The model is that of `revolve`; counts are of forwards only, as there. A set of branches is a bit mask.
`wanted` are the branches whose input gradient must be kept when they are finished (b = 1 in the thesis).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remat_cli.solvers._kernel import compiled
from remat_cli.solvers.chains.revolve import LOSS, NEVER, SlotAction, forward_table, keep_and_advance, reverse


@dataclass(frozen=True)
class SlotTable:
    """Least forwards that reverse all branches in m slots, `counts[m]`; the last m is enough to repeat none.

    `choose(left, wanted, slots)` is how a sequence of so many begins: the branch to finish last and how far to go on
    it, where `left` layers have not been passed.
    """

    lengths: tuple[int, ...]
    wanted: int
    single: NDArray[np.int64]
    counts: NDArray[Any]
    choose: Callable[[Sequence[int], int, int], tuple[int, int]]

    @property
    def most_slots(self) -> int:
        """More slots than this save nothing."""
        return len(self.counts) - 1

    def forwards(self, slots: int) -> int | None:
        """Fewest forwards within that many slots; None where they are too few."""
        count = int(self.counts[min(slots, self.most_slots)])
        return count if slots >= 0 and count < NEVER else None

    def actions(self, slots: int) -> Iterator[SlotAction]:
        """The operations of an optimal sequence; of several best first choices the first branch, the fewest layers."""
        slots = min(slots, self.most_slots)
        left, wanted = list(self.lengths), self.wanted
        finishing = []
        # Down to the loss, then back up.
        while any(left):
            branch, step = self.choose(left, wanted, slots)
            base = self.lengths[branch] - left[branch]
            yield from keep_and_advance(branch, base, step)
            finishing.append((branch, base, step, slots, wanted))
            left[branch] -= step
            wanted |= 1 << branch
            slots -= 1
        yield LOSS
        for branch, length in enumerate(self.lengths):
            if length == 0 and not wanted >> branch & 1:
                yield SlotAction("drop", branch)
        for branch, base, step, room, before in reversed(finishing):
            yield from reverse(self.single, step, _room(room, before, branch), branch, base)
            if not before >> branch & 1:
                yield SlotAction("drop", branch)


def fewest_slots(lengths: Sequence[int], wanted: int = 0) -> int:
    """m_min: no sequence has fewer slots, and one has as many."""
    least = len(lengths) + sum(length > 0 for length in lengths)
    is_spare = any(length == 1 or (length == 0 and not wanted >> branch & 1) for branch, length in enumerate(lengths))
    return least if is_spare or not any(lengths) else least + 1


def table_work(lengths: Sequence[int]) -> int:
    """How many steps `join_table` takes, for those who would rather not."""
    cells = prod(length + 1 for length in lengths) << len(lengths)
    return cells * sum(lengths) * (sum(lengths) + len(lengths)) // 2


def join_table(lengths: Sequence[int], masks: Iterable[int] = (0,)) -> list[SlotTable]:
    """The table as each set of wanted gradients sees it, filled once with the thesis' recurrence.

    Opt(L, m, b) = min over k with L_k > 0 and 1 <= i <= L_k of
        i + Opt(L with L_k - i, m - 1, b with b_k = 1) + Opt0(i - 1, m - sum of the other b)

    Branch k is finished last: keep its input, go on i layers, solve what is left, reverse the i layers in all memory
    that is free then. O(m K (2L)^(K+1)); `table_work` says how much that is. Of `counts[mask, cell, m]` the cell
    numbers the rests of all branches, `apart[k]` apart per layer of branch k.
    """
    slots = sum(lengths) + len(lengths)
    shape = np.array(lengths, dtype=np.int64)
    apart = [prod(length + 1 for length in lengths[k + 1 :]) for k in range(len(lengths))]
    single = forward_table(max(lengths, default=0), slots)
    counts = np.full((1 << len(lengths), prod(length + 1 for length in lengths), slots + 1), NEVER, dtype=np.int32)
    _fill(counts, single.astype(np.int32), shape, np.array(apart, dtype=np.int64))

    def choose(left: Sequence[int], wanted: int, slots: int) -> tuple[int, int]:
        cell = sum(layers * stride for layers, stride in zip(left, apart, strict=True))
        goal = counts[wanted, cell, slots]
        for branch, stride in enumerate(apart):
            room = _room(slots, wanted, branch)
            for step in range(1, left[branch] + 1):
                rest = counts[wanted | 1 << branch, cell - step * stride, slots - 1]
                if room >= 2 and step + int(rest) + int(single[step - 1, room]) == goal:
                    return branch, step
        raise ValueError(f"{slots} slots are too few for branches of {left} layers")

    return [SlotTable(tuple(lengths), mask, single, counts[mask, -1], choose) for mask in masks]


@compiled
def _fill(counts: Any, single: Any, lengths: Any, strides: Any) -> None:  # pragma: no cover
    """Masks from all branches down to none, cells upwards: each entry reads only larger masks or smaller cells."""
    masks, cells, width = counts.shape
    branches = len(lengths)
    for mask in range(masks - 1, -1, -1):
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


def ordered_table(order: Sequence[int], branches: int, wanted: int) -> SlotTable:
    """The same where the backwards of all branches have a fixed order, which names the branch of each.

    O(m n^2) for n backwards, whatever the number of branches. `counts[t, m]` are the least forwards for the first t
    backwards in m slots; `runs[t]` is how many of their last are of one branch.
    """
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

    def choose(left: Sequence[int], wanted: int, slots: int) -> tuple[int, int]:
        done = sum(left)
        branch = order[done - 1]
        steps = np.arange(1, runs[done] + 1)
        back = single[steps - 1, _room(slots, wanted, branch)]
        return branch, 1 + int(np.argmin(steps + counts[done - steps, slots - 1] + back))

    return SlotTable(lengths, wanted, single, counts[-1], choose)


def _room(slots: int, wanted: int, branch: int) -> int:
    """What is left for one branch when the gradients of the others are kept."""
    return slots - (wanted & ~(1 << branch)).bit_count()
