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
ATTRIBUTE_NAMES = {"constant_value": "value"}
"""By input what the attribute was called, where it had another name."""
RESIZE_INPUTS = 2
OLD_PLACES = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
"""How a Resize that enlarges finds its places before operator set 11."""
NUMBERS_SINCE = 11
"""The operator set in which what ops clip to, or pad by, became inputs."""
MADE_NUMBERS = {"Clip": ("min", "max"), "Pad": ("pads", "value")}
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
    if old < NUMBERS_SINCE <= version:
        for node in copy.graph.all_nodes():
            _give_numbers_as_inputs(copy.graph, node)
            _say_places_of_resize(copy.graph, node)
    shapes = {tensor.name: tensor.shape for tensor in graph.tensors}
    if model.functions or not all(_keeps_meaning(node, old, version, shapes) for node in copy.graph):
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
        _give_input(graph, node, name, np.asarray(given.value, kind).reshape(-1))


def _give_numbers_as_inputs(graph: ir.Graph, node: ir.Node) -> None:
    """Give a node of an operator set from before 11 the form that it has there, in place, if its type is known.

    What it does not say it had a default for, which it may not have there.
    """
    names = MADE_NUMBERS.get(node.op_type, ()) if node.domain in ONNX_DOMAINS else ()
    kind = next((value.dtype for value in (*node.inputs, *node.outputs) if value is not None and value.dtype), None)
    schema = schema_of(node.op_type, NUMBERS_SINCE - 1)
    if not names or kind is None or schema is None or len(node.inputs) > 1:
        return
    for name in names:
        given = node.attributes.get(name)
        value = (
            given.value if given is not None else onnx.helper.get_attribute_value(schema.attributes[name].default_value)
        )
        _give_input(graph, node, name, np.asarray(value, np.int64 if name == "pads" else kind.numpy()))


def _say_places_of_resize(graph: ir.Graph, node: ir.Node) -> None:
    """Say of a Resize of operator set 10 how it finds its places, in place, if its scales are known and enlarge.

    Where it shrinks, it rounds in another way.
    """
    is_older = node.domain in ONNX_DOMAINS and node.op_type == "Resize" and len(node.inputs) == RESIZE_INPUTS
    scales = node.inputs[1] if is_older else None
    if scales is None or scales.const_value is None or scales.const_value.numpy().min() < 1:
        return
    node.attributes.update({each.name: each for each in ir.convenience.convert_attributes(OLD_PLACES)})
    node.resize_inputs(1)
    _give_input(graph, node, "roi", np.zeros(0, np.float32))
    node.resize_inputs(len(node.inputs) + 1)
    node.replace_input_with(len(node.inputs) - 1, scales)


def _give_input(graph: ir.Graph, node: ir.Node, name: str, array: np.ndarray) -> None:
    """Give a node what was its attribute as an input, which is a weight of the main graph."""
    weight = f"remat/opset/{name}/{'_'.join(map(str, array.ravel()))}/{array.dtype}"
    if weight not in graph.initializers:
        graph.register_initializer(ir.val(weight, const_value=ir.tensor(array, name=weight)))
    node.attributes.pop(name, None)
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
    if node.op_type == "Resize" and version < NUMBERS_SINCE:
        return _had_these_places(node)
    if node.op_type == "Split" and version < COUNT_SINCE:
        node.attributes.pop("num_outputs", None)
    names = [port.name for port in now.inputs][: len(node.inputs)]
    for place in reversed(range(schema.max_input, len(node.inputs))):
        # Say a constant, the last input, as an attribute where a schema has one of its name.
        name, value = ATTRIBUTE_NAMES.get(names[place], names[place]), node.inputs[place]
        if value is None or value.const_value is None or name not in schema.attributes:
            return False
        numbers = value.const_value.numpy()
        is_list = schema.attributes[name].type == onnx.defs.OpSchema.AttrType.INTS
        made = ir.AttrInt64s(name, numbers.tolist()) if is_list else ir.AttrFloat32(name, float(numbers))
        node.attributes[name] = made
        node.resize_inputs(place)
    places = [port.name for port in schema.inputs][: len(node.inputs)]
    is_whole = len(node.inputs) <= schema.max_input and places == names[: len(places)]
    return is_whole and set(node.attributes) <= set(schema.attributes)


def _had_these_places(node: ir.Node) -> bool:
    """Take from a Resize what it could not say before operator set 11, in place; False where it means another."""
    said = {name: node.attributes[name].as_string() for name in OLD_PLACES if name in node.attributes}
    if said != OLD_PLACES:
        return False
    for name in said:
        del node.attributes[name]
    scales = node.inputs[-1]
    node.resize_inputs(RESIZE_INPUTS)
    node.replace_input_with(1, scales)
    return True


def _keeps_meaning(node: ir.Node, old: int, new: int, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a node means the same under a newer operator set: by the schemas of both, and its inputs' shapes.

    So does one that runs a graph of its own, where all nodes of that do: later versions of these take more types.
    """
    keeps_bodies = all(_keeps_meaning(each, old, new, shapes) for body in _bodies(node) for each in body)
    if node.domain not in ONNX_DOMAINS or not keeps_bodies:
        return keeps_bodies
    before, after = schema_of(node.op_type, old), schema_of(node.op_type, new)
    if before is None or after is None:
        return before is after  # the runtime's own, in whatever version
    if before.since_version == after.since_version:
        return True
    if after.deprecated or not set(node.attributes) <= set(after.attributes):
        return False
    is_other = node.op_type in LAST_AXIS_OPS and before.since_version < LAST_AXIS_SINCE <= after.since_version
    if is_other and not _has_nothing_behind_axis(node, shapes):
        return False
    given = [port.name for port, value in zip(before.inputs, node.inputs, strict=False) if value is not None]
    places = [port.name for port in after.inputs][: len(node.inputs)]
    # Attributes that are not given must have the same default value in both versions.
    defaults = set(before.attributes) & set(after.attributes) - set(node.attributes)
    has_same_defaults = all(_default(before, name) == _default(after, name) for name in defaults)
    is_known = not has_body(node) or (node.op_type in BODY_OPS and before.since_version >= BODY_OPS[node.op_type])
    return given == [name for name in places if name in given] and is_known and has_same_defaults


def _has_nothing_behind_axis(node: ir.Node, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether an op with an axis works on one axis, whether it takes those behind it along or not."""
    axis, value = node.attributes.get("axis"), node.inputs[0]
    shape = None if value is None else shapes.get(value.name or "", value.shape)
    if axis is None or shape is None:
        return False
    behind = shape[axis.as_int() % len(shape) + 1 :]
    return all(isinstance(extent, int) for extent in behind) and prod(behind) == 1


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
