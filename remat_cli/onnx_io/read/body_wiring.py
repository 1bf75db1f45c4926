"""Which values the ops in bodies read and make, and which are dead after each: what a run of a body is followed by."""

from collections.abc import Mapping

import onnx_ir as ir

from remat_cli.onnx_io.read.default_order import captured_values, default_order, subgraphs
from remat_cli.ort_rules.bodies import KernelWiring

ROUNDS_OPS = frozenset({"Loop", "Scan"})
"""Run their body again and again."""


def body_wiring(model: ir.Model) -> dict[str, KernelWiring]:
    """The wiring of every op in a body of the model, by name; ops have names of their own."""
    numbers: dict[ir.Value, int] = {}
    found: dict[str, KernelWiring] = {}
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for body in subgraphs(node):
            found |= _wiring_of(body, numbers, has_rounds=node.op_type in ROUNDS_OPS)
    return found


def _wiring_of(body: ir.Graph, numbers: dict[ir.Value, int], *, has_rounds: bool) -> Mapping[str, KernelWiring]:
    """The wiring of the ops of one body in the order of a default session; values of all bodies have numbers."""

    def number(value: ir.Value) -> int:
        return numbers.setdefault(value, len(numbers))

    listed = list(body)
    nodes = [listed[place] for place in default_order(listed)]
    reads = {node: tuple(value for value in (*node.inputs, *captured_values(node)) if value) for node in nodes}
    own = {value for node in nodes for value in node.outputs} - set(body.outputs)
    last: dict[ir.Value, ir.Node] = {}
    for node in nodes:
        last |= dict.fromkeys((*node.outputs, *reads[node]), node)
    dies: dict[ir.Node, list[int]] = {}
    for value, node in last.items():
        if value in own:
            dies.setdefault(node, []).append(number(value))
    found: dict[str, KernelWiring] = {}
    for place, node in enumerate(nodes):
        ends = [inner.outputs[-len(node.outputs) :] for inner in subgraphs(node)]
        found[node.name or ""] = KernelWiring(
            reads=tuple(map(number, reads[node])),
            makes=tuple(map(number, node.outputs)),
            dies=tuple(dies.get(node, ())),
            passes=tuple(tuple(map(number, each)) for each in zip(*ends, strict=False)),
            is_first=has_rounds and not place,
        )
    return found
