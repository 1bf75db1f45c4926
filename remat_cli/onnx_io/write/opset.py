"""Declares another version of the ONNX operators for a model, where that changes nothing."""

from collections.abc import Mapping
from math import prod

import numpy as np
import onnx
import onnx_ir as ir

from remat_cli.core.schedule.graph import Graph, TensorType
from remat_cli.onnx_io.read.checking import schema_of
from remat_cli.onnx_io.read.default_order import subgraphs
from remat_cli.onnx_io.read.interface import fixed_value
from remat_cli.onnx_io.read.op_facts import has_body
from remat_cli.onnx_io.write.assemble import element_types

ONNX_DOMAINS = ("", "ai.onnx")
COUNT_SINCE = 18  # a Split without sizes says how many pieces it makes
LAST_AXIS_SINCE = 13  # before, these worked on all axes from `axis` on as if they were one
LAST_AXIS_OPS = frozenset({"Softmax", "LogSoftmax", "Hardmax"})
BODY_OPS = {"If": 1, "Loop": 1, "Scan": 9}
"""Ops that run graphs of their own, and the operator set from which on they only came to take more."""
BOUNDS_SINCE = 10
"""The operator set in which the bounds of a Slice became inputs."""
NUMBER_KINDS = {
    onnx.defs.OpSchema.AttrType.INT: ir.AttributeType.INT,
    onnx.defs.OpSchema.AttrType.INTS: ir.AttributeType.INTS,
    onnx.defs.OpSchema.AttrType.FLOAT: ir.AttributeType.FLOAT,
    onnx.defs.OpSchema.AttrType.FLOATS: ir.AttributeType.FLOATS,
}
"""Attributes that became inputs are of these."""
NUMBERS_SINCE = 11
"""The operator set in which what ops clip to, or pad by, became inputs, and a Resize says how it finds its places."""
MADE_INPUTS: Mapping[int, Mapping[str, tuple[str, ...]]] = {
    BOUNDS_SINCE: {"Slice": ("starts", "ends", "axes"), "Resize": ("scales",), "TopK": ("k",)},
    NUMBERS_SINCE: {"Clip": ("min", "max"), "Pad": ("pads", "value")},
    12: {"Dropout": ("ratio",)},
    13: {"ReduceSum": ("axes",), "Split": ("split",), "Squeeze": ("axes",), "Unsqueeze": ("axes",)},
    18: {
        f"Reduce{kind}": ("axes",)
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
    },
}
"""By the operator set, and by op, what was an attribute before that, in the order of inputs."""
GIVEN_KINDS = {"ratio": np.float32, "scales": np.float32}
"""By what became an input, of which type it is, where that is not a list of whole numbers."""
ELEMENTS = frozenset({"min", "max", "value"})
"""What is of the type of what it is clipped or padded with."""
ATTRIBUTE_NAMES = {"constant_value": "value", "K": "k"}
"""By input what the attribute was called, where it had another name."""
RESIZE_INPUTS = 2
OLD_PLACES = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
"""How a Resize that enlarges finds its places before operator set 11."""


def opset_of(model: ir.Model) -> int:
    """The version of ONNX's own operators that a model declares; 0 where it declares none."""
    imports = model.graph.opset_imports
    return imports.get("", imports.get("ai.onnx", 0))


def raise_opset(model: ir.Model, version: int, graph: Graph) -> ir.Model | None:
    """A copy that declares operator set `version`; None where some op has another form or meaning there.

    `graph` is that of the model: shapes matter to some ops.

    What became an input since is a constant one. Forms are compared by the schemas of both versions; every attribute
    that is given and every input and output, by name and place, must still be there. Kernels of other versions may
    still give other bits: compare them.
    """
    copy, old = model.clone(), opset_of(model)
    if old >= version:
        return copy
    shapes = graph.shapes
    types = element_types({tensor.name: TensorType(tensor.dtype, tensor.shape) for tensor in graph.tensors})
    kinds = {name: kind.dtype for name, kind in types.items()}
    for step in sorted({each for each in MADE_INPUTS if old < each < version} | {version}):
        renamed = {node for node in copy.graph.all_nodes() if _give_newer_form(copy.graph, node, (old, step), kinds)}
        kept = (node in renamed or _keeps_meaning(node, old, step, shapes) for node in copy.graph)
        if model.functions or not all(kept):
            return None
        _declare_opset(copy, step)
        old = step
    for node in copy.graph.all_nodes():
        # How many pieces a Split without sizes makes: before opset 18 its outputs alone say it.
        is_split = node.op_type == "Split" and node.domain in ONNX_DOMAINS
        sizes = node.inputs[1:2] or [None]
        if is_split and opset_of(model) < COUNT_SINCE <= version and sizes == [None]:
            node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(node.outputs))
    return copy


def with_computed_bounds(model: ir.Model, graph: Graph) -> ir.Model | None:
    """The model under an operator set in which a Slice takes bounds that are computed; None where it has none there.

    `graph` is that of the model.
    """
    return model if opset_of(model) >= BOUNDS_SINCE else raise_opset(model, BOUNDS_SINCE, graph)


