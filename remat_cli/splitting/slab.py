"""A part of a tensor: some of its extent along one axis, all of the others."""

from __future__ import annotations

from typing import NamedTuple


class Slab(NamedTuple):
    """Positions `start` to `stop` (exclusive) along `axis`; never empty."""

    axis: int
    start: int
    stop: int

    @property
    def extent(self) -> int:
        """How many positions it has."""
        return self.stop - self.start

    def hull(self, other: Slab | None) -> Slab:
        """The smallest slab that contains both; they lie along the same axis."""
        if other is None:
            return self
        return Slab(self.axis, min(self.start, other.start), max(self.stop, other.stop))

    def contains(self, other: Slab) -> bool:
        """Whether all of `other` lies inside."""
        return self.axis == other.axis and self.start <= other.start and other.stop <= self.stop


def whole(shape: tuple[int, ...], axis: int) -> Slab:
    """All of a tensor, as a slab along `axis`."""
    return Slab(axis, 0, shape[axis])


def tile_bounds(extent: int, tiles: int) -> tuple[int, ...]:
    """Bounds that cut an extent into `tiles` parts as equal as can be: `tiles` + 1 rising positions."""
    return tuple(round(tile * extent / tiles) for tile in range(tiles + 1))
