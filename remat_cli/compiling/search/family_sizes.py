"""At which sizes a model compiled for many is looked at: the ends, where the number of tiles changes, and between."""

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence

from remat_cli.base.present import present
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.schedule.splits import Splitting
from remat_cli.core.values.sizes import SizeFamily, SizeRange

MOST_SIZES = 16
STEPS = 3  # places where the number of tiles changes


def sizes_to_check(plan: PlanFile, ends: Sequence[Mapping[str, int]] = ()) -> list[dict[str, int]]:
    """All named dimensions of some sizes of the plan's family, those that it was made for first.

    The others follow in an order that neither rises nor falls; the other corners are among them. `ends` are the largest
    sizes at which a machine is known to run the original, and smaller ones than the plan's at which it does not, if it
    does not at all: these are among them too, and some between.
    """
    family = present(plan.request.family, "the sizes of a plan for many")
    rows = tuple(sorted(rows_of(plan.splitting)))
    chosen = random.Random(0)
    between = [
        {**high, **{each.name: each.up_from((low[each.name] + high[each.name]) // 2) for each in family.ranges}}
        for low, high in itertools.pairwise([*ends, plan.request.dims] if ends else ())
    ]
    found = [
        dict(plan.request.dims),
        *map(dict, ends),
        *between,
        *({**plan.request.dims, **corner} for corner in family.corners),
    ]
    found += [{**plan.request.dims, **sizes} for sizes in _at_bounds(plan, family)]
    found += [{**plan.request.dims, **sizes} for sizes in _around(family, rows, chosen)]
    distinct = list({tuple(sorted(sizes.items())): sizes for sizes in found if family.admits(sizes)}.values())
    largest, *kept = distinct[:MOST_SIZES]
    chosen.shuffle(kept)
    return [largest, *kept]


def _at_bounds(plan: PlanFile, family: SizeFamily) -> Iterator[dict[str, int]]:
    """The largest sizes for which something is made whole, and larger ones, for which it is not."""
    known = {} if plan.promise.family is None else plan.promise.family.dims
    longest = _longest(family.ranges)
    for bound in dict.fromkeys(dim.within for dims in known.values() for dim in dims if dim.within is not None):
        for corner in family.corners_within(bound):
            yield corner
            yield {**corner, longest.name: longest.up_from(corner[longest.name] + 1)}


def rising_and_falling(all_sizes: Sequence[Mapping[str, int]]) -> list[int]:
    """Places of a small size, the largest, one in the middle, a large one and the least, in this order."""
    rising = sorted(range(len(all_sizes)), key=lambda at: math.prod(all_sizes[at].values()))
    last = len(rising) - 1
    return list(dict.fromkeys(rising[at] for at in (last // 4, last, last // 2, 3 * last // 4, 0)))


def rows_of(splitting: Splitting | None) -> set[int]:
    """How many positions the longest tiles of each region have at the largest size."""
    if splitting is None:
        return set()
    return {-(-fact.extent // region.tiles) for region, fact in zip(splitting.regions, splitting.facts, strict=True)}


def _around(family: SizeFamily, rows: tuple[int, ...], chosen: random.Random) -> Iterator[dict[str, int]]:
    ranges = family.ranges
    yield family.least
    for step in range(1, STEPS + 1):
        for beside in (SizeRange.down_from, lambda each, size: each.up_from(size + 1)):
            for longest in rows[:2]:
                yield {
                    each.name: beside(each, longest * step) if each is _longest(ranges) else each.low for each in ranges
                }
    # Small sizes as often as large ones.
    lows = [max(1, each.low) for each in ranges]
    for _ in range(MOST_SIZES):
        yield {
            each.name: each.down_from(round(low * (each.high / low) ** chosen.random()))
            for each, low in zip(ranges, lows, strict=True)
        }


def _longest(ranges: tuple[SizeRange, ...]) -> SizeRange:
    return max(ranges, key=lambda each: each.high)
