"""Loops of a model for all sizes as values: which regions in which tiles, what these hold, and which were refused."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from remat_cli.splitting.loops.loop_bits import Tiling
from remat_cli.splitting.loops.loop_regions import LoopRegion


@dataclass(frozen=True)
class Rung:
    """Regions in loops, their tiles, and what is held at the largest sizes by estimate.

    `extra_ns` is by how much longer it takes, by estimate: what tiles cost.
    """

    regions: tuple[LoopRegion, ...]
    tilings: tuple[Tiling, ...]
    peak_bytes: int
    extra_ns: int


@dataclass(frozen=True)
class RungLadder:
    """The same regions in ever more tiles.

    `others` finds regions around fewer ops, for where tiles of some of these are refused. `known` are the rungs that
    were looked at, by the rows of each region's tiles.
    """

    regions: Sequence[LoopRegion]
    others: Iterator[list[LoopRegion]] = field(default_factory=lambda: iter(()))
    known: dict[tuple[int | None, ...], Rung | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Refusal:
    """Tiles of a region whose bits are not proved: an op of it, and a size, of which they may be others."""

    region: LoopRegion
    tiling: Tiling
    op: int
    sizes: Mapping[str, int]


def ladder_of(rungs: Sequence[Rung]) -> list[Rung]:
    """Of rungs those of which no other one holds no more and takes no longer; they hold ever less."""
    found: list[Rung] = []
    for rung in sorted(rungs, key=lambda each: (each.peak_bytes, each.extra_ns)):
        if not found or rung.extra_ns < found[-1].extra_ns:
            found.append(rung)
    return found[::-1]
