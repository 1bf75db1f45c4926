"""COMM: which kept values of a chain to page, each whole, bytes free as they go (Shilova 2021, Algorithm 5, corrected).

Optimal among schedules that end all writes before the first read. O(n) steps over states of which none is as good as
another in every respect; where these are too many, sizes and times are rounded to slots.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from remat_cli.solvers.published._pofo.paged_chain import PagedChain, PagedState

MOST_STATES = 20_000  # before a stage: a second or two to go through
SLOTS = 500  # as in the source


@dataclass(frozen=True)
class PagedSet:
    """Stages whose values are paged, and the makespan in ticks that the program promises."""

    ticks: int
    stages: tuple[int, ...]


@dataclass(frozen=True)
class _Reached:
    """A state before a stage, what it took to get there, and the values paged (bits)."""

    ticks: int
    state: PagedState
    paged: int


class TooManyStates(Exception):
    """The exact program would take too long."""


def comm(chain: PagedChain) -> PagedSet | None:
    """The optimum and a set of values that reaches it; None where the budget is below the least.

    Raises:
        TooManyStates: there are more than `MOST_STATES` before some stage; ask for `comm_sets`, which rounds.
    """
    return next(iter(_ends(chain)), None)


def comm_simple_gap(chain: PagedChain) -> int | None:
    """The same where all transfers pause at the loss: never better."""
    return next((found.ticks for found in _ends(chain, is_clipped=True)), None)


def comm_sets(chain: PagedChain, most: int = 8) -> list[PagedSet]:
    """The best sets, at most so many, the best first, with exact makespans even where the program had to round."""
    try:
        return _ends(chain)[:most]
    except TooManyStates:
        return list(_rounded_sets(chain, most))


def _ends(chain: PagedChain, is_clipped: bool = False) -> list[PagedSet]:
    """Every end state worth keeping, the best first."""
    least = chain.follow_set(chain.greedy_set())
    if least is None:
        return []
    reached = [_Reached(0, PagedState(), 0)]
    rest = chain.compute_ticks
    for stage in range(1, chain.stages + 1):
        rest -= chain.forward_ticks[stage] + chain.backward_ticks[stage]
        size, after = chain.kept_bytes[stage - 1], []
        for before in reached:
            for off in (0, size) if size else (0,):
                passed = chain.step(stage, before.state, off)
                # with pauses even the best may take longer than GREEDY without
                if passed is not None and (is_clipped or before.ticks + passed[1] + rest <= least):
                    state, cost = passed
                    if is_clipped:
                        state = PagedState(state.kept, max(0, state.unwritten), max(0, state.unread))
                    paged = before.paged | (1 << stage - 1 if off else 0)
                    after.append(_Reached(before.ticks + cost, state, paged))
        reached = _undominated(after)
        if len(reached) > MOST_STATES:
            raise TooManyStates
    best: dict[int, int] = {}
    for each in reached:
        total = each.ticks + chain.gap(each.state)
        best[each.paged] = min(total, best.get(each.paged, total))
    stages = range(chain.stages)
    found = [PagedSet(ticks, tuple(k for k in stages if paged >> k & 1)) for paged, ticks in best.items()]
    return sorted(found, key=lambda each: (each.ticks, each.stages))


def _undominated(states: list[_Reached]) -> list[_Reached]:
    """Without those that another is as good as: what it keeps is no more, and idle time buys off its backlogs."""
    states.sort(key=lambda each: (each.ticks, each.state))
    kept: list[_Reached] = []
    figures = np.empty((4, len(states)), dtype=np.int64)
    for each in states:
        row = np.array((each.ticks, *each.state), dtype=np.int64)
        known = figures[:, : len(kept)]
        behind = np.maximum(known[2:] - row[2:, None], 0).sum(axis=0)
        if not ((known[1] <= row[1]) & (known[0] + behind <= row[0])).any():
            figures[:, len(kept)] = row
            kept.append(each)
    return kept


def _rounded_sets(chain: PagedChain, most: int) -> Iterator[PagedSet]:
    """Sets that the program finds in slots, and GREEDY's, with what they really take.

    Where none of them fits in bytes, a value that was rounded down is raised, and the program runs again.
    """
    slots, found = SLOTS, {chain.greedy_set()}
    sizes = _summed_up(chain, slots)
    while True:
        try:
            ends = _ends(_slotted(chain, slots, sizes))
        except TooManyStates:
            slots //= 2
            sizes = _summed_up(chain, slots)
            continue
        found.update(end.stages for end in ends)
        # A slot more for the value that is nearest above its own; None where all are rounded up.
        unit = _slot_bytes(chain, slots)
        short = [(size - sizes[k] * unit, k) for k, size in enumerate(chain.kept_bytes[:-1]) if sizes[k] * unit < size]
        if not short:
            raised = None
        else:
            _, nearest = min(short)
            raised = [slots + (k == nearest) for k, slots in enumerate(sizes)]
        if raised is None or any(chain.follow_set(end.stages) is not None for end in ends):
            break
        sizes = raised
    exact = [(chain.follow_set(stages), stages) for stages in found]
    fitting = [PagedSet(ticks, stages) for ticks, stages in exact if ticks is not None]
    yield from sorted(fitting, key=lambda each: (each.ticks, each.stages))[:most]


def _slot_bytes(chain: PagedChain, slots: int) -> int:
    return max(1, -(-chain.budget_bytes // slots))


def _summed_up(chain: PagedChain, slots: int) -> list[int]:
    """Kept values in slots: sums of the first ones rounded up, and their differences."""
    unit = _slot_bytes(chain, slots)
    sums = [-(-held // unit) for held in accumulate(chain.kept_bytes)]
    return [after - before for before, after in pairwise([0, *sums])]


def _slotted(chain: PagedChain, slots: int, sizes: list[int]) -> PagedChain:
    """Sizes in whole slots; a stage hides the slots that the sum of times so far completes."""
    unit, figures = _slot_bytes(chain, slots), chain.chain

    def up(row: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(-(-size // unit) * unit for size in row)

    rounded = replace(
        figures,
        value_bytes=(sizes[0] * unit, *figures.value_bytes[1:]),
        saved_bytes=tuple(size * unit for size in sizes),
        gradient_bytes=up(figures.gradient_bytes),
        saving_extra_bytes=up(figures.saving_extra_bytes),
        backward_extra_bytes=up(figures.backward_extra_bytes),
    )
    hidden = (
        _hidden(chain.forward_ticks, unit * chain.link.write_ticks),
        _hidden(chain.backward_ticks, unit * chain.link.read_ticks),
    )
    return PagedChain(rounded, chain.budget_bytes // unit * unit, chain.link, hidden)


def _hidden(ticks: tuple[int, ...], unit: int) -> tuple[int, ...]:
    """Times in whole slots: sums of the first ones rounded down, and their differences."""
    sums = [total // unit * unit for total in accumulate(ticks)]
    return tuple(after - before for before, after in pairwise([0, *sums]))
