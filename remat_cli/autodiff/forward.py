"""A forward model with its tape: brought to the opset that rules know, to another batch, and computed op by op."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx_ir.passes.common import InlinePass

from remat_cli.autodiff.parameters import Weights
from remat_cli.autodiff.pools import pool_attributes
from remat_cli.autodiff.reverse import Recorder
from remat_cli.autodiff.sequences import Held, write_sequence_op
from remat_cli.autodiff.tape import IR_VERSION, OPSET, Array, Call, Tape, element_type, known, shape_of
from remat_cli.base.errors import ModelError
from remat_cli.onnx_io.read.copies import copy_of
from remat_cli.onnx_io.read.interface import fed_inputs
from remat_cli.onnx_io.read.normalise import inputs_become_weights, lift_constants, name_nodes
from remat_cli.onnx_io.read.op_facts import facts_of, has_body
from remat_cli.onnx_io.read.source_names import SCOPES_KEY, scopes_of

KEPT_ELEMENTS = 1024  # smaller constants stay while the opset is raised, since conversions read shapes, axes, scales


def modern(model: ir.Model) -> ir.Model:
    """A copy of a model under at least opset `OPSET`, its functions inlined; weights are shared, not copied.

    Raises:
        ModelError: an op has no form in that opset.
    """
    copy = copy_of(model)
    if copy.functions:
        copy = InlinePass()(copy).model
    version = copy.graph.opset_imports.get("", copy.graph.opset_imports.get("ai.onnx", 0))
    if version < OPSET:
        large = {
            name: value.const_value
            for name, value in copy.graph.initializers.items()
            if value.const_value is not None and value.const_value.size > KEPT_ELEMENTS
        }
        for name, value in copy.graph.initializers.items():
            tensor = value.const_value
            if name not in large and isinstance(tensor, ir.ExternalTensor):  # the converter cannot find its file
                value.const_value = ir.tensor(tensor.numpy().copy(), name=name)
        for name in large:
            value = copy.graph.initializers.pop(name)
            if value not in copy.graph.inputs:
                copy.graph.inputs.append(value)
        try:
            raised = ir.from_proto(onnx.version_converter.convert_version(ir.to_proto(copy), OPSET))
        except RuntimeError as error:
            line = str(error).strip().splitlines()[0]
            raise ModelError(
                f"the model's opset {version} cannot be raised to {OPSET}, which gradients need: {line}"
            ) from None
        inputs_become_weights(raised.graph, large)
        scopes = {
            node.name: node.metadata_props[SCOPES_KEY] for node in copy.graph if SCOPES_KEY in node.metadata_props
        }
        for node in raised.graph:  # the converter leaves them out
            if node.name in scopes:
                node.metadata_props[SCOPES_KEY] = scopes[node.name]
        copy = raised
    name_nodes(copy.graph)
    lift_constants(copy.graph)
    return copy


Inputs = tuple[ir.Value | None, ...]
SHAPE_OPS = frozenset({"Reshape", "Expand"})  # their second input says what shape the first one gets


@dataclass
class Rebatch:
    """Shapes written into the model that begin with the `old` batch get the `new` one; `data` come from its inputs."""

    old: int
    new: int
    data: set[ir.Value] = field(default_factory=set)

    def inputs(self, node: ir.Node, inputs: Inputs, tape: Tape) -> Inputs:
        """An op's inputs for the new batch: a shape that begins with the old batch is replaced."""
        target = known(inputs[1]) if node.op_type in SHAPE_OPS and len(inputs) > 1 else None
        if inputs[0] not in self.data or target is None or target.size == 0 or target[0] != self.old:
            return inputs
        changed = np.array([self.new, *target[1:]], target.dtype)
        return (inputs[0], tape.constant(changed), *inputs[2:])

    def note(self, inputs: Inputs, outputs: Iterable[ir.Value | None]) -> None:
        """Remember an op's results as data where it reads data."""
        if any(value in self.data for value in inputs):
            self.data.update(value for value in outputs if value is not None)


FOLDED_ELEMENTS = 2**22  # larger constants are left to be computed


@dataclass(frozen=True)
class Forward:
    """The forward pass: `data` are inputs, `trained` and `statistics` weights that became inputs, by name."""

    data: tuple[ir.Value, ...]
    trained: Mapping[str, ir.Value]
    statistics: Mapping[str, ir.Value]
    values: Mapping[str, ir.Value]


