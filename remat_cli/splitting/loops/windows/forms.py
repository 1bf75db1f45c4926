"""How the first, the inner and the last tiles of windowed ops read: bounds in units, the same for every size.

A region of convolutions, pooling and what goes with them is cut at multiples of a unit, which is one row of its
coarsest tensor; each tensor along an axis of its own. Of every tensor a tile then holds rows that begin so many before,
and end so many behind, a multiple of the tile's own bounds; the first tile begins, and the last one ends, where the
tensor does. So padding lies in the first and in the last tile, and all inner ones are the same ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from remat_cli.splitting.tiles.op_view import OpView, Shape, Slab, Sliced, Value, hull

BLOCKED_RANK = 4
ROWS, COLUMNS = 2, 3  # axes along which windows move; what has one line only has rows
Slicer = Callable[[int, Slab], Sliced | None]
Rows = tuple[int, int]
Work = tuple[int, Slab, Sliced]
"""An op of a tile, what is asked of it, and how it makes that."""
Cut = tuple[tuple[Work, ...], dict[str, Slab]]
"""The ops of a tile, and the rows held of each tensor."""


@dataclass(frozen=True)
class Edge:
    """A position: so many per unit at a tile's bound, and so many more."""

    per_unit: int
    offset: int

    def at(self, unit: int) -> int:
        """The position for a bound."""
        return self.per_unit * unit + self.offset


@dataclass(frozen=True)
class Part:
    """Rows of a tensor, the same ones of a tile for all sizes; None: from where the tensor begins, to where it ends."""

    start: Edge | None
    stop: Edge | None

    def slab(self, axis: int, units: Rows, length: int) -> Slab:
        """The rows for a tile of some units."""
        start = 0 if self.start is None else self.start.at(units[0])
        return Slab(axis, start, length if self.stop is None else self.stop.at(units[1]))

    def extent(self, units: Rows, length: int) -> int:
        """How many rows there are for a tile of some units."""
        return self.slab(0, units, length).extent


@dataclass(frozen=True)
class Changed:
    """A constant that an op of a tile reads in place of the model's, by position."""

    position: int
    dtype: str
    shape: Shape
    data: bytes

    @property
    def array(self) -> npt.NDArray[np.generic]:
        """Its numbers."""
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)

    @classmethod
    def all_of(cls, sliced: Sliced) -> tuple[Changed, ...]:
        """Those that a rule says."""
        arrays = sorted(sliced.constants.items())
        return tuple(cls(at, array.dtype.str, array.shape, array.tobytes()) for at, array in arrays)


@dataclass(frozen=True)
class PartOp:
    """An op of a tile: what it reads in part by position, what it makes, and what of that is asked for."""

    op: int
    needs: Mapping[int, Part]
    makes: Part
    asked: Part
    attributes: tuple[tuple[str, Value], ...]
    constants: tuple[Changed, ...] = ()


@dataclass(frozen=True)
class TileForm:
    """The ops of one kind of tile, in order, and what is held of each tensor made in it.

    `exits` are the tile's own rows of what is read outside, of which it may hold more for its own ops.
    """

    ops: tuple[PartOp, ...]
    holds: Mapping[str, Part]
    exits: Mapping[str, Part] = field(default_factory=dict)


@dataclass(frozen=True)
class WindowTiles:
    """The three kinds of tiles of a region, and the axis along which each tensor is cut that they make or read."""

    first: TileForm
    inner: TileForm
    last: TileForm
    axes: Mapping[str, int]

    @property
    def forms(self) -> tuple[TileForm, TileForm, TileForm]:
        """As they run."""
        return self.first, self.inner, self.last


@dataclass(frozen=True)
class NotAlike:
    """An op of which two tiles of one kind are not the same op on parts, a unit apart."""

    op: int


@dataclass(frozen=True)
class Demand:
    """Ops to be cut: ascending, with what they read and make, how one is cut at some sizes, and each tensor's axis."""

    axes: Mapping[str, int]
    ops: tuple[int, ...]
    reads: Sequence[Sequence[str]]
    makes: Sequence[Sequence[str]]
    slicer: Slicer

    def tile(self, wanted: Mapping[str, Slab]) -> Cut | NotAlike:
        """What each op of a tile makes, from the last to the first; or an op that cannot be cut so."""
        inside = {name for op in self.ops for name in self.makes[op] if name}
        held, works = dict(wanted), list[Work]()
        for op in reversed(self.ops):
            asked = hull(held[name] for name in self.makes[op] if name in held)
            sliced = None if asked is None else self.slicer(op, asked)
            if asked is None or sliced is None or not sliced.makes.contains(asked):
                return NotAlike(op)
            works.append((op, asked, sliced))
            # results of one op have the same rows, though fewer of one may be read than of another
            held |= {name: asked for name in self.makes[op] if name in held}
            for name, need in zip(self.reads[op], sliced.needs, strict=True):
                if need is not None and need.axis != self.axes.get(name):
                    return NotAlike(op)
                if name in inside and need is None:
                    return NotAlike(op)
                if name in inside and need is not None:
                    held[name] = need.hull(held.get(name))
        return tuple(reversed(works)), held


