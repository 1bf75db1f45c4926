"""Computes the orders in which ONNX Runtime executes a model's ops, and says what each op reads."""

from collections.abc import Callable, Sequence

import onnx_ir as ir

from remat_cli.ort_rules.order import EARLY_OPS, Wiring, depth_first_order, ready_order


def default_order(nodes: Sequence[ir.Node]) -> list[int]:
    """Indices of `nodes` in the order of a default session; `Constant` nodes are left out, as the runtime does."""
    return _ordered(nodes, depth_first_order)


def priority_order(nodes: Sequence[ir.Node]) -> list[int]:
    """Indices of `nodes` in the order of a session with priority-based execution; `Constant` nodes are left out."""
    return _ordered(nodes, ready_order)


def _ordered(nodes: Sequence[ir.Node], order: Callable[[list[Wiring]], list[int]]) -> list[int]:
    kept = [index for index, node in enumerate(nodes) if not is_constant(node)]
    return [kept[i] for i in order([wiring_of(nodes[index]) for index in kept])]


def is_constant(node: ir.Node) -> bool:
    """Whether a node is a constant written as an op, which the runtime turns into a weight."""
    return node.op_type == "Constant" and node.domain in ("", "ai.onnx")


def wiring_of(node: ir.Node) -> Wiring:
    """Names that a node reads and makes; optional ones left out are skipped."""
    reads = (value.name for value in (*node.inputs, *captured_values(node)) if value is not None and value.name)
    makes = tuple(value.name for value in node.outputs if value.name)
    return Wiring(tuple(dict.fromkeys(reads)), makes, node.op_type in EARLY_OPS and node.domain in ("", "ai.onnx"))


def captured_values(node: ir.Node) -> tuple[ir.Value, ...]:
    """Values from outside that the subgraphs of a node read, each once."""
    bodies = subgraphs(node)
    if not bodies:
        return ()
    inside: set[ir.Value] = set()
    read: dict[ir.Value, None] = {}
    for body in bodies:
        inside.update((*body.inputs, *body.initializers.values()))
        for inner in ir.traversal.RecursiveGraphIterator(body):
            inside.update(inner.outputs)
            read.update(dict.fromkeys(value for value in inner.inputs if value is not None))
            for nested in subgraphs(inner):
                inside.update((*nested.inputs, *nested.initializers.values()))
                read.update(dict.fromkeys(nested.outputs))
        read.update(dict.fromkeys(body.outputs))
    return tuple(value for value in read if value not in inside)


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """The graphs that a node has as attributes."""
    bodies: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            bodies.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            bodies.extend(attribute.as_graphs())
    return bodies
