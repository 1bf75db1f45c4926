"""When addresses are taken next, as runs of a plan take the same buffers in the same order: what to let go of first."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from remat_cli.runtime.page_ranges import FreePages

NEVER = 2**62
Span = tuple[int, int]
"""First address, and the first that is not in it."""


@dataclass(frozen=True)
class PageForecast:
    """The addresses of each buffer, in the order in which a run takes them; runs follow each other."""

    spans: Sequence[Span]
    bounds: list[int] = field(init=False)
    turns: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        """For each stretch of addresses that all buffers take as a whole: whose turns they are."""
        bounds = sorted({address for span in self.spans for address in span})
        turns: list[list[int]] = [[] for _ in bounds]
        for turn, (begin, end) in enumerate(self.spans):
            for place in range(bisect_left(bounds, begin), bisect_left(bounds, end)):
                turns[place].append(turn)
        object.__setattr__(self, "bounds", bounds)
        object.__setattr__(self, "turns", turns)

    def parts(self, piece: FreePages, now: int) -> Iterator[tuple[int, Span]]:
        """The stretches of a piece, each with how many turns after turn `now` it is taken."""
        place, begin = bisect_right(self.bounds, piece.begin) - 1, piece.begin
        while begin < piece.end:
            end = min(piece.end, self.bounds[place + 1]) if place + 1 < len(self.bounds) else piece.end
            yield self._distance(place, now), (begin, end)
            place, begin = place + 1, end

    def _distance(self, place: int, now: int) -> int:
        turns = self.turns[place] if 0 <= place < len(self.turns) else []
        if not turns:
            return NEVER
        following = bisect_left(turns, now)
        return turns[following] - now if following < len(turns) else turns[0] + len(self.spans) - now


NOTHING_TAKEN = PageForecast(())
"""Of addresses that no buffer has by plan."""