def window_tiles(
    demand: Demand, exits: Mapping[str, int], units: int, lengths: Mapping[str, int]
) -> WindowTiles | NotAlike:
    """The three kinds of tiles, as two of each, a unit apart, show them; or an op that is not alike in both.

    `exits` says how many positions of each exit there are per unit, `lengths` how long each tensor is.
    """
    low, high = units // 3, units - units // 3
    bounds: tuple[tuple[int | None, int | None], ...] = ((None, high), (low, high), (low, None))
    forms: list[TileForm] = []
    for each in bounds:
        form = _form(demand, exits, each, lengths)
        if isinstance(form, NotAlike):
            return form
        forms.append(form)
    first, inner, last = forms
    return WindowTiles(first, inner, last, demand.axes)


def _form(
    demand: Demand, exits: Mapping[str, int], bounds: tuple[int | None, int | None], lengths: Mapping[str, int]
) -> TileForm | NotAlike:
    """One kind of tile; a bound is None where the tile is at an end."""
    cuts: list[Cut] = []
    for less in (1, 0):
        starts = {name: 0 if bounds[0] is None else per_unit * (bounds[0] - less) for name, per_unit in exits.items()}
        stops = {name: lengths[name] if bounds[1] is None else n * (bounds[1] - less) for name, n in exits.items()}
        cut = demand.tile({name: Slab(demand.axes[name], starts[name], stops[name]) for name in exits})
        if isinstance(cut, NotAlike):
            return cut
        cuts.append(cut)
    form = _Pair(demand, bounds, lengths).form(*cuts)
    if isinstance(form, NotAlike):
        return form
    own = {name: [None if bound is None else Edge(each, 0) for bound in bounds] for name, each in exits.items()}
    return replace(form, exits={name: Part(*edges) for name, edges in own.items()})


@dataclass(frozen=True)
class _Pair:
    """Two tiles of one kind, the second a unit behind the first; `bounds` are those of the second."""

    demand: Demand
    bounds: tuple[int | None, int | None]
    lengths: Mapping[str, int]

    def form(self, one: Cut, other: Cut) -> TileForm | NotAlike:
        """What both do; or an op by which they differ by more than the unit."""
        (works, held), (later, held_later) = one, other
        ops: list[PartOp] = []
        known: dict[str, Part] = {}
        for pair in zip(works, later, strict=True):
            op = self._op(*pair)
            made = [name for name in self.demand.makes[pair[0][0]] if name in held]
            parts = [self._part(name, held[name], held_later[name]) for name in made]
            if op is None or None in parts:
                return NotAlike(pair[0][0])
            ops.append(op)
            known |= {name: part for name, part in zip(made, parts, strict=True) if part is not None}
        return TileForm(tuple(ops), known)

    def _op(self, one: Work, other: Work) -> PartOp | None:
        (op, asked, sliced), (_, asked_later, later) = one, other
        made = next(name for name in self.demand.makes[op] if name)
        read = self.demand.reads[op]
        pairs = {
            at: pair for at, pair in enumerate(zip(sliced.needs, later.needs, strict=True)) if pair != (None, None)
        }
        needs = {at: self._part(read[at], *pair) for at, pair in pairs.items()}
        known = {at: part for at, part in needs.items() if part is not None}
        makes, wanted = self._part(made, sliced.makes, later.makes), self._part(made, asked, asked_later)
        constants = Changed.all_of(sliced)
        is_same = sliced.attributes == later.attributes and constants == Changed.all_of(later)
        if makes is None or wanted is None or len(known) < len(needs) or not is_same:
            return None
        return PartOp(op, known, makes, wanted, tuple(sorted(sliced.attributes.items())), constants)

    def _part(self, name: str, slab: Slab | None, moved: Slab | None) -> Part | None:
        """Where a tile's rows begin and end, by its bounds; None where not all of a tensor's end is there."""
        if slab is None or moved is None:
            return None
        first, last = self.bounds
        is_begun = first is not None or slab.start == moved.start == 0
        is_ended = last is not None or slab.stop == moved.stop == self.lengths.get(name)
        if not (is_begun and is_ended):
            return None
        start = None if first is None else _edge(slab.start, moved.start, first)
        return Part(start, None if last is None else _edge(slab.stop, moved.stop, last))


def _edge(before: int, position: int, unit: int) -> Edge:
    """The line through a position for a bound and for the one before it."""
    return Edge(position - before, position - (position - before) * unit)


def relabels_blocks(op: OpView, is_blocked: bool) -> bool:
    """Whether a Reshape only says of a tensor in blocks of channels how it lies in memory, or takes that back.

    All but the channels is copied, in whatever way these are told.
    """
    shape = op.constant(1) if op.key == ("", "Reshape") and is_blocked else None
    copied = () if shape is None else (*map(int, shape[:1]), *map(int, shape[ROWS:BLOCKED_RANK]))
    return shape is not None and copied == (0, 0, 0) and {len(op.input_shape(0)), len(shape)} == {4, 5}
