"""Makes the graph that solvers see, from a model and the shapes seen in one run: ops, tensors, storage, weights."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import onnx_ir as ir

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.graph import Graph, Op, Phase, Tensor, TensorType, Weight, element_bits, size_bytes
from remat_cli.onnx_io.read.default_order import captured_values, default_order, is_constant, subgraphs
from remat_cli.onnx_io.read.interface import dims_of, fed_inputs, inputs_of, is_bound, runtime_name
from remat_cli.onnx_io.read.op_facts import OpFacts, facts_of
from remat_cli.onnx_io.read.phases import PHASE_KEY, PHASES

INPUTS = ""  # no node has this name
KnownDims = tuple[int | str | None, ...]


def to_graph(
    model: ir.Model, observed: Mapping[str, tuple[TensorType, ...]], known: Mapping[str, KnownDims] | None = None
) -> Graph:
    """The model as solvers see it; ops are in the order of a default session.

    `observed[name]` are the types of the existing outputs of the node of that name, in order; `observed[INPUTS]` are
    those of the inputs to feed, needed only where the model leaves dimensions symbolic. A tensor that shares
    the storage of a weight has size 0, because the weight is counted already. `known` is what the runtime knows of
    shapes before a run, where that is not all: it works in place only where it knows two shapes to be the same.

    Raises:
        ModelError: a node was not observed, or the model's inputs are not bound tensors.
    """
    nodes = list(model.graph)
    builder = _Builder(observed, known)
    inputs = fed_inputs(model.graph)
    if INPUTS in observed and not all(is_bound(value) for value in inputs):
        input_types = {value.name or "": kind for value, kind in zip(inputs, observed[INPUTS], strict=True)}
    else:
        input_types = {spec.name: TensorType(spec.dtype, spec.shape) for spec in inputs_of(model)}
    for name, kind in input_types.items():
        builder.add_tensor(name, Tensor(name, kind.dtype, kind.shape, size_bytes(kind)), borrowed=True)
    for value in model.graph.initializers.values():
        builder.weights[value.name or ""] = value
    for node in (node for node in nodes if is_constant(node)):
        raise ModelError(f"node '{node.name}': a sparse or string constant is not supported")
    kept = {value.name for value in model.graph.outputs}
    for index in default_order(nodes):
        builder.add_op(nodes[index], kept)
    return Graph(tuple(builder.ops), tuple(builder.tensors), tuple(builder.used_weights))


@dataclass
class _Builder:
    """The graph while it grows. `borrowed` tensors live in a model input or a weight, never in a buffer of the run."""

    observed: Mapping[str, tuple[TensorType, ...]]
    known: Mapping[str, KnownDims] | None = None
    ops: list[Op] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)
    borrowed: set[int] = field(default_factory=set)
    weights: dict[str, ir.Value] = field(default_factory=dict)
    used_weights: list[Weight] = field(default_factory=list)
    weight_ids: dict[str, int] = field(default_factory=dict)

    def add_tensor(self, name: str, tensor: Tensor, borrowed: bool) -> int:
        self.ids[name] = len(self.tensors)
        self.tensors.append(tensor)
        if borrowed:
            self.borrowed.add(self.ids[name])
        return self.ids[name]

    def add_op(self, node: ir.Node, kept: set[str | None]) -> None:
        facts = facts_of(node)
        read = [value.name or "" for value in (*node.inputs, *captured_values(node)) if value is not None]
        # Types of the outputs that exist, by position.
        positions = [position for position, value in enumerate(node.outputs) if value.name]
        types = self.observed.get(node.name or "")
        if types is None or len(types) != len(positions):
            raise ModelError(
                f"op '{node.name}' ({node.op_type}) did not run, or makes a sequence or an optional: "
                "remat plans tensors only; rewrite that part of the model without it"
            )
        outputs = dict(zip(positions, types, strict=True))
        made = {position: self._make(node, position, kind, facts.view, kept) for position, kind in outputs.items()}
        phase = node.metadata_props.get(PHASE_KEY, "none")
        if phase not in PHASES:
            raise ModelError(f"op '{node.name}': {PHASE_KEY} is '{phase}', not one of {', '.join(PHASES)}")
        weights = [name for name in dict.fromkeys(read) if name in self.weights]
        for name in weights:
            if name not in self.weight_ids:
                tensor = self.weights[name].const_value
                self.weight_ids[name] = len(self.used_weights)
                self.used_weights.append(Weight(name, tensor.nbytes if tensor is not None else 0))
        self.ops.append(
            Op(
                name=node.name or "",
                op_type=node.op_type,
                domain=node.domain,
                inputs=tuple(dict.fromkeys(self.ids[name] for name in read if name in self.ids)),
                outputs=tuple(made.values()),
                weights=tuple(self.weight_ids[name] for name in weights),
                in_place=self._in_place(node, facts, made, read),
                why_not_repeatable=facts.why_not_repeatable,
                phase=cast(Phase, phase),
            )
        )

    def _make(self, node: ir.Node, position: int, kind: TensorType, view: bool, kept: set[str | None]) -> int:
        """Add an output; the runtime gives a model output a buffer of its own even when the op makes views."""
        name = node.outputs[position].name or ""
        source = node.inputs[0] if view and position == 0 else None
        source_name = "" if source is None else source.name or ""
        base, is_kept = self.ids.get(source_name), name in kept
        borrows = base in self.borrowed or source_name in self.weights
        if borrows and is_kept:
            base, borrows = None, False
        size = 0 if source_name in self.weights and borrows else size_bytes(kind)
        tensor = Tensor(name, kind.dtype, kind.shape, size, len(self.ops), base, is_kept)
        return self.add_tensor(name, tensor, borrows)

    def _in_place(
        self, node: ir.Node, facts: OpFacts, made: Mapping[int, int], read: list[str]
    ) -> tuple[tuple[int, int], ...]:
        """Pairs that may share a buffer: read once, not borrowed, equal element size, and of equal shape.

        The runtime must know before a run that the shapes are equal. `made` are the outputs that exist, by position;
        `read` is all that the op reads.
        """
        pairs: list[tuple[int, int]] = []
        for source, result in facts.in_place:
            value = node.inputs[source] if source < len(node.inputs) else None
            base = self.ids.get(value.name or "") if value is not None else None
            if base is None or base in self.borrowed or result not in made or read.count(self.tensors[base].name) > 1:
                continue
            before, after = self.tensors[base], self.tensors[made[result]]
            if self.known is None:
                is_known = True
            else:
                dims = self.known.get(before.name)
                is_known = dims is not None and dims == self.known.get(after.name) and None not in dims
            is_same = before.shape == after.shape and element_bits(before.dtype) == element_bits(after.dtype)
            if is_same and is_known:
                pairs.append((base, made[result]))
        return tuple(pairs)


def known_kind(tensor: Tensor, known: Mapping[str, KnownDims]) -> tuple[KnownDims, int] | None:
    """Shape and element size of a tensor, where the runtime knows its shape before a run and may use its buffer again.

    Model outputs live on; a tensor without dimensions is never put into a buffer used before. Dimensions that have the
    same name are the same to the runtime; of those without a name it knows nothing.
    """
    dims = known.get(tensor.name)
    if tensor.kept or not dims or None in dims:
        return None
    return dims, element_bits(tensor.dtype)


SMALL_ELEMENTS = 64  # integer constants up to this size steer an op (axes, shapes, pads): their values count
NONE = "none"


def op_signatures(model: ir.Model, graph: Graph, run: str) -> tuple[str, ...]:
    """A stable SHA-256 per op of `graph`, in its order.

    Covers op, opset, attributes, element types and shapes of everything read and made, which inputs are weights, and
    the values of small integer weights. Which branch an op takes, and how often it runs a body, hangs on values: for
    such an op `run` counts, which stands for the file that was run and what it was fed.
    """
    nodes = {node.name: node for node in model.graph}
    tensors = {tensor.name: tensor for tensor in graph.tensors}
    versions = model.graph.opset_imports
    signatures: list[str] = []
    for node in (nodes[op.name] for op in graph.ops):
        attributes = [ir.to_proto(node.attributes[name]) for name in sorted(node.attributes)]
        facts = {
            "op": [node.domain, node.op_type, node.overload, node.version or versions.get(node.domain)],
            "attributes": [proto.SerializeToString(deterministic=True).hex() for proto in attributes],
            "inputs": [_read(value, tensors) for value in node.inputs],
            "same": [node.inputs.index(value) if value is not None else -1 for value in node.inputs],
            "captured": [_read(value, tensors) for value in captured_values(node)],
            "outputs": [_kind(tensors[value.name]) if value.name else NONE for value in node.outputs],
            "run": run if subgraphs(node) else NONE,
        }
        signatures.append(hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest())
    return tuple(signatures)


def _read(value: ir.Value | None, tensors: dict[str, Tensor]) -> object:
    """What matters about one input: a tensor's type, or a weight's type and, if it is small and integer, its values."""
    if value is None or not value.name:
        return NONE
    if value.name in tensors:
        return _kind(tensors[value.name])
    tensor = value.const_value
    if tensor is None:
        return NONE
    steers = tensor.dtype.is_integer() and tensor.size <= SMALL_ELEMENTS
    return ["weight", runtime_name(tensor.dtype), dims_of(tensor), tensor.numpy().tolist() if steers else NONE]


def _kind(tensor: Tensor) -> list[object]:
    return [tensor.dtype, list(tensor.shape)]
