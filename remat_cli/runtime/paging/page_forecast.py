"""Predicts when addresses are taken next, since runs of a plan take the same buffers in the same order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from remat_cli.runtime.paging.page_ranges import FreePages, Span

NEVER = 2**62
GRAINS = 64  # of a range


@dataclass(frozen=True)
class PageForecast:
    """The addresses of each buffer, in the order in which a run takes them; runs follow each other.

    Stretches of addresses that are looked at together are no shorter than a `grain`, a small part of all: what goes
    back to the system in shreds takes longer than it saves.
    """

    spans: Sequence[Span]
    grain: int = field(init=False)
    bounds: list[int] = field(init=False)
    turns: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        """For each stretch of addresses that buffers take as a whole, or nearly so: whose turns they are."""
        addresses = sorted({address for span in self.spans for address in span})
        grain = addresses[-1] // GRAINS if addresses else 0
        bounds: list[int] = []
        for address in addresses:
            if not bounds or address - bounds[-1] >= grain:
                bounds.append(address)
        turns: list[list[int]] = [[] for _ in bounds]
        for turn, (begin, end) in enumerate(self.spans):
            for place in range(bisect_right(bounds, begin) - 1, bisect_left(bounds, end)):
                turns[place].append(turn)
        object.__setattr__(self, "grain", grain)
        object.__setattr__(self, "bounds", bounds)
        object.__setattr__(self, "turns", turns)

    def parts(self, piece: FreePages, now: int) -> Iterator[tuple[int, Span]]:
        """The stretches of a piece, each with how many turns after turn `now` it is taken."""
        place, begin = bisect_right(self.bounds, piece.begin) - 1, piece.begin
        while begin < piece.end:
            end = min(piece.end, self.bounds[place + 1]) if place + 1 < len(self.bounds) else piece.end
            turns = self.turns[place] if 0 <= place < len(self.turns) else []
            following = bisect_left(turns, now)
            if following < len(turns):
                distance = turns[following] - now
            else:
                distance = turns[0] + len(self.spans) - now if turns else NEVER  # in the next run
            yield distance, (begin, end)
            place, begin = place + 1, end


NOTHING_TAKEN = PageForecast(())
"""Of addresses that no buffer has by plan."""