def _give_newer_form(
    graph: ir.Graph, node: ir.Node, versions: tuple[int, int], kinds: Mapping[str, ir.DataType]
) -> bool:
    """Give a node the form that it has in a newer operator set, in place; whether it has another name there.

    `kinds` are the element types of tensors, which the runtime's optimiser leaves out of a model.

    What was an attribute becomes an input. What it does not say it had a default for, which it may not have there.
    """
    old, version = versions
    if node.domain not in ONNX_DOMAINS:
        return False
    is_renamed = version == BOUNDS_SINCE and node.op_type == "Upsample"
    spatial = node.attributes.get("spatial") if version == BOUNDS_SINCE else None
    if node.op_type == "BatchNormalization" and spatial is not None and spatial.as_int() == 1:
        del node.attributes["spatial"]
    if is_renamed:
        node.op_type = "Resize"
    if version == NUMBERS_SINCE:
        _say_places_of_resize(graph, node)
    names = MADE_INPUTS.get(version, {}).get(node.op_type, ())
    schema = schema_of("Upsample" if is_renamed else node.op_type, old)
    if schema is None or len(node.inputs) > 1:
        return is_renamed
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    kind = next(filter(None, (value.dtype or kinds.get(value.name or "") for value in values)), None)
    elements = None if kind is None else kind.numpy()
    for name in names:
        given, default = node.attributes.get(name), schema.attributes[name].default_value
        as_kind = elements if name in ELEMENTS else GIVEN_KINDS.get(name, np.int64)
        if as_kind is None or (given is None and default.type == onnx.AttributeProto.UNDEFINED):
            continue
        value = np.asarray(onnx.helper.get_attribute_value(default) if given is None else given.value, as_kind)
        _give_input(graph, node, name, np.atleast_1d(value) if as_kind is np.int64 else value)
    return is_renamed


def _say_places_of_resize(graph: ir.Graph, node: ir.Node) -> None:
    """Say of a Resize of operator set 10 how it finds its places, in place, if its scales are known and enlarge.

    Where it shrinks, it rounds in another way.
    """
    is_older = node.domain in ONNX_DOMAINS and node.op_type == "Resize" and len(node.inputs) == RESIZE_INPUTS
    scales = node.inputs[1] if is_older else None
    known = fixed_value(scales)
    if scales is None or known is None or known.numpy().min() < 1:
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
    if node.op_type == "Resize" and version < NUMBERS_SINCE:
        return _had_these_places(node, version)
    schema, now = schema_of(node.op_type, version), schema_of(node.op_type, old)
    if schema is None or now is None:
        return False
    if node.op_type == "Split" and version < COUNT_SINCE:
        node.attributes.pop("num_outputs", None)
    names = [port.name for port in now.inputs][: len(node.inputs)]
    for place in reversed(range(schema.max_input, len(node.inputs))):
        # Say a constant, the last input, as an attribute where a schema has one of its name.
        name, value = ATTRIBUTE_NAMES.get(names[place], names[place]), node.inputs[place]
        constant = fixed_value(value)
        if constant is None or name not in schema.attributes:
            return False
        _give_attribute(node, name, constant.numpy(), schema)
        node.resize_inputs(place)
    places = [port.name for port in schema.inputs][: len(node.inputs)]
    is_whole = len(node.inputs) <= schema.max_input and places == names[: len(places)]
    return is_whole and set(node.attributes) <= set(schema.attributes)


def _had_these_places(node: ir.Node, version: int) -> bool:
    """Take from a Resize what it could not say before operator set 11, in place; False where it means another.

    Before operator set 10 it was called Upsample.
    """
    said = {name: node.attributes[name].as_string() for name in OLD_PLACES if name in node.attributes}
    scales = node.inputs[RESIZE_INPUTS] if len(node.inputs) == RESIZE_INPUTS + 1 else None
    if said != OLD_PLACES or scales is None:
        return False
    for name in said:
        del node.attributes[name]
    node.resize_inputs(RESIZE_INPUTS)
    node.replace_input_with(1, scales)
    schema = None if version >= BOUNDS_SINCE else schema_of("Upsample", version)
    if schema is None:
        return True
    node.op_type = "Upsample"
    known = fixed_value(scales)
    if known is not None and "scales" in schema.attributes:
        _give_attribute(node, "scales", known.numpy(), schema)
        node.resize_inputs(1)
    return len(node.inputs) <= schema.max_input


def _give_attribute(node: ir.Node, name: str, numbers: np.ndarray, schema: onnx.defs.OpSchema) -> None:
    """Give a node what became an input as the attribute that it was."""
    kind = NUMBER_KINDS[schema.attributes[name].type]
    is_list = kind in (ir.AttributeType.INTS, ir.AttributeType.FLOATS)
    value = numbers.tolist() if is_list else numbers.reshape(-1)[0].item()
    node.attributes[name] = ir.Attr(name, kind, value)


def _keeps_meaning(node: ir.Node, old: int, new: int, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a node means the same under a newer operator set: by the schemas of both, and its inputs' shapes.

    So does one that runs a graph of its own, where all nodes of that do: later versions of these take more types.
    """
    keeps_bodies = all(_keeps_meaning(each, old, new, shapes) for body in subgraphs(node) for each in body)
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


def _default(schema: onnx.defs.OpSchema, name: str) -> bytes:
    value: bytes = schema.attributes[name].default_value.SerializeToString(deterministic=True)
    return value
