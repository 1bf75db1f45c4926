"""Regions of a model of any size that run in tiles inside a Loop: which ops, cut along which axes.

A region keeps a large tensor from ever being whole. Every tensor made in it is cut along one axis, all of which have
the same length for every size, at the same places, so that the ops of the body are those of the model, unchanged.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from remat_cli.base.clock import go_on
from remat_cli.core.values.profile import OpCost
from remat_cli.core.values.sizes import Dim, number
from remat_cli.splitting.loops.windows.forms import WindowTiles
from remat_cli.splitting.rules.recurrent import HandedOn
from remat_cli.splitting.rules.table import rule_of
from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced
from remat_cli.splitting.tiles.view import ModelView, is_behind

LEAST_FIXED = 16  # positions of a length that does not vary: fewer are not worth a loop
POOLS = (("", "AveragePool"), ("", "MaxPool"), ("", "GlobalAveragePool"), ("", "GlobalMaxPool"))
PRODUCTS, SCALINGS = (("", "MatMul"),), (("", "Div"), ("", "Mul"))
PROBE = 2  # parts: the second of them is what rules are asked for, so that a wrong start shows


@dataclass(frozen=True)
class SizedView:
    """A model at its largest sizes, and every tensor's dimensions for all sizes.

    `told` is what the runtime knows of shapes in the model as it was, before a run (None: all numbers that there are).
    Whatever goes through all of it asks `look` from time to time, which ends it once the time for that is over.
    `costs` are those of ops that the model had not, by name.
    """

    view: ModelView
    dims: Mapping[str, tuple[Dim, ...]]
    look: Callable[[], None] = field(default=go_on, compare=False)
    told: Mapping[str, tuple[int | str | None, ...]] | None = field(default=None, compare=False)
    costs: Mapping[str, OpCost] = field(default_factory=dict, compare=False)

    @cached_property
    def makers(self) -> Mapping[str, int]:
        """The op that makes each tensor."""
        return {name: op for op, names in enumerate(self.view.makes) for name in names if name}

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Each tensor that is made as a number: those made first are the least."""
        return {name: place for place, name in enumerate(self.by_place)}

    @cached_property
    def by_place(self) -> tuple[str, ...]:
        """The tensors that are made, by their numbers."""
        return tuple(sorted(self.makers, key=lambda name: (self.makers[name], name)))

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Bytes of each tensor at the largest sizes."""
        return {name: tensor.size_bytes for name, tensor in self.view.tensors.items()}

    @cached_property
    def kept(self) -> frozenset[str]:
        """Model outputs."""
        return frozenset(value.name or "" for value in self.view.model.graph.outputs)

    def may_tell(self, name: str) -> list[bool]:
        """By axis of a tensor whether its length is a number that the runtime may know.

        It knows no more than of the model as it was, else it would optimise what it leaves alone there.
        """
        dims = self.dims[name]
        known = None if self.told is None else self.told.get(name, ())
        if known is None:
            return [not dim.terms for dim in dims]
        return [
            not dim.terms and len(known) == len(dims) and isinstance(known[axis], int) for axis, dim in enumerate(dims)
        ]

    def recast_if_told(self, op: int) -> list[int]:
        """Where an op reads a tensor of which the runtime must not know the rank, else it makes another op of it.

        Pools whose channels it knows then work in blocks, and what a product is multiplied by becomes part of it.
        """
        spec, told = self.view.ops[op], self.told or {}
        unknown = [at for at, name in enumerate(self.view.reads[op]) if name in self.dims and not told.get(name)]
        if self.told is None or not unknown:
            return []
        if spec.key in POOLS and self.view.channel_block > 1:
            return unknown[:1]
        makers = {at: self.makers.get(self.view.reads[op][at]) for at in unknown if spec.key in PRODUCTS}
        return [at for at, maker in makers.items() if maker is not None and self._scales(maker)]

    def _scales(self, op: int) -> bool:
        """Whether an op multiplies or divides all by one number."""
        spec = self.view.ops[op]
        numbers = (spec.constant(at) for at in range(len(spec.inputs))) if spec.key in SCALINGS else ()
        return any(number is not None and number.size == 1 for number in numbers)

    def units_of(self, region: LoopRegion) -> int:
        """How long the axis along which a region is cut is at the largest sizes."""
        shapes = (
            (dims, self.view.tensors[name].shape) for name, dims in self.dims.items() if name in self.view.tensors
        )
        lengths = (pair for dims, shape in shapes for pair in zip(dims, shape, strict=True))
        return next(length for dim, length in lengths if dim == region.length)

    def axes_of(self, name: str) -> list[tuple[Dim, int]]:
        """Axes of a tensor whose length depends on the sizes, with that length, the longest first."""
        shape = self.view.tensors[name].shape
        found = [(dim, axis) for axis, dim in enumerate(self.dims.get(name, ())) if dim.terms]
        return sorted(found, key=lambda each: (-shape[each[1]], each[1]))

    def fixed_axes_of(self, name: str) -> list[tuple[Dim, int]]:
        """Long axes of a tensor whose length is the same for all sizes, with that length, the longest first."""
        found = [(dim, axis) for axis, dim in enumerate(self.dims.get(name, ())) if dim.offset >= LEAST_FIXED]
        return sorted((each for each in found if not each[0].terms), key=lambda each: (-each[0].offset, each[1]))

    def part_bytes(self, name: str) -> int:
        """Bytes of the least part that a cut along an axis which varies leaves of a tensor."""
        lengths = (self.view.tensors[name].shape[axis] for _, axis in self.axes_of(name))
        return self.sizes[name] // next(lengths, 1)

    @cached_property
    def known_needs(self) -> dict[tuple[int, int, Dim], dict[int, int] | None]:
        """What `needs` said before: it is asked of the same op from many tensors."""
        return {}

    @cached_property
    def known_axes(self) -> dict[tuple[int, int], Mapping[str, int] | None]:
        """What was found before of the axes of what an op reads in tiles along an axis."""
        return {}

    @cached_property
    def known_orders(self) -> dict[frozenset[int], tuple[int, ...]]:
        """Orders of the ops of bodies, as they were found before."""
        return {}

    @cached_property
    def proved_above(self) -> dict[object, int]:
        """By op, tiles and what they read, above how many units bits are proved: regions have ops in common."""
        return {}

    def needs(self, op: int, axis: int, length: Dim) -> dict[int, int] | None:
        """By position the axis of what a part of an op reads in part; None where the part is not the op on parts."""
        asked = op, axis, length
        if asked not in self.known_needs:
            self.known_needs[asked] = _needs(self, *asked)
        return self.known_needs[asked]


@dataclass
class LoopRegion:
    """Ops that run tile by tile along axes of one length.

    `copies` are those of `ops` that make what others outside read too: they run again in the loop, tile by tile. `axes`
    says along which axis each tensor made inside is cut, `reads` the axis of what an op reads in part, by op and
    position; what is not there is read whole. Ops that look at windows have `windows`, which say instead of `reads`
    what each tile reads. Ops that hand states on from tile to tile are in `handed`.
    """

    length: Dim
    ops: set[int] = field(default_factory=set)
    copies: set[int] = field(default_factory=set)
    axes: dict[str, int] = field(default_factory=dict)
    reads: dict[tuple[int, int], int] = field(default_factory=dict)
    windows: WindowTiles | None = None
    handed: dict[int, HandedOn] = field(default_factory=dict)

    @property
    def is_backwards(self) -> bool:
        """Whether the last tile runs first."""
        return any(each.is_backwards for each in self.handed.values())

    @property
    def own(self) -> set[int]:
        """Ops that run in the loop only."""
        return self.ops - self.copies


def unread(view: ModelView, regions: Sequence[LoopRegion]) -> set[int]:
    """Ops whose results nothing reads any more when the regions have copies of their own."""
    kept = {value.name or "" for value in view.model.graph.outputs}
    inside = set[int]().union(*(region.own for region in regions))
    found: set[int] = set()
    for op in sorted(set[int]().union(*(region.copies for region in regions)), reverse=True):
        readers = {reader for name in view.makes[op] for reader in view.readers[name]}
        users = {reader for reader in readers if reader not in found and reader not in inside}
        loops = [region for region in regions if readers & region.ops and op not in region.copies]
        if not users and not loops and kept.isdisjoint(view.makes[op]):
            found.add(op)
    return found


def is_read_whole(view: ModelView, regions: Sequence[LoopRegion], region: LoopRegion, name: str) -> bool:
    """Whether an op outside a region reads what an op of it makes, and is in no other one that makes it again.

    A copy of an op is outside too, wherever the op itself is.
    """
    maker, readers = view.tensors[name].producer, view.readers[name]
    again = [each.own for each in regions if maker in each.copies]
    copied = [each.copies for each in regions if each is not region and maker not in each.ops]
    is_copied = any(op in copies for copies in copied for op in readers)
    return is_copied or any(op not in region.own and not any(op in own for own in again) for op in readers)


def find_loops(sized: SizedView, least_bytes: int, *, fixed: bool = False) -> list[LoopRegion]:
    """Regions that keep tensors of at least so many bytes from being whole, where rules allow; they share no op.

    With `fixed` they are cut along lengths that do not vary, where that can be.
    """
    found: list[LoopRegion] = []
    taken: set[int] = set()
    large = {name for name, size in sized.sizes.items() if size >= least_bytes and name in sized.makers}
    for name in sorted(large, key=lambda each: (-sized.sizes[each], sized.makers[each])):
        if sized.makers[name] in taken:
            continue
        axes = [*(sized.fixed_axes_of(name) if fixed else ()), *sized.axes_of(name)]
        for cut, copies in itertools.product(axes, (False, True)):
            region = _grown(sized, large, name, cut, copies=copies)
            if region is not None and not region.own & taken and is_closed(sized, region):
                found.append(region)
                taken |= region.own
                break
        else:
            for region in _made_twice(sized, large, name, axes, taken):
                found.append(region)
                taken |= region.own
    return sorted(found, key=lambda region: min(region.ops))


def _made_twice(
    sized: SizedView, large: set[str], name: str, axes: Sequence[tuple[Dim, int]], taken: set[int]
) -> list[LoopRegion]:
    """Two regions that each make a tensor again: for readers who wait for what others find out of all of it.

    Such as what quantises a tensor by its range. None where there are no such readers, or a rule stands in the way.
    """
    readers = frozenset(sized.view.readers[name])
    late = frozenset(reader for reader in readers if is_behind(sized.view, reader, readers))
    for cut in axes if late and late != readers else ():
        regions = [_grown(sized, large, name, cut, copies=True, left=left) for left in (late, readers - late)]
        closed = [region for region in regions if region is not None and is_closed(sized, region)]
        if len(closed) == len(regions) and all(not region.own & taken for region in closed):
            return closed
    return []


def _grown(
    sized: SizedView,
    large: set[str],
    name: str,
    cut: tuple[Dim, int],
    *,
    copies: bool,
    left: frozenset[int] = frozenset(),
) -> LoopRegion | None:
    """The region around a tensor, so large that no large tensor is at its edge; None where a rule stands in the way.

    With `copies` what ops outside read too is made again inside, if that is cheap. Where readers of the tensor are
    `left` outside, it is made again for the others, whatever that takes.
    """
    region = LoopRegion(cut[0], axes={name: cut[1]})
    waiting, met = [-sized.places[name]], 1  # the last in the model first; how many of the cut tensors were looked at
    while waiting:
        sized.look()
        current = sized.by_place[-heapq.heappop(waiting)]
        if _is_inside(sized, region, current):
            continue
        maker = sized.makers[current]
        readers = sized.view.readers[current]
        is_new = maker not in region.ops or any(reader in region.copies for reader in readers)
        is_start = current == name
        is_copied = copies and (bool(left) or not is_start) and is_new and _is_read_outside(sized, region, current)
        if (current in sized.kept and not is_copied) or not _add(sized, region, maker, region.axes[current]):
            return None
        if is_copied:
            if not (left or sized.view.rules[maker].is_cheap):
                return None
            region.copies.add(maker)
        for reader in () if is_copied and not is_start else readers:
            if reader not in region.ops | left and not _add_reader(sized, region, reader, current):
                return None
        if not _is_inside(sized, region, current):
            return None  # an op that runs again outside reads it: it would have to be whole
        read_again = sized.view.reads[maker] if is_copied else ()
        for each in large.intersection((*itertools.islice(region.axes, met, None), *read_again)) & region.axes.keys():
            heapq.heappush(waiting, -sized.places[each])
        met = len(region.axes)
    return region


def _is_inside(sized: SizedView, region: LoopRegion, name: str) -> bool:
    maker = sized.makers[name]
    return maker in region.copies or (maker in region.ops and not _is_read_outside(sized, region, name))


def _is_read_outside(sized: SizedView, region: LoopRegion, name: str) -> bool:
    """Whether an op reads a tensor that does not run in the loop only; what copies read is made again as well."""
    return any(reader not in region.ops or reader in region.copies for reader in sized.view.readers[name])


def _add(sized: SizedView, region: LoopRegion, op: int, axis: int) -> bool:
    """Let an op join whose results are cut along an axis; large inputs that it reads in part join too."""
    view = sized.view
    if op in region.ops:
        return True
    if view.facts[op].why_not_repeatable:
        return False
    needs = sized.needs(op, axis, region.length)
    if needs is None:
        return False
    region.ops.add(op)
    for name in view.makes[op]:
        if name and region.axes.setdefault(name, axis) != axis:
            return False
    for position, need in needs.items():
        region.reads[op, position] = need
    readers = {reader for name in view.makes[op] if name for reader in view.readers[name]}
    joining = (op, *(reader for reader in readers if reader in region.ops))  # these may want whole what is cut now
    return all(_joins(sized, region, each, position) for each in joining for position in range(len(view.reads[each])))


def _joins(sized: SizedView, region: LoopRegion, op: int, position: int) -> bool:
    """Whether the region cuts what an op reads at a place as the op needs it."""
    name, need = sized.view.reads[op][position], region.reads.get((op, position))
    if name in region.axes and sized.makers.get(name) in region.ops:
        return need == region.axes[name]
    if need is not None and name in sized.makers and name not in region.axes:
        region.axes[name] = need  # joins if it is large, else it is cut by a Slice
    return True


def _add_reader(sized: SizedView, region: LoopRegion, op: int, name: str) -> bool:
    """Let a reader of a tensor join along the axis that reads the tensor as it is cut."""
    view = sized.view
    made = next((each for each in view.makes[op] if each), None)
    if made is None or made not in sized.dims:
        return False
    for axis in (axis for axis, length in enumerate(sized.dims[made]) if length == region.length):
        needs = sized.needs(op, axis, region.length)
        places = [place for place, each in enumerate(view.reads[op]) if each == name]
        if needs is not None and all(needs.get(place) == region.axes[name] for place in places):
            return _add(sized, region, op, axis)
    return False


def _needs(sized: SizedView, op: int, axis: int, length: Dim) -> dict[int, int] | None:
    """By position the axis of what a part of an op reads in part; None where the part is not the op on parts."""
    view = sized.view
    made = next(name for name in view.makes[op] if name)
    shape = view.tensors[made].shape
    if (made in view.blocked and axis > 0) or axis >= len(shape) or shape[axis] < PROBE:
        return None
    slab = Slab(axis, shape[axis] // PROBE, shape[axis])
    sliced = view.slice(op, slab)
    if sliced is None or not is_op_on_parts(view.ops[op], sliced, slab):
        return None
    others = [name for name in view.makes[op] if name]
    if any(axis >= len(sized.dims[name]) or sized.dims[name][axis] != length for name in others):
        return None
    found: dict[int, int] = {}
    for position, need in enumerate(sliced.needs):
        if need is None:
            continue
        # a weight has but one size
        read = sized.dims.get(view.reads[op][position]) or tuple(map(number, view.ops[op].input_shape(position)))
        if read[need.axis] != length or need[1:] != slab[1:]:
            return None
        found[position] = need.axis
    return found


def is_op_on_parts(op: OpView, sliced: Sliced | None, slab: Slab) -> bool:
    """Whether an op makes a slab as the same op on parts of what it reads."""
    if sliced is None or sliced.makes != slab or sliced.attributes:
        return False
    return not sliced.constants or is_reshape_on_parts(op, sliced) or counts_on(op, sliced)


def counts_on(op: OpView, sliced: Sliced) -> bool:
    """Whether an op makes a slab as the same op that counts from where the slab begins to where it ends."""
    bounds = [int(sliced.constants[at]) for at in (0, 1)] if rule_of(*op.key).counts_places else []
    return bounds == [sliced.makes.start, sliced.makes.stop]


def is_reshape_on_parts(op: OpView, sliced: Sliced) -> bool:
    """Whether a Reshape to a constant shape that copies or leaves open a length makes a slab of a part as it is."""
    wanted, need = op.constant(1), sliced.needs[0]
    if op.key != ("", "Reshape") or wanted is None or need is None or (op.integer("allowzero", 0) and 0 in wanted):
        return False
    source = list(op.input_shape(0))
    source[need.axis] = need.extent
    shape = [source[at] if size == 0 and at < len(source) else int(size) for at, size in enumerate(wanted)]
    if -1 in shape:
        shape[shape.index(-1)] = math.prod(source) // max(1, -math.prod(shape))
    return bool(shape == sliced.constants[1].tolist())


def is_closed(sized: SizedView, region: LoopRegion) -> bool:
    """Whether no op outside both reads from the region and feeds it, so that the region can be one op."""
    view, tainted, own = sized.view, set[str](), region.own
    for op in range(min(region.ops), max(region.ops) + 1):
        reads = {*view.reads[op], *(view.graph.tensors[each].name for each in view.graph.ops[op].inputs)}
        if op in region.ops and reads & tainted:
            return False
        if op not in own and (reads & tainted or any(sized.makers.get(name) in own for name in reads)):
            tainted |= {name for name in view.makes[op] if name}
    return True
