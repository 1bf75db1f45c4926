"""Copies ops, and models whose nodes stand in any order, as sessions take them."""

import copy
from typing import Any

import onnx_ir as ir

from remat_cli.onnx_io.read.default_order import wiring_of
from remat_cli.ort_rules.order import ready_order


def copy_of(model: ir.Model) -> ir.Model:
    """A copy that shares the model's tensors and has its nodes in the same order.

    `clone` alone fails where a node stands above one whose result it reads.
    """
    graph, nodes = model.graph, [*model.graph]
    order = ready_order([wiring_of(node) for node in nodes])
    if order == [*range(len(nodes))]:
        return model.clone()
    in_order: Any = copy.copy(model)
    in_order.graph = ir.GraphView(
        graph.inputs,
        graph.outputs,
        nodes=[nodes[place] for place in order],
        initializers=[*graph.initializers.values()],
        doc_string=graph.doc_string,
        opset_imports=graph.opset_imports,
        name=graph.name,
        metadata_props=graph.metadata_props,
    )
    new: ir.Model = in_order.clone()
    made = dict(zip(order, new.graph, strict=True))
    new.graph.remove(made.values())
    new.graph.extend(made[place] for place in range(len(nodes)))
    return new


def op_like(node: ir.Node, name: str) -> ir.Node:
    """An op that reads what another reads, and makes as much: nothing is said of its results yet."""
    return ir.Node(
        node.domain,
        node.op_type,
        node.inputs,
        node.attributes.values(),
        overload=node.overload,
        num_outputs=len(node.outputs),
        version=node.version,
        name=name,
    )
