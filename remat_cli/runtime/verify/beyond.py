"""What outputs are compared with where the machine cannot run the original at all sizes: the original, then a twin.

The original runs at all sizes within those at which it is known to, in one session, and at others that may be small
enough in a process each. Where it fails for want of memory, the same model in other tiles stands in for it.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from remat_cli.base.errors import RuntimeFailure
from remat_cli.base.processes import memory_limited, spare_memory_bytes
from remat_cli.core.values.family import ComparedWith, SizeSeen
from remat_cli.runtime.measure.turns import OutputPrint
from remat_cli.runtime.sessions._ort import Advance
from remat_cli.runtime.sessions.error_text import lacks_memory
from remat_cli.runtime.sessions.feeds import Feeds
from remat_cli.runtime.sessions.session import SessionSettings
from remat_cli.runtime.verify.family import AtSizes, see_at_sizes
from remat_cli.runtime.verify.verify_request import Beyond, ManySizes


@dataclass(frozen=True)
class Wanted:
    """The outputs that a run at some sizes must have, and whose they are; `peak_bytes` is the most that was held."""

    prints: tuple[OutputPrint, ...]
    peak_bytes: int
    compared_with: ComparedWith


@dataclass(frozen=True)
class Compared:
    """What was found to compare with, by the place of the sizes; what is not there was compared with nothing.

    `first` is the session of the original, which began at the sizes of the place `timed`.
    """

    first: AtSizes
    timed: int
    wanted: Mapping[int, Wanted]

    def rows(self, all_sizes: Sequence[Mapping[str, int]], ours: AtSizes) -> tuple[SizeSeen, ...]:
        """What each size showed of both."""
        rows = []
        for place, sizes in enumerate(all_sizes):
            wanted = self.wanted.get(place)
            row = SizeSeen(
                dict(sizes),
                None if wanted is None else wanted.prints == ours.figures.prints[place],
                ours.peak_bytes[place],
                None if wanted is None or wanted.compared_with != "original" else wanted.peak_bytes,
                ours.is_in_order[place],
                None if wanted is None else wanted.compared_with,
            )
            rows.append(row)
        return tuple(rows)


def find_compared(
    many: ManySizes,
    beyond: Beyond,
    feeds: Sequence[Feeds],
    settings: Callable[[bool], SessionSettings],
    advance: Advance,
) -> Compared:
    """Run the original at all sizes that it runs at here, and its twin, if there is one, at the others.

    `settings` are those of exact sessions (True) and of default ones.

    Raises:
        RuntimeFailure: the runtime fails to run one of them, though not for want of memory.
    """
    sizes = many.all_sizes
    within = [place for place in range(len(sizes)) if _is_within(sizes[place], beyond.runnable)]
    timed = next((place for place in within if sizes[place] == beyond.runnable), within[0])
    places = [timed, *(place for place in within if place != timed)]
    first = see_at_sizes(many.original, [feeds[place] for place in places], settings(False), advance)
    wanted = _wanted(places, first, "original")
    failed, left = [beyond.failed], list[int]()
    for place in sorted(set(range(len(sizes))) - set(within), key=lambda place: sum(sizes[place].values())):
        if any(_is_within(other, sizes[place]) for other in failed):
            left.append(place)
            continue
        with unless_memory_lacks(), memory_limited(spare_memory_bytes()):
            found = see_at_sizes(many.original, [feeds[place]], settings(False), advance)
            wanted |= _wanted([place], found, "original")
            continue
        failed.append(sizes[place])
        left.append(place)
    if beyond.twin is not None and left:
        with unless_memory_lacks(), memory_limited(spare_memory_bytes()):
            twin = see_at_sizes(beyond.twin, [feeds[place] for place in left], settings(True), advance)
            wanted |= _wanted(left, twin, "twin")
    return Compared(first, timed, wanted)


@contextlib.contextmanager
def unless_memory_lacks() -> Iterator[None]:
    """End the block where there is too little memory for it: what it was to find is then not there."""
    try:
        yield
    except RuntimeFailure as failure:
        if not lacks_memory(failure):
            raise


def _is_within(sizes: Mapping[str, int], others: Mapping[str, int]) -> bool:
    """Whether no dimension is larger than in the others."""
    return all(size <= others[name] for name, size in sizes.items())


def _wanted(places: Sequence[int], seen: AtSizes, compared_with: ComparedWith) -> dict[int, Wanted]:
    runs = zip(places, seen.figures.prints, seen.peak_bytes, strict=True)
    return {place: Wanted(prints, peak_bytes, compared_with) for place, prints, peak_bytes in runs}
