"""Normalisations over whole images, taken apart into statistics, cut by channels, and the rest, cut by rows.

The fused kernel works in the same order, so the bits are the same (measured with ONNX Runtime 1.31.1, 1, 2 and 4
threads). Groups of a multiple of 16 elements are added up all at once; others begin unlike in memory, where a reduction
of many lines takes another way, so that a Scan takes one after another, as the fused kernel does.
"""

from collections.abc import Generator
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from remat_cli.core.schedule.graph import TensorType
from remat_cli.onnx_io.read.default_order import captured_values
from remat_cli.onnx_io.write.assemble import Draft
from remat_cli.splitting.recast.recast import Recast, Rewrite, taken_apart
from remat_cli.splitting.tiles.op_view import Shape
from remat_cli.splitting.tiles.view import ModelView

ALIGNED = 16  # elements: groups of a multiple of it all begin alike in memory, as sums of many at once need it
SCAN_SINCE = 9  # opset: before, Scan had batches
LINE_NS = 5_000  # what a Scan takes for a line besides adding it up
LINES_HELD = 2  # at a time: one less its mean, and squares of that
AXES_INPUT_SINCE = 18  # before this opset ReduceMean had its axes as an attribute
FLOAT = "float"
PASSES = 4  # times that the fused kernel goes over its input
Drafts = Generator[Draft, None, str]  # ends with the name of the value that they make
Statistics = Generator[Draft, None, tuple[str, str]]  # ends with the names of means and variances


def norms_apart(cast: Recast, least_bytes: int, forbidden: frozenset[str]) -> Recast:
    """The model with every normalisation of at least so many bytes taken apart, but none whose name is forbidden."""
    view = cast.view
    found = (_norm(view, op, least_bytes) for op in cast.order if view.graph.ops[op].name not in forbidden)
    norms = {norm.op: norm for norm in found if norm is not None}
    return taken_apart(cast, norms, _apart, {norm.dropped for norm in norms.values() if norm.dropped is not None})


@dataclass(frozen=True)
class Norm:
    """A normalisation to be taken apart: `source` and `result` are tensors in the shape in which rows can be cut.

    `grouped` is what the op reads: one line of elements per group. `dropped` is the op that only changes the shape of
    its result back.
    """

    op: int
    source: str
    grouped: str
    result: str
    dropped: int | None
    scale: npt.NDArray[np.generic]
    shift: npt.NDArray[np.generic]
    epsilon: float


def can_be_apart(view: ModelView, op: int) -> bool:
    """Whether an op is a normalisation that can be taken apart."""
    return _norm(view, op, 0) is not None


def _norm(view: ModelView, op: int, least_bytes: int) -> Norm | None:
    spec, node = view.ops[op], view.nodes[op]
    if spec.key != ("", "InstanceNormalization") or captured_values(node) or op in view.of_value_lengths:
        return None
    grouped, result = view.reads[op][0], view.makes[op][0]
    scale, shift = spec.constant(1), spec.constant(2)
    tensor = view.tensors.get(grouped)
    if scale is None or shift is None or tensor is None or tensor.producer is None or tensor.dtype != FLOAT:
        return None
    if tensor.size_bytes < least_bytes or len(tensor.shape) < 3:
        return None
    if prod(tensor.shape[2:]) % ALIGNED and view.model.graph.opset_imports.get("", 1) < SCAN_SINCE:
        return None
    attribute = node.attributes.get("epsilon")
    epsilon = 1e-5 if attribute is None else attribute.as_float()
    plain = Norm(op, grouped, grouped, result, None, scale, shift, epsilon)
    return _between_reshapes(view, plain) or plain


