"""Proof by enumeration that the tiles of a loop have the bits of the whole op, for every size of a family.

Rules are asked at the shapes that each size gives, for each tile that the loop then cuts. Most rules treat lines or
elements by themselves and need no asking; products of matrices depend on how many rows a tile has; all others may
depend on where a tile begins too.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from remat_cli.base.clock import go_on
from remat_cli.core.values.sizes import Dim, SizeBound, SizeFamily, number, product_of
from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView, is_op_on_parts
from remat_cli.splitting.rules import matrix
from remat_cli.splitting.rules.pointwise import is_in_packets
from remat_cli.splitting.rules.record import ElementKind, ProductKind, Scope
from remat_cli.splitting.rules.recurrent import is_packed
from remat_cli.splitting.rules.table import rule_of, slice_in_turn, slice_op
from remat_cli.splitting.tiles.op_view import OpView, Shape, Slab
from remat_cli.splitting.tiles.thread_counts import ASKED

MOST_NUMBERS = 64  # of constants that are told apart by value, not by name
MOST_ASKED = 200_000  # tiles, and sizes, that rules are asked for; a family of more sizes is not proved
FEW_ASKED = 3_000  # where it is only about what to tell
MOST_CUTS = 8  # of a range that is not proved


@dataclass(frozen=True)
class Tiling:
    """Tiles of at most `rows` positions, as equal as whole numbers allow; each begins at a multiple of `together`.

    `rows` is a multiple of that too.
    """

    rows: int
    together: int = 1

    def bounds(self, length: int) -> list[tuple[int, int]]:
        """Where each tile begins and ends."""
        tiles, units = self.count(length), -(-length // self.together)
        ends = (min(length, tile * units // tiles * self.together) for tile in range(tiles + 1))
        return list(itertools.pairwise(ends))

    def count(self, length: int) -> int:
        """How many tiles there are."""
        return -(-length // self.rows)

    @property
    def least(self) -> int:
        """The fewest positions of a tile, where there are several."""
        return (self.rows // self.together + 1) // 2 * self.together - (self.together - 1)

    def extents(self, length: int) -> set[int]:
        """How long tiles are."""
        if self.together > 1:
            return {stop - start for start, stop in self.bounds(length)}
        tiles = self.count(length)
        return {length // tiles, -(-length // tiles)}


def refusal(
    sized: SizedView,
    region: LoopRegion,
    tiling: Tiling,
    family: SizeFamily,
    most_asked: int = MOST_ASKED,
    whole: SizeBound | None = None,
) -> tuple[int, Mapping[str, int]] | None:
    """Finds an op, and a size, of which some tile may have other bits than the whole; None where there is none.

    At the sizes of `whole` the region runs whole, but for what it makes again: that is made tile by tile there too.
    """
    for op in kinds_of(sized, region).values():
        view = sized.view.ops[op]
        scope, is_product = sized.view.rules[op].scope, sized.view.rules[op].product is not None
        is_same_for_all = scope is Scope.EVERY_SIZE or (scope is Scope.SEVERAL_ROWS and tiling.least > 1)
        is_packed_product = is_product and matrix.is_one_packed(view, view.input_shape(1))
        if is_same_for_all or is_packed_product or (op in region.handed and is_packed(view)):
            continue
        in_tiles = _InTiles(tiling, family, None if op in region.copies else whole)
        refused = _refused(SizedOp.of(sized, region, op), in_tiles, most_asked, sized.look)
        if refused is not None:
            return op, refused
    return None


def most_threads_of(sized: SizedView, tiled: Sequence[tuple[LoopRegion, Tiling]], family: SizeFamily) -> int:
    """Up to how many threads tiles of regions have the bits of the whole; 0: with any number, as a short proof says."""
    many = replace(sized, view=sized.view.with_threads(ASKED[0]), look=go_on)
    found = (refusal(many, region, tiling, family, FEW_ASKED) for region, tiling in tiled)
    return 0 if all(each is None for each in found) else sized.view.threads


def rows_together(sized: SizedView, region: LoopRegion) -> int:
    """How many rows some op of a region computes together, so that its tiles are to begin with them."""
    if region.windows is not None:
        return 1
    asked = (sized.view.rules[op].rows_together for op in region.ops)
    return math.lcm(*(ask(sized.view.ops[op]) for op, ask in zip(region.ops, asked, strict=True) if ask is not None))


def proved_part(sized: SizedView, region: LoopRegion, tiling: Tiling, family: SizeFamily) -> SizeFamily | None:
    """Ends the range of the cut length before the first size for which bits are not proved in short time.

    None: fewer tiles than two are left then, or the length is not one named dimension.
    """
    name, part = region.length.symbol, family
    for _ in range(MOST_CUTS if name is not None else 0):
        found = refusal(sized, region, tiling, part, FEW_ASKED)
        if found is None:
            return part
        cut, last = next(each for each in part.ranges if each.name == name), found[1][name or ""] - 1
        if last <= max(cut.low, tiling.rows):
            return None
        shorter = msgspec.structs.replace(cut, high=cut.down_from(last))
        ranges = tuple(shorter if each is cut else each for each in part.ranges)
        part = msgspec.structs.replace(part, ranges=ranges)
    return None


def kinds_of(sized: SizedView, region: LoopRegion) -> dict[object, int]:
    """Ops of the region that rules look at alike, one of each; regions of the same kinds have the same proof."""
    known: dict[object, int] = {}
    for op in sorted(region.ops):
        known.setdefault((kind_of(sized, op), SizedOp.of(sized, region, op).place, op in region.copies), op)
    return known


def ops_alike(sized: SizedView, region: LoopRegion, op: int) -> set[int]:
    """Ops of the region that rules look at as at one of them: where that is refused, so are these."""
    kind, place = kind_of(sized, op), SizedOp.of(sized, region, op).place
    own = (each for each in region.ops if kind_of(sized, each) == kind)
    return {each for each in own if SizedOp.of(sized, region, each).place == place}


def may_be_longer(sized: SizedView, region: LoopRegion, op: int, sizes: Mapping[str, int]) -> bool:
    """Whether tiles of an op that were refused for some sizes have the bits of the whole there in whole packets."""
    is_other = sized.view.rules[op].elements is ElementKind.PACKETS and op not in sized.longer
    return is_other and is_in_packets(SizedOp.of(sized, region, op).at(sizes))


def kind_of(sized: SizedView, op: int) -> object:
    """All that a rule sees of an op but shapes."""
    view, rule = sized.view.ops[op], sized.view.rules[op]
    attributes = {name: str(value.value) for name, value in view.node.attributes.items()}
    is_blind = rule.product is not None or rule.reads_no_constants  # of weights it sees the shape only
    constants = tuple(() if is_blind else _constant(view, position) for position in range(len(view.inputs)))
    return view.key, view.opset, view.weights, view.defaults, str(attributes), constants


def _constant(view: OpView, position: int) -> object:
    """A constant as far as rules may tell it from another: its numbers, or which one it is where they are many."""
    array = view.constant(position)
    if array is None:
        return None
    if array.size <= MOST_NUMBERS:
        return str(array.dtype), array.shape, array.tobytes()
    value = view.node.inputs[position]
    return None if value is None or rule_of(*view.key).scope is Scope.EVERY_SIZE else value.name


@dataclass(frozen=True)
class SizedOp:
    """An op of a region, the dimensions of what it reads and makes, and the axis along which it is cut.

    `read_axis` is the one along which what it reads first is cut (None: it is read whole). `is_in_turn`: parts hand
    states on. `is_longer`: tiles are in whole packets.
    """

    op: OpView
    inputs: tuple[tuple[Dim, ...] | None, ...]
    outputs: tuple[tuple[Dim, ...] | None, ...]
    axis: int
    length: Dim
    read_axis: int | None = None
    is_in_turn: bool = False
    is_longer: bool = False

    @property
    def place(self) -> object:
        """What the proof for it depends on beside the op."""
        return self.inputs, self.outputs, self.axis, self.length

    @classmethod
    def of(cls, sized: SizedView, region: LoopRegion, op: int) -> SizedOp:
        """An op of a region with the dimensions around it."""
        view = sized.view
        reads = zip(view.reads[op], view.ops[op].inputs, strict=True)
        makes = zip(view.makes[op], view.ops[op].outputs, strict=True)
        made = next(name for name in view.makes[op] if name)
        return cls(
            view.ops[op],
            tuple(_dims(sized, name, shape) for name, shape in reads),
            tuple(_dims(sized, name, shape) for name, shape in makes),
            region.axes[made],
            region.length,
            region.reads.get((op, 0)),
            op in region.handed,
            op in sized.longer,
        )

    def is_same(self, whole: OpView, slab: Slab) -> bool:
        """Whether a part of the op, at the shapes of some sizes, has the bits of the whole."""
        if self.is_longer:
            return is_in_packets(whole)
        sliced = slice_in_turn(whole, slab) if self.is_in_turn else slice_op(whole, slab)
        return is_op_on_parts(whole, sliced, slab)

    def at(self, sizes: Mapping[str, int]) -> OpView:
        """The op with the shapes of some sizes."""
        return replace(self.op, inputs=_at(self.inputs, sizes), outputs=_at(self.outputs, sizes))

    def of_different_shapes(
        self, all_sizes: Iterable[Mapping[str, int]], look: Callable[[], None]
    ) -> Iterator[Mapping[str, int]]:
        """Of sizes at which all shapes around the op are the same, the first: a rule says the same of the others."""
        dims = {dim for shape in (*self.inputs, *self.outputs, (self.length,)) for dim in shape or () if dim.terms}
        seen: set[tuple[int, ...]] = set()
        for sizes in all_sizes:
            look()
            extents = tuple(dim.at(sizes) for dim in dims)
            if extents not in seen:
                seen.add(extents)
                yield sizes

    def depends_on(self, name: str) -> bool:
        """Whether some dimension changes with a size."""
        return any(name in dim.names for dims in (*self.inputs, *self.outputs) for dim in dims or ())

    @property
    def is_regrouped_alike(self) -> bool:
        """Whether, for all sizes, the same positions lie before the axis in what is read and what is made.

        A part of the one then is that part of the other, whatever lies behind.
        """
        read, made = self.inputs[0], self.outputs[0]
        if read is None or made is None or self.read_axis is None or read[self.read_axis] != made[self.axis]:
            return False
        return product_of(read[: self.read_axis]) == product_of(made[: self.axis])

    def only_adds(self, one: str, other: str) -> bool:
        """Whether two sizes only matter by their sum."""
        both = {one, other}
        dims = [dim for shape in (*self.inputs, *self.outputs) for dim in shape or ()]
        for dim in (each for each in (*dims, self.length) if both & each.names):
            factors = [[term.factor for term in dim.terms if term.names == (name,)] for name in (one, other)]
            is_in_product = any(both & set(term.names) and len(term.names) > 1 for term in dim.terms)
            if is_in_product or factors[0] != factors[1] or not factors[0]:
                return False
        return True

    def only_counts_matrices(self, name: str) -> bool:
        """Whether a size only says how many matrices a product has, each with a second factor of its own."""
        matrices = [dims[:-2] for dims in (*self.inputs[:2], *self.outputs[:1]) if dims is not None]
        inside = [dim for dims in (*self.inputs, *self.outputs) if dims is not None for dim in dims[-2:]]
        is_outside = all(any(name in dim.names for dim in dims) for dims in matrices)
        return is_outside and not any(name in dim.names for dim in inside)


def _dims(sized: SizedView, name: str, shape: Shape | None) -> tuple[Dim, ...] | None:
    """Dimensions of a tensor, or of a weight, which has but one size."""
    if shape is None:
        return None
    return sized.dims.get(name) or tuple(number(extent) for extent in shape)


def _at(all_dims: tuple[tuple[Dim, ...] | None, ...], sizes: Mapping[str, int]) -> tuple[Shape | None, ...]:
    return tuple(None if dims is None else tuple(dim.at(sizes) for dim in dims) for dims in all_dims)


@dataclass(frozen=True)
class _InTiles:
    """The sizes of a family, but those of `whole`, in tiles."""

    tiling: Tiling
    family: SizeFamily
    whole: SizeBound | None

    def has(self, sizes: Mapping[str, int], length: int) -> bool:
        """Whether there is more than one tile; a single one is the whole."""
        return length > self.tiling.rows and (self.whole is None or not self.whole.holds(sizes))

    @property
    def begins_together(self) -> bool:
        """Whether several lengths decide together from where on there are tiles."""
        return self.whole is not None and len(self.whole.factors) > 1


def _refused(op: SizedOp, in_tiles: _InTiles, most_asked: int, look: Callable[[], None]) -> Mapping[str, int] | None:
    rule, tiling, family = rule_of(*op.op.key), in_tiles.tiling, in_tiles.family
    if rule.product is ProductKind.STACK and (
        _is_same_by_ends(op, tiling, family) or _is_same_by_matrices(op, tiling, family)
    ):
        return None
    every = _all_sizes(op, in_tiles)
    if rule.regroups and op.is_regrouped_alike:
        every = itertools.islice(every, 1)  # what a rule says of one it says of all
    chosen = list(itertools.islice(every, most_asked + 1))
    if len(chosen) > most_asked:
        return chosen[-1]  # asking for all before it, in vain, would take a minute
    is_by_place = rule.scope is Scope.ONE_TILE and not op.is_in_turn
    tiles = Tiling.bounds if is_by_place else Tiling.extents
    different = [(sizes, op.length.at(sizes)) for sizes in op.of_different_shapes(chosen, look)]
    cut = [(sizes, length) for sizes, length in different if in_tiles.has(sizes, length)]
    if sum(tiling.count(length) for _, length in cut) > most_asked and is_by_place:
        most_asked = FEW_ASKED  # all cannot be asked for: these are to find a size that is refused
    asked = 0
    for sizes, length in cut:
        look()
        whole = op.at(sizes)
        for tile in tiles(tiling, length):
            asked += 1
            slab = Slab(op.axis, *((0, tile) if isinstance(tile, int) else tile))
            if asked > most_asked or not op.is_same(whole, slab):
                return sizes
    return None


def _is_same_by_ends(op: SizedOp, tiling: Tiling, family: SizeFamily) -> bool:
    """Whether rows of a product have the bits of the whole for all sizes, as its least and largest sizes tell.

    Where dimensions rise with sizes, the ends of each are those of the family's.
    """
    left, right, made = op.inputs[0], op.inputs[1], op.outputs[0]
    is_rows = made is not None and op.axis == len(made) - 2
    if left is None or right is None or made is None or not is_rows or op.op.integer("transA", 0):
        return False
    if any(term.factor < 0 for dim in (op.length, made[-1], left[-1]) for term in dim.terms):
        return False
    low = family.least
    if op.length.symbol is not None:  # the least size of which there is more than one tile
        low[op.length.symbol] = max(low[op.length.symbol], tiling.rows + 1)
    high = {each.name: each.high for each in family.ranges} | family.fixed
    rows = matrix.Span(tiling.least, op.length.at(high))
    columns = matrix.Span(made[-1].at(low), made[-1].at(high))
    depth = matrix.Span(left[-1].at(low), left[-1].at(high))
    return matrix.have_rows_same_bits(rows, columns, depth, op.op.threads)


def _is_same_by_matrices(op: SizedOp, tiling: Tiling, family: SizeFamily) -> bool:
    """Whether tiles have whole matrices of a product, for all sizes enough of them for the bits of the whole.

    Matrices that share their second factor are one, and no stack. Where dimensions rise with sizes, the least sizes
    have the fewest.
    """
    right, made = op.inputs[1], op.outputs[0]
    is_led = any(op.op.integer(name, 0) for name in ("transBatchA", "transBatchB"))
    if right is None or made is None or op.axis >= len(made) - 2 or is_led:
        return False
    low = family.least
    axis, counts = op.axis - (len(made) - 2), list[int]()
    for stack in (made[:-2], right[:-2]):
        if any(term.factor < 0 for dim in stack for term in dim.terms):
            return False
        cut = len(stack) + axis  # counted from the end, as factors are spread over each other
        is_cut = [at == cut and dim == op.length for at, dim in enumerate(stack)]
        counts.append(math.prod(tiling.least if own else dim.at(low) for own, dim in zip(is_cut, stack, strict=True)))
    return counts[1] > 1 and matrix.have_matrices_same_bits(counts[0], op.op.threads)


def _all_sizes(op: SizedOp, in_tiles: _InTiles) -> Iterator[dict[str, int]]:
    """Sizes that decide what the rule says, of which there is more than one tile.

    Products of matrices that are no fewer than threads are computed by one thread each, however many there are: a
    dimension that only counts them need not go on. What no shape depends on is at its most that limits leave it, with
    which there are most tiles.
    """
    tiling, family = in_tiles.tiling, in_tiles.family
    steps, free = dict[str, range](), dict[str, range]()
    for each in family.ranges:
        sizes = each.sizes
        if each.name == op.length.symbol:
            sizes = sizes[bisect.bisect_right(sizes, tiling.rows) :]
        elif not op.depends_on(each.name) and each.name not in op.length.names:
            free[each.name] = sizes
            continue
        elif in_tiles.begins_together:
            pass  # which sizes are the least depends on the others
        elif rule_of(*op.op.key).items_apart and op.axis == op.read_axis == 0 and each.name not in op.length.names:
            sizes = sizes[:: max(1, len(sizes) - 1)]  # the least and the most say it of those between
        elif rule_of(*op.op.key).product is ProductKind.STACK and op.only_counts_matrices(each.name):
            sizes = sizes[: bisect.bisect_left(sizes, op.op.threads) + 1]
        steps[each.name] = sizes
    for chosen in itertools.product(*paths_of_sizes(op, steps, family)):
        least = {name: sizes[0] for name, sizes in free.items()}
        found = {**family.fixed, **least, **{name: size for part in chosen for name, size in part.items()}}
        if all(limit.holds(found) for limit in family.limits):
            for name, sizes in free.items():
                found[name] = sizes[_fitting(found, name, sizes, family) - 1]
            yield found


def _fitting(found: Mapping[str, int], name: str, sizes: range, family: SizeFamily) -> int:
    """How many of the sizes of a dimension keep all limits beside the others', the first of them at least."""

    def is_too_much(size: int) -> bool:
        return not all(limit.holds({**found, name: size}) for limit in family.limits)

    return bisect.bisect_left(sizes, True, key=is_too_much)


def paths_of_sizes(op: SizedOp, steps: Mapping[str, range], family: SizeFamily) -> list[list[dict[str, int]]]:
    """By named dimension all its sizes; two that only count together rise one after the other, through all their sums.

    Those of a decoder's cache and of its new words are such where an op reads both, joined. A limit tells them apart.
    """
    limited = {name for limit in family.limits for name in limit.names}
    left, paths = [name for name in steps if steps[name]], list[list[dict[str, int]]]()
    if len(left) < len(steps):
        return [[]]
    while left:
        one = left.pop(0)
        alike = (other for other in left if steps[other].step == steps[one].step)
        pair = (other for other in alike if not {one, other} & limited and op.only_adds(one, other))
        other = next(pair, None)
        if other is None:
            paths.append([{one: size} for size in steps[one]])
            continue
        left.remove(other)
        first, second = steps[one], steps[other]
        rising = [{one: size, other: second[0]} for size in first]
        paths.append(rising + [{one: first[-1], other: size} for size in second[1:]])
    return paths
