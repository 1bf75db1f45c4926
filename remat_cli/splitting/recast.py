"""A model in other ops of equal bits, where those it has stand in the way of bands.

A normalisation over whole images is taken apart into its statistics, cut by channels, and the rest, cut by rows. The
fused kernel works in the same order, so the bits are the same (measured with ONNX Runtime 1.31.1: groups of any size
that is a multiple of 16 elements, 1, 2 and 4 threads). A change of layout whose source lives on is made again for each
reader, so that nothing is held in both layouts.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from remat_cli.core.graph import Graph, TensorType
from remat_cli.core.profile import OpCost
from remat_cli.onnx_io.assemble import Draft, Parts, assemble, element_types
from remat_cli.onnx_io.default_order import captured_values
from remat_cli.onnx_io.interface import interface_of
from remat_cli.onnx_io.normalise import fresh_name, names_in
from remat_cli.onnx_io.op_facts import NCHWC
from remat_cli.onnx_io.to_graph import to_graph
from remat_cli.splitting.op_view import Shape
from remat_cli.splitting.view import ModelView, view_model

ALIGNED = 16  # elements: groups of a multiple of it all begin alike in memory, as sums need it
AXES_INPUT_SINCE = 18  # before this opset ReduceMean had its axes as an attribute
FLOAT = "float"
PASSES = 4  # times that the fused kernel goes over its input
MADE_AGAIN = frozenset({(NCHWC, "ReorderOutput"), (NCHWC, "ReorderInput")})


@dataclass(frozen=True)
class Recast:
    """A model as bands see it: its view, an order of its ops, their costs, and what they stand for.

    `origin` gives by name of an op that of the op of the whole model, for those that are not the same.
    """

    view: ModelView
    order: tuple[int, ...]
    costs: tuple[OpCost, ...]
    origin: Mapping[str, str]

    def stands_for(self, op: int) -> str:
        """Name of the op of the whole model that an op is, or is part of."""
        name = self.view.graph.ops[op].name
        return self.origin.get(name, name)


def recast(
    view: ModelView, order: Sequence[int], costs: Sequence[OpCost], least_bytes: int, forbidden: frozenset[str]
) -> Recast:
    """The model with every normalisation of at least so many bytes taken apart, and layouts changed for each reader.

    Ops whose names are `forbidden` stay as they are.
    """
    found = (_norm(view, op, least_bytes) for op in order if view.graph.ops[op].name not in forbidden)
    norms = {norm.op: norm for norm in found if norm is not None}
    writer = _Rewriter(view, order, costs, norms, least_bytes, names_in(view.model))
    drafts = tuple(writer.drafts())
    if not writer.origin:
        return Recast(view, tuple(order), tuple(costs), {})
    parts = Parts(view.model, interface_of(view.model), writer.weights, element_types(writer.types))
    model = assemble(parts, drafts)
    made = {draft.name: tuple(writer.types[name] for name in draft.makes if name) for draft in drafts}
    graph = _like(view.graph, to_graph(model, made))
    number = {op.name: index for index, op in enumerate(graph.ops)}
    new_view = view_model(model, graph, view.channel_block, view.threads, view.may_reassociate)
    new_order = tuple(number[draft.name] for draft in drafts)
    new_costs = tuple(writer.new_costs[op.name] for op in graph.ops)
    return Recast(new_view, new_order, new_costs, writer.origin)


def _like(old: Graph, new: Graph) -> Graph:
    """The new graph, with what runs have taught of ops that it shares with the old one."""
    names = [tensor.name for tensor in old.tensors]
    shared = {op.name: {(names[a], names[b]) for a, b in op.in_place} for op in old.ops}
    ops = []
    for op in new.ops:
        pairs = op.in_place
        if op.name in shared:
            pairs = tuple((a, b) for a, b in pairs if (new.tensors[a].name, new.tensors[b].name) in shared[op.name])
        ops.append(msgspec.structs.replace(op, in_place=pairs))
    return Graph(tuple(ops), new.tensors, new.weights)


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


def _norm(view: ModelView, op: int, least_bytes: int) -> Norm | None:
    spec, node = view.ops[op], view.nodes[op]
    if spec.key != ("", "InstanceNormalization") or captured_values(node):
        return None
    grouped, result = view.reads[op][0], view.makes[op][0]
    scale, shift = spec.constant(1), spec.constant(2)
    tensor = view.tensors.get(grouped)
    if scale is None or shift is None or tensor is None or tensor.producer is None or tensor.dtype != FLOAT:
        return None
    if tensor.size_bytes < least_bytes or prod(tensor.shape[2:]) % ALIGNED:
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


Drafts = Generator[Draft, None, str]  # ends with the name of the value that they make


@dataclass
class _Rewriter:
    """Drafts of the other model; `weights`, `types`, `new_costs` and `origin` grow with them."""

    view: ModelView
    order: Sequence[int]
    costs: Sequence[OpCost]
    norms: Mapping[int, Norm]
    least_bytes: int
    taken: set[str]
    weights: dict[str, ir.TensorProtocol] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    new_costs: dict[str, OpCost] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.view.model.graph.initializers.items():
            if value.const_value is not None:
                self.weights[name] = value.const_value
        self.types = {t.name: TensorType(t.dtype, t.shape) for t in self.view.graph.tensors}

    def drafts(self) -> Iterator[Draft]:
        """Nodes in the given order; what stands for an op stands in its place."""
        dropped = {norm.dropped for norm in self.norms.values()}
        again = self._made_again()
        served: set[str] = set()
        for op in self.order:
            if op in dropped:
                continue
            drafts = tuple(self._apart(self.norms[op])) if op in self.norms else (self._unchanged(op),)
            for draft in drafts:
                renamed = {}
                for name in draft.reads:
                    if name not in again:
                        continue
                    if name in served:
                        yield (clone := self._again(again[name], name))
                        renamed[name] = clone.makes[0]
                    served.add(name)
                yield draft.reading(renamed)

    def _made_again(self) -> Mapping[str, int]:
        """Large tensors that ops of another layout make of what others read as well, by name; and the op."""
        view, found = self.view, {}
        for op in self.order:
            spec, name = view.graph.ops[op], view.makes[op][0]
            if (spec.domain, spec.op_type) not in MADE_AGAIN or view.tensors[name].kept:
                continue
            source = view.tensors[view.reads[op][0]]
            if view.tensors[name].size_bytes >= self.least_bytes and len(view.readers[source.name]) > 1:
                found[name] = op
        return found

    def _unchanged(self, op: int) -> Draft:
        node = self.view.nodes[op]
        captured = tuple((name, name) for value in captured_values(node) if (name := value.name or ""))
        self.new_costs[node.name or ""] = self.costs[op]
        reads, makes = self.view.reads[op], self.view.makes[op]
        return Draft(node.name or "", node.op_type, reads, makes, node.domain, captured, node)

    def _again(self, op: int, result: str) -> Draft:
        node = self.view.nodes[op]
        name, made = fresh_name(f"{node.name}/again", self.taken), fresh_name(f"{result}/again", self.taken)
        self.types[made] = self.types[result]
        self.count(name, op, self.costs[op].time_ns)
        return Draft(name, node.op_type, self.view.reads[op], (made,), node.domain, source=node)

    def _apart(self, norm: Norm) -> Drafts:
        """Statistics of each group, then scale and shift of every channel, and their use on each element."""
        grouped = self.types[norm.grouped].shape
        wide, narrow = grouped, (*grouped[:2], *[1] * (len(grouped) - 2))
        per_group = (1, grouped[1], *[1] * (len(grouped) - 2))
        steps = _Steps(self, norm, self.costs[norm.op].time_ns // PASSES)
        mean = yield from steps.mean(norm.grouped, "mean", narrow)
        apart = yield from steps.two("Sub", norm.grouped, mean, "centred", wide)
        squares = yield from steps.two("Mul", apart, apart, "squares", wide)
        variance = yield from steps.mean(squares, "variance", narrow)
        epsilon = self.constant(np.array(norm.epsilon, np.float32), f"{norm.grouped}/epsilon")
        safe = yield from steps.two("Add", variance, epsilon, "safe", narrow)
        deviation = yield from steps.one("Sqrt", safe, "deviation", narrow)
        factor = yield from steps.one("Reciprocal", deviation, "reciprocal", narrow)
        if np.any(norm.scale != 1):
            scale = self.constant(norm.scale.reshape(per_group), f"{norm.grouped}/scale")
            factor = yield from steps.two("Mul", scale, factor, "factor", narrow)
        moved = yield from steps.two("Mul", mean, factor, "moved", narrow)
        shift = self.constant(norm.shift.reshape(per_group), f"{norm.grouped}/shift")
        offset = yield from steps.two("Sub", shift, moved, "offset", narrow)
        shape = self.types[norm.source].shape
        if norm.source != norm.grouped:
            factor = yield from self._per_channel(steps, factor, narrow, shape)
            offset = yield from self._per_channel(steps, offset, narrow, shape)
        scaled = yield from steps.two("Mul", norm.source, factor, "scaled", shape)
        return (yield from steps.two("Add", scaled, offset, "", shape))

    def _per_channel(self, steps: "_Steps", value: str, narrow: Shape, shape: Shape) -> Drafts:
        """Values of groups repeated for each of their channels."""
        each = (*narrow[:2], shape[1] // narrow[1])
        flat = (*shape[:2], *[1] * (len(shape) - 2))
        spread = self.constant(np.array(each, np.int64), f"{value}/each")
        repeated = yield from steps.two("Expand", value, spread, "each_channel", each)
        target = self.constant(np.array(flat, np.int64), f"{value}/flat")
        return (yield from steps.two("Reshape", repeated, target, "by_channel", flat))

    def count(self, name: str, op: int, time_ns: int) -> None:
        """Take note of what a new op costs, and of the op that it stands for."""
        self.new_costs[name] = OpCost(name, time_ns)
        self.origin[name] = self.view.graph.ops[op].name

    def constant(self, array: npt.NDArray[np.generic], wanted: str) -> str:
        name = fresh_name(wanted, self.taken)
        self.weights[name] = ir.tensor(np.ascontiguousarray(array), name=name)
        return name

    def name(self, wanted: str) -> str:
        """A name that nothing has yet."""
        return fresh_name(wanted, self.taken)


@dataclass(frozen=True)
class _Steps:
    """Drafts of one op each, for parts of one normalisation; `pass_ns` is what going once over its input takes."""

    writer: _Rewriter
    norm: Norm
    pass_ns: int

    def mean(self, value: str, what: str, shape: Shape) -> Drafts:
        """The mean of each group."""
        axes = np.arange(2, len(shape), dtype=np.int64)
        if self.writer.view.model.graph.opset_imports.get("", 1) >= AXES_INPUT_SINCE:
            reads = (value, self.writer.constant(axes, f"{value}/axes"))
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
        writer, norm = self.writer, self.norm
        own = writer.view.graph.ops[norm.op].name
        result = writer.name(f"{norm.grouped}/{what}") if what else norm.result
        name = writer.name(f"{own}/{what}") if what else own
        whole = prod(writer.types[norm.grouped].shape)
        size = max(prod(shape), *(prod(writer.types[read].shape) for read in reads if read in writer.types))
        writer.types[result] = TensorType(FLOAT, shape)
        writer.count(name, norm.op, self.pass_ns * passes if size == whole else 0)
        yield Draft(name, op_type, reads, (result,), changed=changed)
        return result
