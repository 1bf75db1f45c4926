"""Keeps the ops of a loop's body in their order, where the runtime's own would hold more: by gates, as outside.

A default session explores a body depth first, from what the body makes. An op that would come too early reads one of
its inputs through a view that exists once the op before it in the body has run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from remat_cli.onnx_io.read.default_order import wiring_of
from remat_cli.ort_rules.order import depth_first_order
from remat_cli.splitting.loops.loop_values import SizeValues


def runtime_order(nodes: Sequence[ir.Node]) -> list[int]:
    """Positions of a body's nodes in the order of a default session."""
    return depth_first_order([wiring_of(node) for node in nodes])


def in_order(numbers: SizeValues, prefix: str, nodes: Sequence[ir.Node], held: Collection[ir.Node]) -> list[ir.Node]:
    """The nodes, and gates between them that keep those to be held in this order, as far as what they read can wait.

    Each round gates all that would come too early; rounds repeat, as gates change the order of exploration.
    """
    gates: dict[ir.Node, list[ir.Node]] = {}
    while True:
        steps = [(each, node) for node in nodes for each in (*gates.get(node, ()), node)]
        early = _too_early([each for each, _ in steps])
        late = dict.fromkeys(steps[at][1] for at in early)
        waiting = [node for node in late if node in held and node not in gates and _gated_at(node) is not None]
        if not waiting:
            return [each for each, _ in steps]
        for node in waiting:
            gates[node] = _gate(numbers, f"{prefix}turn{len(gates)}", node, _before(nodes, node))


def with_idle_late(
    numbers: SizeValues, prefix: str, nodes: Sequence[ir.Node], idle: Collection[ir.Node]
) -> list[ir.Node]:
    """The nodes, of which those that nothing reads wait for the one before them.

    Where such a node runs depends on its number alone, and the runtime numbers nodes anew when it optimises a body.
    """
    found = list[ir.Node]()
    for node in nodes:
        if node in idle and found and _gated_at(node) is not None:
            found += _gate(numbers, f"{prefix}idle{len(found)}", node, found[-1])
        found.append(node)
    return found


def _too_early(nodes: Sequence[ir.Node]) -> list[int]:
    """Positions of nodes that a default session would run before their turn."""
    early: list[int] = []

    def hold(op: int, place: int) -> int | None:
        if op == place:
            return None
        early.append(op)
        return op - 1

    depth_first_order([wiring_of(node) for node in nodes], hold)
    return sorted(set(early))


def _before(nodes: Sequence[ir.Node], node: ir.Node) -> ir.Node:
    return nodes[next(at for at, each in enumerate(nodes) if each is node) - 1]


def _gated_at(node: ir.Node) -> int | None:
    """The input that may be gated: the first whose rank is known and that an op makes."""
    places = enumerate(node.inputs)
    return next((at for at, value in places if value is not None and value.shape and value.const_value is None), None)


def _gate(numbers: SizeValues, name: str, node: ir.Node, before: ir.Node) -> list[ir.Node]:
    """Ops through which a node reads one of its inputs, once the op before it has run."""
    at = _gated_at(node)
    assert at is not None
    nodes, value = list[ir.Node](), node.inputs[at]
    assert value is not None
    token = next(made for made in before.outputs if made.name)
    node.replace_input_with(at, numbers.waiting(nodes, name, value, token))
    return nodes
