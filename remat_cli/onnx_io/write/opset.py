"""Declares another version of the ONNX operators for a model, where that changes nothing."""

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np
import onnx
import onnx_ir as ir

from remat_cli.core.schedule.graph import Graph
from remat_cli.onnx_io.read.checking import schema_of
from remat_cli.onnx_io.read.op_facts import has_body

ONNX_DOMAINS = ("", "ai.onnx")
COUNT_SINCE = 18  # a Split without sizes says how many pieces it makes
LAST_AXIS_SINCE = 13  # before, these worked on all axes from `axis` on as if they were one
LAST_AXIS_OPS = frozenset({"Softmax", "LogSoftmax", "Hardmax"})
BODY_OPS = {"If": 1, "Loop": 1, "Scan": 9}
"""Ops that run graphs of their own, and the operator set from which on they only came to take more."""
BOUNDS_SINCE = 10
"""The operator set in which the bounds of a Slice became inputs."""
MADE_INPUTS = {"Slice": ("starts", "ends", "axes"), "Resize": ("scales",), "TopK": ("k",)}
"""By op what was an attribute before that, in the order of inputs."""


def opset_of(model: ir.Model) -> int:
    """The version of ONNX's own operators that a model declares; 0 where it declares none."""
    imports = model.graph.opset_imports
    return imports.get("", imports.get("ai.onnx", 0))


def raise_opset(model: ir.Model, version: int, graph: Graph) -> ir.Model | None:
    """A copy that declares operator set `version`; None where some op has another form or meaning there.

    `graph` is that of the model: shapes matter to some ops.

    Forms are compared by the schemas of both versions; every attribute that is given and every input and output, by
    name and place, must still be there. Kernels of other versions may still give other bits: compare them.
    """
    old = opset_of(model)
    copy = model.clone()
    if old >= version:
        return copy
    shapes = {tensor.name: tensor.shape for tensor in graph.tensors}
    if model.functions or not all(_keeps_meaning(node, old, version, shapes) for node in model.graph):
        return None
    _declare_opset(copy, version)
    for node in copy.graph.all_nodes():
        # How many pieces a Split without sizes makes: before opset 18 its outputs alone say it.
        is_split = node.op_type == "Split" and node.domain in ONNX_DOMAINS
        sizes = node.inputs[1:2] or [None]
        if is_split and old < COUNT_SINCE <= version and sizes == [None] and "split" not in node.attributes:
            node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(node.outputs))
    return copy


def with_computed_bounds(model: ir.Model, graph: Graph) -> ir.Model | None:
    """A copy under an operator set in which a Slice takes bounds that are computed; itself where it has that already.

    What was an attribute then becomes a constant input, and what was known by another name gets the newer one. None
    where some op has no such form. `graph` is that of the model.
    """
    old = opset_of(model)
    if old >= BOUNDS_SINCE:
        return model
    copy = model.clone()
    for node in copy.graph:
        if node.domain in ONNX_DOMAINS:
            _give_newer_form(copy.graph, node)
    shapes = {tensor.name: tensor.shape for tensor in graph.tensors}
    changed = {before.name for before, now in zip(model.graph, copy.graph, strict=True) if _form(before) != _form(now)}
    kept = all(node.name in changed or _keeps_meaning(node, old, BOUNDS_SINCE, shapes) for node in copy.graph)
    if model.functions or not kept:
        return None
    _declare_opset(copy, BOUNDS_SINCE)
    return copy


def _form(node: ir.Node) -> tuple[str, int, frozenset[str]]:
    return node.op_type, len(node.inputs), frozenset(node.attributes)


def _give_newer_form(graph: ir.Graph, node: ir.Node) -> None:
    """Give a node of an operator set from before 10 the form that it has there, in place."""
    spatial = node.attributes.get("spatial")
    if node.op_type == "BatchNormalization" and spatial is not None and spatial.as_int() == 1:
        del node.attributes["spatial"]
    if node.op_type == "Upsample":
        node.op_type = "Resize"
    for name in MADE_INPUTS.get(node.op_type, ()):
        given = node.attributes.get(name)
        if given is None:
            continue
        kind = np.float32 if name == "scales" else np.int64
        array = np.asarray(given.value, kind).reshape(-1)
        weight = f"remat/opset/{name}/{'_'.join(map(str, array))}"
        if weight not in graph.initializers:
            graph.register_initializer(ir.val(weight, const_value=ir.tensor(array, name=weight)))
        del node.attributes[name]
        node.resize_inputs(len(node.inputs) + 1)
        node.replace_input_with(len(node.inputs) - 1, graph.initializers[weight])


