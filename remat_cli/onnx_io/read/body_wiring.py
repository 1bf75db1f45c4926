"""Which values the ops in bodies read and make, and which are dead after each: what a run of a body is followed by."""

import onnx_ir as ir

from remat_cli.onnx_io.read.default_order import captured_values, default_order, subgraphs
from remat_cli.ort_rules.bodies import KernelWiring

ROUNDS_OPS = frozenset({"Loop", "Scan"})
"""Run their body again and again."""


def body_wiring(model: ir.Model) -> dict[str, KernelWiring]:
    """The wiring of every op in a body of the model, by name; ops have names of their own."""
    numbers: dict[ir.Value, int] = {}  # those of values of all bodies

    def number(value: ir.Value) -> int:
        return numbers.setdefault(value, len(numbers))

    found: dict[str, KernelWiring] = {}
    bodies = [(body, op) for op in ir.traversal.RecursiveGraphIterator(model.graph) for body in subgraphs(op)]
    for body, op in bodies:
        # Its ops in the order of a default session.
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
        for place, node in enumerate(nodes):
            ends = [inner.outputs[-len(node.outputs) :] for inner in subgraphs(node)]
            found[node.name or ""] = KernelWiring(
                reads=tuple(map(number, reads[node])),
                makes=tuple(map(number, node.outputs)),
                dies=tuple(dies.get(node, ())),
                passes=tuple(tuple(map(number, each)) for each in zip(*ends, strict=False)),
                is_first=op.op_type in ROUNDS_OPS and not place,
            )
    return found