def write_forward(
    model: ir.Model, recorder: Recorder, weights: Weights, ends: Sequence[str], batch: Rebatch | None = None
) -> Forward:
    """Write the ops that the values named `ends` need; weights that are trained become inputs.

    Raises:
        ModelError: an op's shapes do not fit.
    """
    graph, tape = model.graph, recorder.tape
    data = {value.name or "": _input(value) for value in fed_inputs(graph)}
    # Nodes that some of the named values depend on, in order.
    needed = set(ends)
    found: list[ir.Node] = []
    for node in reversed(list(graph)):
        if any(value.name in needed for value in node.outputs):
            found.append(node)
            needed.update(value.name for value in node.inputs if value is not None and value.name)
    nodes = found[::-1]
    read = {value.name for node in nodes for value in node.inputs if value is not None}
    states = {name: _input(graph.initializers[name]) for name in graph.initializers if name in read}
    trained = {name: value for name, value in states.items() if name in weights.trained}
    statistics = {name: value for name, value in states.items() if name in weights.statistics}
    values: dict[str, ir.Value] = {**data, **trained, **statistics}
    for name, value in graph.initializers.items():
        if name in read and name not in values and value.const_value is not None:
            values[name] = tape.keep(value.const_value, name)
    recorder.active.update(trained.values())
    if batch is not None:
        batch.data.update(data.values())
    held: Held = {}
    for node in nodes:
        _write(node, recorder, values, held, batch)
    used = tuple(value for name, value in data.items() if name in read or name in ends)
    return Forward(used, trained, statistics, values)


def _input(value: ir.Value) -> ir.Value:
    tensor = value.const_value
    if tensor is not None:
        return ir.Value(name=value.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(value.shape or tensor.shape))  # type: ignore[arg-type]
    return ir.Value(name=value.name, type=value.type, shape=value.shape)


def _write(node: ir.Node, recorder: Recorder, values: dict[str, ir.Value], held: Held, batch: Rebatch | None) -> None:
    if has_body(node):
        raise ModelError(
            f"op '{node.name}' ({node.op_type}) has a body of its own: gradients through it cannot be written"
        )
    flow = write_sequence_op(node, recorder, values, held)
    if flow is not None:
        if batch is not None:
            batch.note(*flow)
        return
    inputs = tuple(None if value is None else values[value.name or ""] for value in node.inputs)
    if batch is not None:
        inputs = batch.inputs(node, inputs, recorder.tape)
    plainer = written_out(node, inputs, recorder.tape)
    folded = None if plainer is not None else _fold(node, inputs)
    if plainer is not None:
        body, read = plainer
        for inner in body:
            _write(inner, recorder, read, {}, None)
        values.update({value.name: read[value.name] for value in node.outputs if value.name})
    elif folded is not None:
        made = zip(node.outputs, folded, strict=True)
        values.update({value.name: recorder.tape.constant(array) for value, array in made if value.name})
    else:
        _record(node, inputs, recorder, values, batch)


def _record(
    node: ir.Node, inputs: Inputs, recorder: Recorder, values: dict[str, ir.Value], batch: Rebatch | None
) -> None:
    attributes = pool_attributes(node, inputs[0] if inputs else None)
    modules = scopes_of(node)[:-1]
    call = Call(node.name or "", node.op_type, inputs, attributes, domain=node.domain, scopes=modules)
    names = [value.name or None for value in node.outputs]
    results = recorder.run(call, names)
    for declared, value in zip(node.outputs, results, strict=False):
        if value is not None and value.dtype is None and batch is None:
            value.type, value.shape = declared.type, value.shape or declared.shape
    if batch is not None:
        batch.note(inputs, results)
    values.update({name: value for name, value in zip(names, results, strict=False) if name and value is not None})


