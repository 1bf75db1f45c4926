"""One form for all files that ONNX Runtime's optimiser writes for the same model.

The optimiser walks hash tables, so the order of nodes and the names of the nodes it adds differ between runs. Plans
index the optimised model by position and name, so both are set anew from what does not change: the model's outputs and
the names of tensors.
"""

from __future__ import annotations

import onnx_ir as ir

from remat_cli.onnx_io.default_order import captured_values

GENERATED = ("ReorderInput", "ReorderOutput")  # op types that layout optimisation adds, under numbered names


def canonicalise(model: ir.Model) -> None:
    """Order nodes and weights, and name generated nodes, by the model's interface and tensor names. In place."""
    graph = model.graph
    taken = {node.name for node in graph}
    for node in graph:
        if node.op_type in GENERATED and (name := f"{node.op_type}/{node.outputs[0].name}") not in taken:
            node.name = name
    _reorder(graph)
    weights = sorted(graph.initializers.items())
    graph.initializers.clear()
    graph.initializers.update(weights)


def _reorder(graph: ir.Graph) -> None:
    """Nodes in depth-first order from the outputs as declared, then those that serve no output, by name."""
    unread = [node for node in graph if not any(value.uses() for value in node.outputs)]
    roots = [node for value in graph.outputs if (node := value.producer()) is not None]
    order: dict[ir.Node, None] = {}
    for root in (*roots, *sorted(unread, key=lambda node: node.name or "")):
        _visit(root, graph, order)
    nodes = list(order)
    graph.remove(nodes)
    graph.extend(nodes)


def _visit(root: ir.Node, graph: ir.Graph, order: dict[ir.Node, None]) -> None:
    """Append what `root` needs, in the order of inputs, then `root` itself; without recursion."""
    stack = [(root, False)]
    while stack:
        node, leaving = stack.pop()
        if leaving:
            order[node] = None
        elif node not in order:
            stack.append((node, True))
            sources = [value.producer() for value in (*node.inputs, *captured_values(node)) if value is not None]
            wanted = [source for source in sources if source is not None and source.graph is graph]
            stack += [(source, False) for source in reversed(wanted) if source not in order]
