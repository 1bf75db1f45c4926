"""Reads from a model what the runtime's layout step looks at, and which whole ops its tiles and copies stand for."""

from collections.abc import Mapping
from math import prod

import msgspec
import onnx_ir as ir

from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.orders import ranked_order
from remat_cli.onnx_io.read.interface import dims_of
from remat_cli.ort_rules.layout import CONV, SENSITIVE, WINDOWS, LayoutOp, LayoutScene, Shape, WholeLayout

SPLIT_OF = "remat.split_of"  # metadata of a node: the op of the whole model of which it is a tile or a part
WHOLE_KEYS = (SPLIT_OF, "remat.clone_of")  # or a copy
FUSED = "sessions fuse it with another op, and would fuse a copy of it in another way"
STEERED = SENSITIVE | WINDOWS
MOST_NUMBERS = 16  # of a constant that steers an op


def layout_scene(model: ir.Model, shapes: Mapping[str, Shape], places: Mapping[str, int] | None = None) -> LayoutScene:
    """The main graph of a model before the layout step; `shapes` are what the runtime knows of values.

    `places` are those of ops in the file that the runtime reads, where the model's own order is another.
    """
    constants = {name: value.const_value for name, value in model.graph.initializers.items()}
    tensors = {name: tensor for name, tensor in constants.items() if tensor is not None}
    nodes = [*model.graph]
    if places is not None:
        nodes = _as_placed(nodes, places)
    bodies = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    ops = tuple(
        LayoutOp(
            name=node.name or "",
            op_type=node.op_type,
            domain="" if node.domain == "ai.onnx" else node.domain,
            reads=tuple("" if value is None else value.name or "" for value in node.inputs),
            makes=tuple(value.name or "" for value in node.outputs),
            attributes={name: each.value for name, each in node.attributes.items() if each.type not in bodies},
        )
        for node in nodes
    )
    return LayoutScene(
        ops=ops,
        shapes=dict(shapes),
        weights={name: dims_of(each) for name, each in tensors.items() if each.dtype == ir.DataType.FLOAT},
        numbers={
            name: tuple(map(float, each.numpy().ravel()))
            for name, each in tensors.items()
            if prod(dims_of(each)) <= MOST_NUMBERS and each.dtype != ir.DataType.STRING
        },
        outputs=frozenset(value.name or "" for value in model.graph.outputs),
    )


def _as_placed(nodes: list[ir.Node], places: Mapping[str, int]) -> list[ir.Node]:
    """Nodes in the order of a file; those that it has not, as fusions make them, as soon as what they read is there."""
    numbers = {node: number for number, node in enumerate(nodes)}
    makers = ({value.producer() for value in node.inputs if value is not None} for node in nodes)
    sources = [{numbers[maker] for maker in each if maker in numbers} for each in makers]
    return [nodes[number] for number in ranked_order(sources, [places.get(node.name or "", -1) for node in nodes])]


def differing_ops(whole: WholeLayout, model: ir.Model, shapes: Mapping[str, Shape]) -> frozenset[str]:
    """Ops of a whole model of which the layout step makes something else in a model of their tiles and copies."""
    return whole.differing(layout_scene(model, shapes), whole_names(model))


def in_turn(model: ir.Model, whole: WholeLayout) -> tuple[tuple[str, str], ...]:
    """Pairs of convolutions that are added up, the first of which must stand before the other in a file.

    Where there are no blocks the one that stands first takes in the sum, and in blocks the one that is read first.
    """
    names, found = whole_names(model), list[tuple[str, str]]()
    plain = whole.fates.get(1, {})
    for node in model.graph:
        makers = [None if value is None else value.producer() for value in node.inputs]
        convs = [maker.name or "" for maker in makers if maker is not None and maker.op_type == CONV]
        if node.op_type != "Add" or len(convs) < len(makers):
            continue
        takers = {each for _, together in plain.get(names[node.name or ""], ()) for each in together}
        first = [name for name in convs if names[name] in takers]
        if len(first) == 1 and len(convs) == 2:
            found.append((first[0], next(name for name in convs if name != first[0])))
    return tuple(found)


def run_once(graph: Graph, model: ir.Model, whole: WholeLayout) -> Graph:
    """The graph of a model, no op of which may run again that sessions fuse, or would fuse where it is read once.

    A copy of it would be fused in another way, and have other bits.
    """
    names = whole_names(model)
    summed = {tensor for op in graph.ops if op.op_type in ("Add", "Sum") for tensor in op.inputs}
    ops = tuple(
        msgspec.structs.replace(op, why_not_repeatable=FUSED)
        if op.repeatable and (names.get(op.name) in whole.fused or (op.op_type == CONV and summed & {*op.outputs}))
        else op
        for op in graph.ops
    )
    return msgspec.structs.replace(graph, ops=ops)


def layout_weights(model: ir.Model) -> frozenset[str]:
    """Constants that the layout step reads: it takes an op only where these belong to the op's own graph."""
    reads = (value for node in model.graph if node.op_type in STEERED for value in node.inputs if value is not None)
    return frozenset(value.name or "" for value in reads if value.name in model.graph.initializers)


def whole_names(model: ir.Model) -> dict[str, str]:
    """For each node the whole op that it is a tile or a copy of, else its own name."""
    return {
        node.name or "": next(
            (node.metadata_props[key] for key in WHOLE_KEYS if key in node.metadata_props), node.name or ""
        )
        for node in model.graph
    }


def carry_whole_names(before: ir.Model, after: ir.Model) -> ir.Model:
    """Say again in an optimised model of which whole ops its ops are tiles. In place; returns `after`.

    The runtime drops what a model says of its nodes where it rewrites them; their names stay.
    """
    said = {node.name: node.metadata_props for node in before.graph}
    for node in after.graph:
        known = said.get(node.name, {})
        for key in (key for key in WHOLE_KEYS if key in known):
            node.metadata_props.setdefault(key, known[key])
    return after


def declared_shapes(model: ir.Model) -> dict[str, Shape]:
    """The shapes that a model declares, by value."""
    values = (*model.graph.inputs, *(value for node in model.graph for value in node.outputs))
    return {
        value.name or "": tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
        for value in values
        if value.shape is not None
    }