def lowered(model: ir.Model, version: int) -> ir.Model:
    """A model that was raised, under operator set `version` again; itself where some op needs a newer one.

    Its ops are those it had before and plain ones that remat wrote: they mean the same where their form is there.
    """
    old = opset_of(model)
    if old <= version:
        return model
    copy = model.clone()
    for node in copy.graph.all_nodes():
        if node.domain in ONNX_DOMAINS and not _takes_older_form(node, old, version):
            return model
    _declare_opset(copy, version)
    return copy


def _declare_opset(model: ir.Model, version: int) -> None:
    for domain in ONNX_DOMAINS:
        if domain in model.graph.opset_imports:
            model.graph.opset_imports[domain] = version


def _takes_older_form(node: ir.Node, old: int, version: int) -> bool:
    """Give a node of operator set `old` the form of an older one, in place; False where it has none there.

    What became an input was an attribute before, so it must be a constant; how many pieces a Split makes, its outputs
    say.
    """
    schema, now = schema_of(node.op_type, version), schema_of(node.op_type, old)
    if schema is None or now is None:
        return False
    if node.op_type == "Split" and version < COUNT_SINCE:
        node.attributes.pop("num_outputs", None)
    names = [port.name for port in now.inputs][: len(node.inputs)]
    for place in reversed(range(schema.max_input, len(node.inputs))):
        # Say a constant, the last input, as an attribute where a schema has one of its name.
        name = names[place]
        value = node.inputs[place]
        if value is not None and value.const_value is not None and name in schema.attributes:
            node.attributes[name] = ir.AttrInt64s(name, value.const_value.numpy().tolist())
            node.resize_inputs(place)
    places = [port.name for port in schema.inputs][: len(node.inputs)]
    is_whole = len(node.inputs) <= schema.max_input and places == names[: len(places)]
    return is_whole and set(node.attributes) <= set(schema.attributes)


def _keeps_meaning(node: ir.Node, old: int, new: int, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a node means the same under a newer operator set: by the schemas of both, and its inputs' shapes.

    So does one that runs a graph of its own, where all nodes of that do: later versions of these take more types.
    """
    keeps_bodies = all(_keeps_meaning(each, old, new, shapes) for body in _bodies(node) for each in body)
    if node.domain not in ONNX_DOMAINS or not keeps_bodies:
        return keeps_bodies
    before, after = schema_of(node.op_type, old), schema_of(node.op_type, new)
    if before is None or after is None:
        return False
    if before.since_version == after.since_version:
        return True
    if after.deprecated or not set(node.attributes) <= set(after.attributes):
        return False
    if node.op_type in LAST_AXIS_OPS and before.since_version < LAST_AXIS_SINCE:
        # It works on one axis either way if that is given, and nothing lies behind it.
        axis, value = node.attributes.get("axis"), node.inputs[0]
        shape = shapes.get(value.name or "") if value is not None else None
        if axis is None or shape is None or prod(shape[axis.as_int() % len(shape) + 1 :]) != 1:
            return False
    given = [port.name for port, value in zip(before.inputs, node.inputs, strict=False) if value is not None]
    places = [port.name for port in after.inputs][: len(node.inputs)]
    # Attributes that are not given must have the same default value in both versions.
    defaults = set(before.attributes) & set(after.attributes) - set(node.attributes)
    has_same_defaults = all(_default(before, name) == _default(after, name) for name in defaults)
    is_known = not has_body(node) or (node.op_type in BODY_OPS and before.since_version >= BODY_OPS[node.op_type])
    return given == [name for name in places if name in given] and is_known and has_same_defaults


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs that a node runs."""
    for each in node.attributes.values():
        if each.type == ir.AttributeType.GRAPH:
            yield each.as_graph()
        elif each.type == ir.AttributeType.GRAPHS:
            yield from each.as_graphs()


def _default(schema: onnx.defs.OpSchema, name: str) -> bytes:
    value: bytes = schema.attributes[name].default_value.SerializeToString(deterministic=True)
    return value
