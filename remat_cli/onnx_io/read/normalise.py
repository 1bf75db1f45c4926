"""Repairs a model in place, so that it is easy to index: ops have names, constants are weights, nothing is unused."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from remat_cli.base.present import present
from remat_cli.onnx_io.read.default_order import is_constant, subgraphs
from remat_cli.onnx_io.read.interface import dims_of
from remat_cli.onnx_io.read.op_facts import CONTRIB, ONNX
from remat_cli.onnx_io.write.assemble import inferred
from remat_cli.ort_rules.records import PACKING

LIFTED = "remat.lifted"  # in the `meta` of an initialiser that was a `Constant` node


def fresh_name(wanted: str, taken: set[str]) -> str:
    """`wanted`, or with a number behind it, such that it is not in `taken`; it is added there.

    The number below the one that is given is taken. Numbers are mostly given out without gaps, so that it is the least
    that is free, and found by doubling and halving: thousands of ops without a name are named after their operator.
    """
    name = wanted
    if not wanted or wanted in taken:
        below, free = 0, 1
        while f"{wanted}_{free}" in taken:
            below, free = free, 2 * free
        while free - below > 1:
            middle = (below + free) // 2
            if f"{wanted}_{middle}" in taken:
                below = middle
            else:
                free = middle
        name = f"{wanted}_{free}"
    taken.add(name)
    return name


def name_nodes(graph: ir.Graph) -> None:
    """Give every node, those in subgraphs included, a name of its own; names that are unique already stay."""
    taken: set[str] = set()
    for node in ir.traversal.RecursiveGraphIterator(graph):
        node.name = fresh_name(node.name or node.op_type, taken)


_CONSTANT_FORMS: Mapping[str, Callable[[Any], ir.TensorProtocol]] = {
    "value": lambda attribute: attribute.as_tensor(),
    "value_float": lambda attribute: ir.tensor(np.float32(attribute.as_float())),
    "value_floats": lambda attribute: ir.tensor(np.array(attribute.as_floats(), np.float32)),
    "value_int": lambda attribute: ir.tensor(np.int64(attribute.as_int())),
    "value_ints": lambda attribute: ir.tensor(np.array(attribute.as_ints(), np.int64)),
}
"""The attribute that says the value of a `Constant` node; sparse and string ones are not among them."""


def lift_constants(graph: ir.Graph) -> None:
    """Turn the `Constant` nodes of the main graph into initialisers of the same name, but sparse and string ones."""
    for node in [node for node in graph if is_constant(node)]:
        form = next((name for name in _CONSTANT_FORMS if name in node.attributes), None)
        if form is None:
            continue
        tensor = _CONSTANT_FORMS[form](node.attributes[form])
        old = node.outputs[0]
        name = old.name
        shape = ir.Shape(dims_of(tensor))
        weight = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
        weight.meta[LIFTED] = True
        old.replace_all_uses_with(weight, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        graph.register_initializer(weight)


def lifted_constants(graph: ir.Graph) -> frozenset[str]:
    """Names of the initialisers that were `Constant` nodes, as far as this is known."""
    return frozenset(name for name, value in graph.initializers.items() if value.meta.get(LIFTED))


def weights_leave_inputs(graph: ir.Graph) -> None:
    """Take initialisers out of the graph's inputs, where IR versions below 4 had to list them."""
    graph.inputs[:] = [value for value in graph.inputs if value.name not in graph.initializers]


def inputs_become_weights(graph: ir.Graph, weights: Mapping[str, ir.TensorProtocol]) -> None:
    """Turn inputs into initialisers of these values."""
    for value in [value for value in graph.inputs if value.name in weights]:
        value.const_value = weights[value.name or ""]
        graph.inputs.remove(value)
        graph.register_initializer(value)


def drop_trailing_blanks(graph: ir.Graph) -> None:
    """Cut empty inputs off the end of every node's inputs: the same by definition, and fusions that read them crash."""
    for node in ir.traversal.RecursiveGraphIterator(graph):
        used = [place for place, value in enumerate(node.inputs) if value is not None]
        node.resize_inputs(max(used, default=-1) + 1)


RECURRENT = frozenset({(ONNX, "RNN"), (ONNX, "GRU"), (ONNX, "LSTM"), (CONTRIB, "DynamicQuantizeLSTM")})


