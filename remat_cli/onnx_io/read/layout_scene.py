"""Reads from a model what the runtime's layout step looks at, and which whole ops its tiles and copies stand for."""

from collections.abc import Mapping
from math import prod

import onnx_ir as ir

from remat_cli.onnx_io.read.interface import dims_of
from remat_cli.ort_rules.layout import LayoutOp, LayoutScene, Shape, WholeLayout

WHOLE_KEYS = ("remat.split_of", "remat.clone_of")  # metadata of a node: the op of which it is a tile, or a copy
MOST_NUMBERS = 16  # of a constant that steers an op


def layout_scene(model: ir.Model, shapes: Mapping[str, Shape], places: Mapping[str, int] | None = None) -> LayoutScene:
    """The main graph of a model before the layout step; `shapes` are what the runtime knows of values.

    `places` are those of ops in the file that the runtime reads, where the model's own order is another.
    """
    constants = {name: value.const_value for name, value in model.graph.initializers.items()}
    tensors = {name: tensor for name, tensor in constants.items() if tensor is not None}
    nodes = [*model.graph]
    if places is not None:
        nodes.sort(key=lambda node: places.get(node.name or "", len(places)))
    return LayoutScene(
        ops=tuple(map(_op, nodes)),
        shapes=dict(shapes),
        weights={name: dims_of(each) for name, each in tensors.items() if each.dtype == ir.DataType.FLOAT},
        numbers={
            name: tuple(map(float, each.numpy().ravel()))
            for name, each in tensors.items()
            if prod(dims_of(each)) <= MOST_NUMBERS and each.dtype != ir.DataType.STRING
        },
        outputs=frozenset(value.name or "" for value in model.graph.outputs),
    )


def differing_ops(whole: WholeLayout, model: ir.Model, shapes: Mapping[str, Shape]) -> frozenset[str]:
    """Ops of a whole model of which the layout step makes something else in a model of their tiles and copies."""
    return whole.differing(layout_scene(model, shapes), whole_names(model))


def whole_names(model: ir.Model) -> dict[str, str]:
    """For each node the whole op that it is a tile or a copy of, else its own name."""
    return {
        node.name or "": next(
            (node.metadata_props[key] for key in WHOLE_KEYS if key in node.metadata_props), node.name or ""
        )
        for node in model.graph
    }


def _op(node: ir.Node) -> LayoutOp:
    return LayoutOp(
        name=node.name or "",
        op_type=node.op_type,
        domain="" if node.domain == "ai.onnx" else node.domain,
        reads=tuple("" if value is None else value.name or "" for value in node.inputs),
        makes=tuple(value.name or "" for value in node.outputs),
        attributes={name: each.value for name, each in node.attributes.items() if not _has_body(each)},
    )


def _has_body(attribute: ir.Attr) -> bool:
    return attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def declared_shapes(model: ir.Model) -> dict[str, Shape]:
    """The shapes that a model declares, by value."""
    values = (*model.graph.inputs, *(value for node in model.graph for value in node.outputs))
    return {
        value.name or "": tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
        for value in values
        if value.shape is not None
    }
