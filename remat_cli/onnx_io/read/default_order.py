"""The orders in which ONNX Runtime executes a graph, predicted from names alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from remat_cli.core.schedule.orders import ranked_order

EARLY_OPS = frozenset({"Shape", "Size"})  # a priority-based session runs these as soon as their input exists


@dataclass(frozen=True)
class Wiring:
    """What one op reads (values captured by its subgraphs included) and makes, by name, and whether it runs early."""

    reads: tuple[str, ...]
    makes: tuple[str, ...]
    early: bool = False


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


def producers(ops: Sequence[Wiring]) -> list[list[int]]:
    """For each op the ops whose results it reads, each once, in ascending order."""
    maker = {name: index for index, op in enumerate(ops) for name in op.makes}
    return [sorted({maker[name] for name in op.reads if name in maker}) for op in ops]


Correct = Callable[[int, int], int | None]


def depth_first_order(ops: Sequence[Wiring], correct: Correct = lambda op, place: None) -> list[int]:
    """Order of a default session: reverse depth-first search from the ops that nobody reads.

    The last such op is explored first, and at every op the producer with the highest index. `correct(op, place)` is
    asked before an op is given its place in the order and may name an op that must come before it.
    """
    sources = producers(ops)
    used = {source for group in sources for source in group}
    stack = [(op, False) for op in range(len(ops)) if op not in used]
    seen: set[int] = set()
    order: list[int] = []
    while stack:
        op, leaving = stack.pop()
        if leaving:
            before = correct(op, len(order))
            if before is None:
                order.append(op)
            else:
                stack += [(op, True), (before, False)]
        elif op not in seen:
            seen.add(op)
            stack.append((op, True))
            stack += [(source, False) for source in sources[op] if source not in seen]
    return order


def ready_order(ops: Sequence[Wiring]) -> list[int]:
    """Order of a priority-based session: of the ops that are ready, `Shape` and `Size` first, then the lowest index."""
    return ranked_order(producers(ops), [not op.early for op in ops])