def _between_reshapes(view: ModelView, norm: Norm) -> Norm | None:
    """The same between two changes of shape that only put channels into groups and back, as GroupNorm is written."""
    before = view.graph.ops[view.tensors[norm.grouped].producer or 0]
    readers = view.readers[norm.result]
    if before.op_type != "Reshape" or len(readers) != 1 or view.tensors[norm.result].kept:
        return None
    after = readers[0]
    source = view.reads[view.tensors[norm.grouped].producer or 0][0]
    if view.graph.ops[after].op_type != "Reshape" or source not in view.tensors:
        return None
    shape, groups = view.tensors[source].shape, view.tensors[norm.grouped].shape
    result = view.makes[after][0]
    is_undone = view.tensors[result].shape == shape
    if not is_undone or len(shape) < 3 or shape[0] != groups[0] or shape[1] % groups[1] or len(groups) != 3:
        return None
    return Norm(norm.op, source, norm.grouped, result, after, norm.scale, norm.shift, norm.epsilon)


def _apart(rewrite: Rewrite, norm: Norm) -> Drafts:
    """Statistics of each group, then scale and shift of every channel, and their use on each element."""
    grouped = rewrite.types[norm.grouped].shape
    wide, narrow = grouped, (*grouped[:2], *[1] * (len(grouped) - 2))
    per_group = (1, grouped[1], *[1] * (len(grouped) - 2))
    steps = _Steps(rewrite, norm, rewrite.cast.costs[norm.op].time_ns // PASSES)
    mean, variance = yield from steps.statistics(wide, narrow)
    epsilon = rewrite.constant(np.array(norm.epsilon, np.float32), f"{norm.grouped}/epsilon")
    safe = yield from steps.two("Add", variance, epsilon, "safe", narrow)
    deviation = yield from steps.one("Sqrt", safe, "deviation", narrow)
    factor = yield from steps.one("Reciprocal", deviation, "reciprocal", narrow)
    if np.any(norm.scale != 1):
        scale = rewrite.constant(norm.scale.reshape(per_group), f"{norm.grouped}/scale")
        factor = yield from steps.two("Mul", scale, factor, "factor", narrow)
    moved = yield from steps.two("Mul", mean, factor, "moved", narrow)
    shift = rewrite.constant(norm.shift.reshape(per_group), f"{norm.grouped}/shift")
    offset = yield from steps.two("Sub", shift, moved, "offset", narrow)
    shape = rewrite.types[norm.source].shape
    if norm.source != norm.grouped:
        factor = yield from _per_channel(steps, factor, narrow, shape)
        offset = yield from _per_channel(steps, offset, narrow, shape)
    scaled = yield from steps.two("Mul", norm.source, factor, "scaled", shape)
    return (yield from steps.two("Add", scaled, offset, "", shape))


def _per_channel(steps: "_Steps", value: str, narrow: Shape, shape: Shape) -> Drafts:
    """Values of groups repeated for each of their channels."""
    each = (*narrow[:2], shape[1] // narrow[1])
    flat = (*shape[:2], *[1] * (len(shape) - 2))
    spread = steps.rewrite.constant(np.array(each, np.int64), f"{value}/each")
    repeated = yield from steps.two("Expand", value, spread, "each_channel", each)
    return (yield from steps.reshaped(repeated, "by_channel", flat))


@dataclass(frozen=True)
class _Steps:
    """Drafts of one op each, for parts of one normalisation; `pass_ns` is what going once over its input takes."""

    rewrite: Rewrite
    norm: Norm
    pass_ns: int

    def statistics(self, wide: Shape, narrow: Shape) -> Statistics:
        """Mean and variance of all groups at once where they begin alike in memory, else of one after another."""
        rewrite, grouped = self.rewrite, self.norm.grouped
        lines, line = prod(wide[:2]), prod(wide[2:])
        if line % ALIGNED == 0:
            mean = yield from self._mean(grouped, "mean", narrow)
            apart = yield from self.two("Sub", grouped, mean, "centred", wide)
            squares = yield from self.two("Mul", apart, apart, "squares", wide)
            return mean, (yield from self._mean(squares, "variance", narrow))
        flat = yield from self.reshaped(grouped, "by_line", (lines, line))
        made = tuple(rewrite.name(f"{grouped}/{what}") for what in ("means", "variances"))
        for name in made:
            rewrite.types[name] = TensorType(FLOAT, (lines, 1))
        name = rewrite.name(f"{rewrite.view.graph.ops[self.norm.op].name}/by_line")
        held = LINES_HELD * line * np.dtype(np.float32).itemsize
        rewrite.count(name, self.norm.op, PASSES * self.pass_ns + lines * LINE_NS, held)
        attributes = (ir.AttrInt64("num_scan_inputs", 1), ir.AttrGraph("body", _line_body(line)))
        yield Draft(name, "Scan", (flat,), made, changed=attributes)
        mean = yield from self.reshaped(made[0], "mean", narrow)
        return mean, (yield from self.reshaped(made[1], "variance", narrow))

    def reshaped(self, value: str, what: str, shape: Shape) -> Drafts:
        """A change of shape."""
        target = self.rewrite.constant(np.array(shape, np.int64), f"{self.norm.grouped}/{what}/shape")
        return (yield from self._made("Reshape", (value, target), what, shape, 0))

    def _mean(self, value: str, what: str, shape: Shape) -> Drafts:
        """The mean of each group."""
        axes = np.arange(2, len(shape), dtype=np.int64)
        if self.rewrite.view.model.graph.opset_imports.get("", 1) >= AXES_INPUT_SINCE:
            reads = (value, self.rewrite.constant(axes, f"{value}/axes"))
            return (yield from self._made("ReduceMean", reads, what, shape, 1))
        return (yield from self._made("ReduceMean", (value,), what, shape, 1, (ir.AttrInt64s("axes", axes.tolist()),)))

    def one(self, op_type: str, value: str, what: str, shape: Shape) -> Drafts:
        """An op of one input."""
        return (yield from self._made(op_type, (value,), what, shape, 2))

    def two(self, op_type: str, first: str, second: str, what: str, shape: Shape) -> Drafts:
        """An op of two inputs; what has no name of its own is the result of the normalisation."""
        return (yield from self._made(op_type, (first, second), what, shape, 2))

    def _made(
        self,
        op_type: str,
        reads: tuple[str, ...],
        what: str,
        shape: Shape,
        passes: int,
        changed: tuple[ir.Attr, ...] = (),
    ) -> Drafts:
        rewrite, norm = self.rewrite, self.norm
        own = rewrite.view.graph.ops[norm.op].name
        result = rewrite.name(f"{norm.grouped}/{what}") if what else norm.result
        name = rewrite.name(f"{own}/{what}") if what else own
        whole = prod(rewrite.types[norm.grouped].shape)
        size = max(prod(shape), *(prod(rewrite.types[read].shape) for read in reads if read in rewrite.types))
        rewrite.types[result] = TensorType(FLOAT, shape)
        rewrite.count(name, norm.op, self.pass_ns * passes if size == whole else 0)
        yield Draft(name, op_type, reads, (result,), changed=changed)
        return result


def _line_body(line: int) -> ir.Graph:
    """Mean and variance of one line, in ops that work in the order of the fused kernel."""
    kind = ir.TensorType(ir.DataType.FLOAT)
    read = ir.Value(name="line", type=kind, shape=ir.Shape([line]))

    def made(op_type: str, reads: list[ir.Value], name: str, size: int) -> ir.Value:
        value = ir.Value(name=name, type=kind, shape=ir.Shape([size]))
        return ir.Node("", op_type, reads, outputs=[value], name=name).outputs[0]

    mean = made("ReduceMean", [read], "mean", 1)
    apart = made("Sub", [read, mean], "centred", line)
    squares = made("Mul", [apart, apart], "squares", line)
    variance = made("ReduceMean", [squares], "variance", 1)
    nodes = [node for value in (mean, apart, squares, variance) if (node := value.producer()) is not None]
    return ir.Graph([read], [mean, variance], nodes=nodes, name="by_line")
