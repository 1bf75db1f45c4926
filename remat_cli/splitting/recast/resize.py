"""Bilinear resizing by any factor, taken apart into rows and columns that are picked and weighed, cut by rows.

An element's place between rows has a rounding error of its own, so a Resize of a slab has other bits. The plain kernel
adds `w00 x00 + w01 x01 + w10 x10 + w11 x11` from left to right in single precision, the blocked one the sum of each row
first, and so do these ops, with weights from the same formulas (measured with ONNX Runtime 1.31.1: all ways to place
elements, up and down, equal bits). Channels go last between, where rows and columns are picked in blocks: twice the
time of the Resize, not ten times.
"""

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from remat_cli.core.schedule.graph import TensorType
from remat_cli.onnx_io.read.default_order import captured_values
from remat_cli.onnx_io.read.op_facts import NCHWC, ONNX
from remat_cli.onnx_io.write.assemble import Draft
from remat_cli.splitting.recast.recast import Recast, Rewrite, taken_apart
from remat_cli.splitting.rules.resize import axes_of, coordinates_of, has_sizes, is_entangled, scales_of
from remat_cli.splitting.tiles.op_view import OpView, Shape
from remat_cli.splitting.tiles.view import ModelView

FLOAT = "float"
IMAGES, ROWS, COLUMNS = 4, 2, 3  # rank; axes
CHANNELS_LAST, CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
PICK_SHARE, PASS_SHARE = 4, 8  # of the time of the Resize: what picking rows or columns takes, and going over it once

Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]
Drafts = Generator[Draft, None, str]  # ends with the name of the value that they make


@dataclass(frozen=True)
class Between:
    """By output position of an axis: the two input positions it lies between, and its distance from either."""

    before: Places
    after: Places
    from_before: Floats
    from_after: Floats


@dataclass(frozen=True)
class Bilinear:
    """A Resize to be taken apart; `is_blocked`: its input and output are in the blocked layout."""

    op: int
    rows: Between
    columns: Between
    is_blocked: bool


def resizes_apart(cast: Recast, least_bytes: int, forbidden: frozenset[str]) -> Recast:
    """The model with every bilinear Resize of so many bytes taken apart that cannot be cut by rows as it is."""
    names = cast.view.graph.ops
    found = (bilinear(cast.view, op, least_bytes) for op in cast.order if names[op].name not in forbidden)
    resizes = {each.op: each for each in found if each is not None}
    return taken_apart(cast, resizes, lambda rewrite, each: _Parts(rewrite, each).drafts())


def bilinear(view: ModelView, op: int, least_bytes: int = 0) -> Bilinear | None:
    """How an op can be taken apart; None where it is no such Resize, is smaller, or has a slicing rule for its rows."""
    spec = view.ops[op]
    is_bilinear = view.rules[op].is_resize and spec.text("mode", "nearest") == "linear" and not is_entangled(spec)
    if not is_bilinear or captured_values(view.nodes[op]) or op in view.of_value_lengths:
        return None
    made = view.tensors.get(view.makes[op][0])
    if made is None or made.dtype != FLOAT or made.size_bytes < least_bytes or len(made.shape) != IMAGES:
        return None
    if view.axes_read(op, ROWS) is not None:
        return None
    factors = _factors(spec, made.shape)
    if factors is None or made.shape[:ROWS] != spec.input_shape(0)[:ROWS]:
        return None
    rows, columns = (_between(spec, axis, made.shape[axis], factors[axis]) for axis in (ROWS, COLUMNS))
    return None if rows is None or columns is None else Bilinear(op, rows, columns, spec.key[0] == NCHWC)


def _factors(spec: OpView, made: Shape) -> tuple[np.float32, ...] | None:
    """By how much each axis grows, as the kernel reckons it."""
    source = spec.input_shape(0)
    factors = [np.float32(1)] * IMAGES
    if has_sizes(spec):
        for axis in axes_of(spec):
            factors[axis] = np.float32(made[axis]) / np.float32(source[axis])
        return tuple(factors)
    scales = scales_of(spec)
    if scales is None:
        return None
    for axis, scale in zip(axes_of(spec), scales, strict=True):
        factors[axis] = np.float32(scale)
    return tuple(factors)


def _between(spec: OpView, axis: int, extent: int, factor: np.float32) -> Between | None:
    """Where output positions lie; to the blocked kernel both distances add up to one, at the edges too."""
    size, is_blocked = spec.input_shape(0)[axis], spec.key[0] == NCHWC
    place = _placed(coordinates_of(spec), extent, size, factor)
    if place is None:
        return None
    place = np.maximum(np.float32(0), place if is_blocked else np.minimum(place, np.float32(size - 1)))
    before = np.minimum(place.astype(np.int64), size - 1)
    after = np.minimum(before + 1, size - 1)
    if is_blocked:
        from_before = place - before.astype(np.float32)
        return Between(before, after, from_before, np.float32(1) - from_before)
    is_edge, half = before == after, np.float32(0.5)
    from_before = np.where(is_edge, half, np.abs(place - before.astype(np.float32)))
    from_after = np.where(is_edge, half, np.abs(place - after.astype(np.float32)))
    return Between(before, after, from_before, from_after)


