"""Orders and names the ops of an optimised model by what does not change from one run of the optimiser to the next.

The optimiser walks hash tables, so the order of nodes and the names of the nodes it adds differ between runs. Plans
index the optimised model by position and name, so both are set anew from what does not change: the model's outputs, the
order in which the model makes them, and the names of tensors.
"""

from collections.abc import Sequence

import onnx_ir as ir

from remat_cli.onnx_io.read.default_order import captured_values

GENERATED = ("ReorderInput", "ReorderOutput")  # op types that layout optimisation adds, under numbered names


def outputs_by_place(model: ir.Model) -> list[str]:
    """Names of a model's outputs in the order in which its file makes them.

    A default session explores a model from the last op that nobody reads, so this order is part of what a model says.
    """
    places = {value.name: place for place, node in enumerate(model.graph) for value in node.outputs}
    names = [value.name or "" for value in model.graph.outputs]
    return sorted(names, key=lambda name: places.get(name, -1))


def name_made_weights(model: ir.Model, before: ir.Model) -> None:
    """Name weights that the optimiser added after what reads them first, so that it can add more. In place.

    It takes the same names for such weights every time, `gemm_input_shape` and others, and refuses a file that has one
    of them already when it is about to add it: a second pass, or a session of what was made of the first one's file.
    """
    graph = model.graph
    known = {value.name for node in before.graph for value in node.outputs}
    known |= {value.name for value in before.graph.inputs} | set(before.graph.initializers)
    made = {id(value): value for name, value in graph.initializers.items() if name not in known}
    if not made:
        return
    # Names of other tensors: the new ones must be free.
    taken = known | set(graph.initializers) | {value.name for node in graph for value in node.outputs}
    for node in graph:
        for place, value in enumerate(node.inputs):
            if value is None or made.pop(id(value), None) is None or value.is_graph_output():
                continue
            name = f"{node.outputs[0].name}/of_{place}"
            if name not in taken:
                taken.add(name)
                value.name = name  # the graph knows it by the new name too


def canonicalise(model: ir.Model, ends: Sequence[str]) -> None:
    """Order nodes and weights, and name generated nodes, by the model's interface and tensor names. In place.

    `ends` are the outputs in the order in which the model makes them.
    """
    graph = model.graph
    taken = {node.name for node in graph}
    for node in graph:
        if node.op_type in GENERATED and (name := f"{node.op_type}/{node.outputs[0].name}") not in taken:
            node.name = name
    # Nodes in depth-first order from the last end to the first; those that nobody reads stand last, in order of ends.
    # Nodes that serve no output come first of these, by name.
    makers = {value.name: value.producer() for value in graph.outputs}
    roots = [maker for name in reversed(ends) if (maker := makers[name]) is not None]
    unread = [node for node in graph if not any(value.uses() for value in node.outputs)]
    roots += sorted(unread, key=lambda node: node.name or "", reverse=True)
    # First what a node needs, in the order of inputs, then the node itself; without recursion.
    order: dict[ir.Node, None] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, leaving = stack.pop()
        if leaving:
            order[node] = None
        elif node not in order:
            stack.append((node, True))
            sources = [value.producer() for value in (*node.inputs, *captured_values(node)) if value is not None]
            wanted = [source for source in sources if source is not None and source.graph is graph]
            stack += [(source, False) for source in reversed(wanted) if source not in order]
    idle = set(unread)
    nodes = [*(node for node in order if node not in idle), *(node for node in reversed(order) if node in idle)]
    graph.remove(nodes)
    graph.extend(nodes)
    weights = sorted(graph.initializers.items())
    graph.initializers.clear()
    graph.initializers.update(weights)
