"""1F1B*: the least memory of a contiguous allocation for a period, and its best period within a memory.

Stages stay blocks: all forwards of a stage, later all its backwards. Layers that run apart may do better.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from remat_cli.base.errors import InputError
from remat_cli.pipelines.plan.chain import MemoryModel, PeriodicSchedule, PipelineChain
from remat_cli.pipelines.solve.memory import StageFigures


@dataclass(frozen=True)
class Grouping:
    """1F1B* of a chain of items (stages and links in turn): groups, and starts of the first mini-batch.

    The group of an item is how many mini-batches are alive in it.
    """

    period: int
    groups: tuple[int, ...]
    forward_starts: tuple[int, ...]
    backward_starts: tuple[int, ...]


@dataclass(frozen=True)
class ContiguousPlan:
    """A contiguous allocation with its best period: last layer of each stage, and mini-batches alive in it (NCA)."""

    period: int
    cuts: tuple[int, ...]
    alive: tuple[int, ...]


def onef1b_star(items: Sequence[tuple[int, int]], period: int) -> Grouping:
    """The schedule of blocks with the fewest live mini-batches in every item at once (Shilova 2021, 1F1B*).

    Args:
        items: forward and backward time of each.
        period: at least the load of every item.

    Raises:
        InputError: the period is below the load of an item.
    """
    largest = max(forward + backward for forward, backward in items)
    if period < largest:
        raise InputError(f"a period of {period} is below the largest load, {largest}; ask for at least that")
    groups = _groups(items, period)
    forwards = [0, *accumulate(forward for forward, _ in items)][:-1]
    backwards = [0] * len(items)
    now = 0
    for s in reversed(range(len(items))):
        if s == len(items) - 1 or groups[s] != groups[s + 1]:
            now = forwards[s] + items[s][0] + (groups[s] - 1) * period
        backwards[s] = now
        now += items[s][1]
    return Grouping(period, tuple(groups), tuple(forwards), tuple(backwards))


def _groups(items: Sequence[tuple[int, int]], period: int) -> list[int]:
    groups = [0] * len(items)
    group, filled = 1, 0
    for s in reversed(range(len(items))):
        load = sum(items[s])
        if filled + load > period:
            group, filled = group + 1, 0
        filled += load
        groups[s] = group
    return groups


def items_of(chain: PipelineChain, cuts: Sequence[int]) -> list[tuple[int, int]]:
    """Stage, link, stage, .., stage: times of each; a link is a stage whose both ways take one transfer.

    Raises:
        InputError: the cuts do not rise to the last layer.
    """
    bounds = (0, *cuts)
    if list(bounds) != sorted(set(bounds)) or bounds[-1] != chain.layers:
        raise InputError(f"cuts {list(cuts)} must rise and end at layer {chain.layers}, each the last of its stage")
    items: list[tuple[int, int]] = []
    for before, last in pairwise(bounds):
        if before:
            takes = chain.transfers[before - 1]
            items.append((takes, takes if chain.has_gradients else 0))
        items.append((sum(chain.forward[before:last]), sum(chain.backward[before:last])))
    return items


def candidate_periods(items: Sequence[tuple[int, int]]) -> list[int]:
    """All at which groups can change: sums of neighbouring loads, none below the largest load; ascending."""
    sums = [0, *accumulate(map(sum, items))]
    largest = max(map(sum, items))
    found = {after - before for x, before in enumerate(sums) for after in sums[x + 1 :]}
    return sorted(period for period in found if period >= max(largest, 1))


def stage_bytes(
    chain: PipelineChain, cuts: Sequence[int], alive: Sequence[int], model: MemoryModel = "buf"
) -> list[int]:
    """What each stage takes with so many mini-batches alive in it."""
    figures = StageFigures(chain)
    firsts = [1, *(cut + 1 for cut in cuts[:-1])]
    return [figures.bytes(i, j, g, model) for i, j, g in zip(firsts, cuts, alive, strict=True)]


def best_period(
    chain: PipelineChain, cuts: Sequence[int], memory: int, model: MemoryModel = "buf"
) -> ContiguousPlan | None:
    """The least period of a fixed contiguous allocation within a memory per device; none: there is none.

    Exact: groups change only where a period crosses a sum of neighbouring loads, and needs fall as it grows.
    """
    items = items_of(chain, cuts)
    periods = candidate_periods(items) or [1]

    def fits(period: int) -> bool:
        return max(stage_bytes(chain, cuts, _groups(items, period)[::2], model)) <= memory

    at = bisect_left(periods, True, key=fits)
    if at == len(periods):
        return None
    return ContiguousPlan(periods[at], tuple(cuts), tuple(_groups(items, periods[at])[::2]))


def contiguous_schedule(chain: PipelineChain, cuts: Sequence[int], period: int) -> PeriodicSchedule:
    """1F1B* of these cuts layer by layer, stage s on device s."""
    grouping = onef1b_star(items_of(chain, cuts), period)
    owners = [stage for stage, last in enumerate(cuts) for _ in range(last - (cuts[stage - 1] if stage else 0))]
    forwards: list[int] = []
    backwards: list[int] = []
    for stage, last in enumerate(cuts):
        first = cuts[stage - 1] if stage else 0
        forwards += accumulate(chain.forward[first : last - 1], initial=grouping.forward_starts[2 * stage])
        after = accumulate(reversed(chain.backward[first + 1 : last]), initial=grouping.backward_starts[2 * stage])
        backwards += reversed(list(after))
    moves: list[int | None] = [None] * (2 * chain.layers - 1)
    for link, cut in enumerate(cuts[:-1]):
        moves[cut - 1] = grouping.forward_starts[2 * link + 1]
        moves[2 * chain.layers - cut - 1] = grouping.backward_starts[2 * link + 1]
    return PeriodicSchedule(period, tuple(owners), ((*forwards, *reversed(backwards)),), (tuple(moves),))