def drop_unread_states(graph: ir.Graph) -> None:
    """Leave out what recurrent ops make and nothing reads: the same steps are made, and less is held.

    TensorFlow's, Keras's, Paddle's and torch's exporters name all states, though most models read one of them.
    """
    for node in ir.traversal.RecursiveGraphIterator(graph):
        if (node.domain, node.op_type) in RECURRENT:
            for value in node.outputs:
                if not value.uses() and not value.is_graph_output():
                    value.name = ""


def idle_casts_pass_on(model: ir.Model) -> None:
    """Make an Identity of every Cast to the type that it reads; the runtime drops such ops when it loads a file.

    The runtime writes no types of values in models that it optimised, so they are inferred; where ONNX cannot, behind
    ops of the runtime's own, a Cast stays. In place.
    """
    casts = [node for node in model.graph if node.op_type == "Cast" and node.domain in ("", "ai.onnx")]
    if not casts:
        return
    proto = inferred(model, data_prop=False)
    ports = (*proto.graph.input, *proto.graph.value_info, *proto.graph.output)
    types = {port.name: port.type.tensor_type.elem_type for port in ports}
    types |= {weight.name: weight.data_type for weight in proto.graph.initializer}
    for node in casts:
        read = present(node.inputs[0], f"what '{node.name}' reads")
        if types.get(read.name or "") == node.attributes["to"].as_int():
            node.op_type = "Identity"
            node.attributes.clear()


def drop_unused_weights(graph: ir.Graph) -> None:
    """Remove initialisers that neither an op, nor a subgraph, nor an output reads.

    Those that are inputs too stay, for without its default an input must be fed.
    """
    ends = {*graph.inputs, *graph.outputs}
    for name in [name for name, value in graph.initializers.items() if not value.uses() and value not in ends]:
        del graph.initializers[name]


LEAST_LIFTED_BYTES = 1024  # smaller weights of bodies stay there, where shapes that they say are known


def lift_body_weights(model: ir.Model) -> None:
    """Move large weights of bodies out of them, as far as kernels do the same with them there.

    The runtime keeps those that a body has itself more than once, packed or not. A kernel packs what it reads from
    right outside as it packs what its own graph has, but nothing from further out: what it packs moves by one graph.
    """
    found = [
        (
            model.graph if not any(use.node.op_identifier()[:2] in PACKING for use in value.uses()) else graph,
            body,
            value,
        )
        for graph in model.graphs()
        for node in graph
        for body in subgraphs(node)
        for value in body.initializers.values()
        if _can_leave(value, body)
    ]
    taken = names_in(model) if found else set()
    for graph, body, value in found:
        del body.initializers[value.name or ""]
        value.name = fresh_name(value.name or "", taken)  # other bodies may have values of the same name
        graph.register_initializer(value)


def names_of_bodies(graph: ir.Graph, around: frozenset[str] = frozenset()) -> None:
    """Give values of bodies names that no value around them has, in place.

    The runtime counts names of inlined functions in each graph anew: of a function that is called in a body and around
    it, it writes a file that it does not read.
    """
    own = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    taken = {*around, *_names(own)}
    for value in own:
        if value.name in around:
            value.name = fresh_name(value.name or "", taken)
    for node in graph:
        for body in subgraphs(node):
            names_of_bodies(body, frozenset(taken))


def _can_leave(value: ir.Value, body: ir.Graph) -> bool:
    """Whether a weight of a body is large, and no kernel that may pack it reads it from further in."""
    tensor = value.const_value
    if tensor is None or tensor.nbytes <= LEAST_LIFTED_BYTES or value in body.inputs or value.is_graph_output():
        return False
    return all(use.node.graph is body or use.node.op_identifier()[:2] not in PACKING for use in value.uses())


def names_in(model: ir.Model) -> set[str]:
    """Names of all values and nodes, in all graphs."""
    taken: set[str] = set()
    for graph in model.graphs():
        taken.update(_names(graph.inputs), graph.initializers)
        for node in graph:
            taken.update(_names(node.outputs), [node.name or ""])
    return taken


def _names(values: Iterable[ir.Value]) -> list[str]:
    return [value.name or "" for value in values]