def _placed(coordinates: str, extent: int, size: int, factor: np.float32) -> Floats | None:
    """Where output positions lie in the input, as the kernels reckon it in single precision."""
    place, half = np.arange(extent, dtype=np.float32), np.float32(0.5)
    if factor == 1:
        return place
    if coordinates == "asymmetric":
        return place / factor
    if coordinates == "half_pixel" or (coordinates == "pytorch_half_pixel" and extent > 1):
        return (place + half) / factor - half
    if coordinates == "align_corners" and extent > 1:
        return place * np.float32(size - 1) / np.float32(extent - 1)
    return np.zeros_like(place) if coordinates in ("pytorch_half_pixel", "align_corners") else None


@dataclass
class _Parts:
    """Drafts of what one Resize becomes."""

    rewrite: Rewrite
    resize: Bilinear
    source: str = field(init=False)
    result: str = field(init=False)

    def __post_init__(self) -> None:
        view = self.rewrite.view
        self.source, self.result = view.reads[self.resize.op][0], view.makes[self.resize.op][0]

    def drafts(self) -> Generator[Draft]:
        """In order; each product is added as soon as there is another one to add it to."""
        rows, columns = self.resize.rows, self.resize.columns
        turned = yield from self._turned(self.source, CHANNELS_LAST, self._named("turned"))
        made, sides = "", ((rows.before, rows.from_after), (rows.after, rows.from_before))
        for row, (places, weights) in enumerate(sides):
            what = f"row_{row}"
            picked = yield from self._picked(turned, places, 1, f"{what}/picked")
            first = yield from self._cell(picked, columns.before, np.outer(weights, columns.from_after), f"{what}/left")
            if made and not self.resize.is_blocked:
                first = yield from self._combined("Add", made, first, f"{what}/so_far")
            last = yield from self._cell(picked, columns.after, np.outer(weights, columns.from_before), f"{what}/right")
            whole = yield from self._combined("Add", first, last, f"{what}/sum")
            if made and self.resize.is_blocked:
                whole = yield from self._combined("Add", made, whole, "sum")
            made = whole
        yield from self._turned(made, CHANNELS_FIRST, self.result)

    def _cell(self, picked: str, places: Places, weights: Floats, what: str) -> Drafts:
        """One of the four neighbours of each element, by its weight."""
        cell = yield from self._picked(picked, places, 2, f"{what}/picked")
        factor = self.rewrite.constant(weights[None, :, :, None], f"{self.result}/{what}/weights")
        return (yield from self._combined("Mul", cell, factor, f"{what}/weighed"))

    def _turned(self, value: str, order: tuple[int, ...], result: str) -> Drafts:
        """A tensor with its channels last, out of blocks too, or as they were."""
        shape, last = tuple(self.rewrite.types[value].shape[axis] for axis in order), ir.AttrInt64("channels_last", 1)
        if not self.resize.is_blocked:
            turn = ir.AttrInt64s("perm", order)
            return (yield from self._made(ONNX, "Transpose", (value,), shape, result, turn))
        if order == CHANNELS_FIRST:
            return (yield from self._made(NCHWC, "ReorderInput", (value,), shape, result, last))
        channels = ir.AttrInt64("channels", shape[-1])
        return (yield from self._made(NCHWC, "ReorderOutput", (value,), shape, result, last, channels))

    def _picked(self, value: str, places: Places, axis: int, what: str) -> Drafts:
        shape = list(self.rewrite.types[value].shape)
        shape[axis] = len(places)
        reads = (value, self.rewrite.constant(places, f"{self.result}/{what}/places"))
        return (
            yield from self._made(
                ONNX, "Gather", reads, tuple(shape), self._named(what), ir.AttrInt64("axis", axis), part=PICK_SHARE
            )
        )

    def _combined(self, op_type: str, first: str, second: str, what: str) -> Drafts:
        shape = self.rewrite.types[first].shape
        return (yield from self._made(ONNX, op_type, (first, second), shape, self._named(what)))

    def _named(self, what: str) -> str:
        return self.rewrite.name(f"{self.result}/{what}")

    def _made(
        self,
        domain: str,
        op_type: str,
        reads: tuple[str, ...],
        shape: Shape,
        result: str,
        *changed: ir.Attr,
        part: int = PASS_SHARE,
    ) -> Drafts:
        rewrite, op = self.rewrite, self.resize.op
        own = rewrite.view.graph.ops[op].name
        name = own if result == self.result else rewrite.name(f"{own}/{result.removeprefix(self.result).strip('/')}")
        rewrite.types[result] = TensorType(FLOAT, shape)
        rewrite.count(name, op, rewrite.cast.costs[op].time_ns // part)
        yield Draft(name, op_type, reads, (result,), domain, changed=changed)
        return result