def _fold(node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[Array] | None:
    """Results of a node that depends on constants or on known shapes only; None for others."""
    if node.domain not in ("", "ai.onnx") or facts_of(node).why_not_repeatable:
        return None
    if node.op_type in ("Shape", "Size"):
        # Measures a tensor whose dimensions are known.
        first = inputs[0]
        dims = None if first is None or first.shape is None else tuple(first.shape)
        if dims is None:
            return None
        start = node.attributes.get_int("start", 0)
        end = node.attributes.get_int("end", len(dims))
        if node.op_type == "Shape":
            dims = dims[slice(start, end)]
        if not all(isinstance(dim, int) for dim in dims):
            return None
        numbers = np.array([int(str(dim)) for dim in dims], np.int64)
        return [numbers if node.op_type == "Shape" else np.array(numbers.prod(), np.int64)]
    arrays = [known(value) for value in inputs]
    is_open = not inputs and node.op_type != "Constant"
    if is_open or any(array is None and value is not None for array, value in zip(arrays, inputs, strict=True)):
        return None
    feeds = {value.name or "": array for value, array in zip(inputs, arrays, strict=True) if value is not None}
    return _evaluated(node, inputs, feeds)


REFERENCE_FAILS = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError),
    *(LookupError, RuntimeError, TypeError, ValueError),
)
"""What the reference raises of an op, or of inputs, that it does not know, and numpy in it; no lack of memory."""


def _evaluated(
    node: ir.Node, inputs: Sequence[ir.Value | None], feeds: Mapping[str, Array | None]
) -> list[Array] | None:
    proto = ir.to_proto(node)
    proto.ClearField("input")
    proto.input.extend("" if value is None else value.name or "" for value in inputs)
    ports = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in feeds]
    ends = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in proto.output if name]
    graph = onnx.helper.make_graph([proto], "constant", ports, ends)
    imports = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
    evaluator = ReferenceEvaluator(model, new_ops=[GatherElements])
    try:
        results = [np.asarray(array) for array in evaluator.run(None, dict(feeds))]
    except REFERENCE_FAILS:
        return None  # what the reference cannot compute, the runtime does in every step
    if len(results) != len(node.outputs) or any(array.size > FOLDED_ELEMENTS for array in results):
        return None
    return results


class GatherElements(OpRun):
    """The op of this name; the reference has one that chooses from at most 63 elements."""

    op_domain = ""

    def _run(self, data: Array, indices: Array, axis: int = 0) -> tuple[Array]:
        at = axis % data.ndim
        near = tuple(slice(None) if place == at else slice(size) for place, size in enumerate(indices.shape))
        return (np.take_along_axis(data[near], indices.astype(np.int64), at),)


WRITTEN_OUT = frozenset({"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"})

Values = dict[str, ir.Value]


def written_out(
    node: ir.Node, inputs: Sequence[ir.Value | None], tape: Tape
) -> tuple[Sequence[ir.Node], Values] | None:
    """Nodes that make the results of a loss under the same names, and the values they read, by name; None for others.

    Raises:
        ModelError: the shape of an input is not known.
    """
    if node.op_type not in WRITTEN_OUT or node.domain not in ("", "ai.onnx"):
        return None
    # what ONNX defines the op by, for inputs of these types
    proto, make = ir.to_proto(node), onnx.helper.make_tensor_type_proto
    kinds = (None if value is None else make(int(element_type(value)), shape_of(value)) for value in inputs)
    schema: Any = onnx.defs.get_schema(node.op_type, OPSET)
    types = [(kind or onnx.TypeProto()).SerializeToString() for kind in kinds]
    body = onnx.FunctionProto()
    body.ParseFromString(schema.get_context_dependent_function(proto.SerializeToString(), types))
    read = {name: value for name, value in zip(body.input, inputs, strict=False) if value is not None}
    names = {name: value.name or "" for name, value in zip(body.output, node.outputs, strict=False)}
    made = (name for part in body.node for name in part.output if name)
    names |= {name: tape.fresh(f"{node.name}/{name}") for name in made if not names.get(name)}
    given = {attribute.name: attribute for attribute in proto.attribute}
    inner = [_inner(part, f"{node.name}/{part.op_type}", names, given) for part in body.node]
    function = onnx.FunctionProto(name=body.name, input=body.input, node=inner, opset_import=body.opset_import)
    return list(ir.serde.deserialize_function(function)), read


def _inner(
    node: onnx.NodeProto, name: str, names: Mapping[str, str], given: Mapping[str, onnx.AttributeProto]
) -> onnx.NodeProto:
    """A node of the body under new names; attributes that the body takes over from the op are filled in."""
    copy = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name=name)
    copy.input.extend(names.get(value, value) for value in node.input)
    copy.output.extend(names.get(value, value) for value in node.output)
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            copy.attribute.append(attribute)
        elif attribute.ref_attr_name in given:
            copy.attribute.append(given[attribute.ref_attr_name])
            copy.attribute[-1].name = attribute.name
    return copy
