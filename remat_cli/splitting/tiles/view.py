"""A whole optimised model as splitting sees it: ops with shapes, and which tensors lie in blocks of channels."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx_ir as ir

from remat_cli.core.schedule.graph import Graph, Tensor, TensorType
from remat_cli.onnx_io.read.default_order import captured_values
from remat_cli.onnx_io.read.interface import dims_of, fixed_value
from remat_cli.onnx_io.read.op_facts import NCHWC, OpFacts, facts_of
from remat_cli.onnx_io.sizes.value_lengths import value_lengths
from remat_cli.onnx_io.write.assemble import element_types
from remat_cli.splitting.rules.record import LayoutKind, SliceRule
from remat_cli.splitting.rules.table import added_up, rule_of, slice_op
from remat_cli.splitting.tiles.op_view import MOST_THREADS, SUMMED, OpView, Shape, Slab, Sliced

FEW_PARTS = (2, 3, 4)  # in how many an op is cut to see what its parts read


def view_model(
    model: ir.Model,
    graph: Graph,
    channel_block: int,
    threads: int = MOST_THREADS,
    may_reassociate: bool = False,
    own_threads: int | None = None,
) -> ModelView:
    """A view of a copy in which every tensor has its element type, which the runtime's optimiser leaves out.

    Sessions have `own_threads`, or as many as ops may run on.
    """
    copy = model.clone()
    kinds = element_types({tensor.name: TensorType(tensor.dtype, tensor.shape) for tensor in graph.tensors})
    for node in copy.graph:
        for value in node.outputs:
            if value.name in kinds:
                value.type = kinds[value.name]
    return ModelView(copy, graph, channel_block, threads, may_reassociate, own_threads or threads)


@dataclass(frozen=True)
class ModelView:
    """An optimised model and its Graph; tensors go by name, ops by their id in the graph.

    `channel_block` is how many channels the CPU's blocked layout keeps together (1: the model has no such layout),
    `threads` the most threads that an op will run on, `own_threads` those of the sessions whose bits count. With
    `may_reassociate` slabs need not have the bits of the whole. `at_one_size`: it will run at these sizes only.
    `is_portable`: on other kinds of processors than this one too.
    """

    model: ir.Model
    graph: Graph
    channel_block: int
    threads: int = MOST_THREADS
    may_reassociate: bool = False
    own_threads: int = MOST_THREADS
    at_one_size: bool = False
    is_portable: bool = False
    _slices: dict[tuple[int, int, int, int], Sliced | None] = field(default_factory=dict, repr=False, compare=False)
    _extents: dict[tuple[int, int], int] = field(default_factory=dict, repr=False, compare=False)
    _axes: dict[tuple[int, int], tuple[int | None, ...] | None] = field(default_factory=dict, repr=False, compare=False)

    def of_other(self, model: ir.Model, graph: Graph) -> ModelView:
        """A view of another model, for the same sessions and sizes."""
        found = view_model(model, graph, self.channel_block, self.threads, self.may_reassociate, self.own_threads)
        return replace(found, at_one_size=self.at_one_size, is_portable=self.is_portable)

    def with_threads(self, threads: int) -> ModelView:
        """A view of the same model, as it is run by up to so many threads."""
        return replace(self, threads=threads, _slices={}, _extents={}, _axes={})

    @cached_property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The node of each op."""
        by_name = {node.name: node for node in self.model.graph}
        return tuple(by_name[op.name] for op in self.graph.ops)

    @cached_property
    def ops(self) -> tuple[OpView, ...]:
        """Each op as slicing rules see it."""
        versions, inputs = self.model.graph.opset_imports, self.model.graph.inputs
        given = {value.name for value in inputs if value.const_value is not None and fixed_value(value) is None}
        return tuple(
            OpView(
                node=node,
                inputs=tuple(self._shape(value) for value in node.inputs),
                outputs=tuple(self._shape(value) for value in node.outputs),
                weights=tuple(value is not None and value.const_value is not None for value in node.inputs),
                opset=node.version or versions.get(node.domain, 1),
                threads=self.threads,
                may_reassociate=self.may_reassociate,
                own_threads=self.own_threads,
                defaults=tuple(value is not None and value.name in given for value in node.inputs),
                at_one_size=self.at_one_size,
                is_portable=self.is_portable,
            )
            for node in self.nodes
        )

    @cached_property
    def rules(self) -> tuple[SliceRule, ...]:
        """The slicing rule of each op, with all its traits."""
        return tuple(rule_of(*op.key) for op in self.ops)

    @cached_property
    def facts(self) -> tuple[OpFacts, ...]:
        """How each op uses storage."""
        return tuple(facts_of(node) for node in self.nodes)

    @cached_property
    def weight_bytes(self) -> tuple[int, ...]:
        """Bytes of constants that each op reads."""
        return tuple(sum(self.graph.weights[w].size_bytes for w in op.weights) for op in self.graph.ops)

    @cached_property
    def reads(self) -> tuple[tuple[str, ...], ...]:
        """Names of what each op reads, by position; "" where an optional input is left out."""
        return tuple(tuple(_name(value) for value in node.inputs) for node in self.nodes)

    @cached_property
    def needs(self) -> tuple[tuple[str, ...], ...]:
        """Tensors that each op cannot run without: those that it reads, and those that its bodies read from outside."""
        return tuple(tuple(self.graph.tensors[tensor].name for tensor in op.inputs) for op in self.graph.ops)

    @cached_property
    def makes(self) -> tuple[tuple[str, ...], ...]:
        """Names of what each op makes, by position; "" where an optional output is left out."""
        return tuple(tuple(_name(value) for value in node.outputs) for node in self.nodes)

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Tensors of the run by name: model inputs and what ops make."""
        return {tensor.name: tensor for tensor in self.graph.tensors}

    @cached_property
    def tensor_ids(self) -> Mapping[str, int]:
        """Tensor ids of the graph by name."""
        return {tensor.name: number for number, tensor in enumerate(self.graph.tensors)}

    @cached_property
    def readers(self) -> Mapping[str, tuple[int, ...]]:
        """Ops that read each tensor, ascending."""
        found: dict[str, list[int]] = {name: [] for name in self.tensors}
        for index, op in enumerate(self.graph.ops):
            for tensor in op.inputs:
                found[self.graph.tensors[tensor].name].append(index)
        return {name: tuple(ops) for name, ops in found.items()}

    @cached_property
    def value_lengths(self) -> frozenset[str]:
        """Tensors whose length is another one in the next run."""
        return frozenset(value_lengths(self.model, self.graph.shapes))

    @cached_property
    def of_value_lengths(self) -> frozenset[int]:
        """Ops that read or make a tensor whose length is another one in the next run: they are left whole."""
        found = self.value_lengths
        pairs = enumerate(zip(self.reads, self.makes, strict=True))
        return frozenset(op for op, names in pairs if any(name in found for each in names for name in each))

    @cached_property
    def in_place(self) -> frozenset[tuple[str, str]]:
        """(input, output) tensors that may share a buffer where the op reads the input last."""
        names = [tensor.name for tensor in self.graph.tensors]
        return frozenset((names[a], names[b]) for op in self.graph.ops for a, b in op.in_place)

    @cached_property
    def blocked(self) -> frozenset[str]:
        """Tensors in the blocked layout: [N, C / block, H, W, block] in memory, [N, C, H, W] by their shape."""
        found: set[str] = set()
        for op, rule, reads, makes in zip(self.graph.ops, self.rules, self.reads, self.makes, strict=True):
            is_own = op.domain == NCHWC and rule.layout is not LayoutKind.PLAIN
            carries = op.domain != NCHWC and any(name in found for name in reads)
            if is_own or carries:
                found.update(name for name in makes if name)
        return frozenset(found)

    def extent(self, op: int, axis: int) -> int:
        """How long an op's output is along an axis; how many positions it adds up along that of sums; remembered."""
        known = self._extents.get((op, axis))
        if known is None:
            adding = added_up(self.ops[op]) if axis == SUMMED else None
            length = 0 if adding is None else adding.length
            known = self._extents[op, axis] = length if axis == SUMMED else self.ops[op].output_shape[axis]
        return known

    def axes_read(self, op: int, axis: int) -> tuple[int | None, ...] | None:
        """By input of an op cut along `axis`: the axis of the slab it reads, None for all of it; None if it cannot be.

        Remembered.
        """
        if (op, axis) not in self._axes:
            extent = self.extent(op, axis)
            slabs = (Slab(axis, 0, extent // parts) for parts in FEW_PARTS if extent >= parts)
            sliced = next((found for slab in slabs if (found := self.slice(op, slab)) is not None), None)
            self._axes[op, axis] = (
                None if sliced is None else tuple(None if need is None else need.axis for need in sliced.needs)
            )
        return self._axes[op, axis]

    def slice(self, op: int, slab: Slab) -> Sliced | None:
        """The op cut down to a slab of its output; remembered."""
        key = (op, *slab)
        if key not in self._slices:
            # tiles of what sessions fuse are fused like the whole op, so that it can be cut though it may not run again
            if captured_values(self.nodes[op]) or self.facts[op].why_not_repeatable or op in self.of_value_lengths:
                self._slices[key] = None
            elif slab.axis == 1 and any(name in self.blocked for name in (*self.reads[op], *self.makes[op])):
                self._slices[key] = self._slice_of_blocks(op, slab)
            else:
                self._slices[key] = slice_op(self.ops[op], slab)
        return self._slices[key]

    def _slice_of_blocks(self, op: int, slab: Slab) -> Sliced | None:
        """Whole blocks of channels of an op that treats each channel by itself."""
        block, spec = self.channel_block, self.ops[op]
        if spec.integer("channels_last", 0):
            return slice_op(spec, slab)  # its axis 1 is no channel
        if not self.rules[op].by_channel:
            return None
        need = Slab(1, slab.start // block * block, -(-slab.stop // block) * block)
        if need.stop > spec.input_shape(0)[1]:
            return None
        makes = Slab(1, need.start, min(need.stop, spec.output_shape[1]))
        changed = {"channels": makes.extent} if "channels" in self.nodes[op].attributes else {}
        return Sliced((need,), makes, changed)

    def _shape(self, value: ir.Value | None) -> Shape | None:
        if value is None or not value.name:
            return None
        if value.name in self.tensors:
            return self.tensors[value.name].shape
        return None if value.const_value is None else dims_of(value.const_value)


def _name(value: ir.Value | None) -> str:
    return "" if value is None else value.name or ""


def is_behind(view: ModelView, op: int, others: Collection[int]) -> bool:
    """Whether an op reads what follows from what some of these, itself among them, make."""
    waiting, met = [op], {op}
    while waiting:
        makers = {view.tensors[name].producer for name in view.needs[waiting.pop()]}
        if not makers.isdisjoint(others):
            return True
        new = {maker for maker in makers if maker is not None and maker >= min(others)} - met
        met |= new
        waiting += new
    return False
