"""Putting primers into a model that is written with packed copies of its weights, and taking them out again."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from remat_cli.core.primers import PREFIX, PRODUCTS, ROWS
from remat_cli.core.steady import BODY

OLDEST_OPSET = 11  # the first in which a Gemm needs no third input


def can_be_primed(model: ir.Model) -> bool:
    """Whether a model's opset has what primers are made of."""
    opsets = model.graph.opset_imports
    return opsets.get("", opsets.get("ai.onnx", 0)) >= OLDEST_OPSET


def primed(model: ir.Model) -> ir.Model:
    """The model with primers before the ops that pack its weights; `can_be_primed` must hold.

    A session packs weights in the order of a graph's nodes, those of a branch after those around it: so they are the
    first nodes of the graph inside the steady form, where there is one. Nothing reads what they make.
    """
    new = model.clone()
    tensor = ir.tensor(np.zeros((ROWS, 1), np.float32), name=f"{PREFIX}weight")
    weight = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape([ROWS, 1]), const_value=tensor)
    new.graph.register_initializer(weight)
    graph, nodes = _packing_graph(new), list(_products(weight))
    if len(graph):
        graph.insert_before(graph[0], nodes)
    return new


def without_primers(model: ir.Model) -> bool:
    """Take primers out of a model, in place; whether there were any."""
    graph = _packing_graph(model)
    found = [node for node in graph if (node.name or "").startswith(PREFIX)]
    graph.remove(found, safe=True)
    for name in [name for name in model.graph.initializers if name.startswith(PREFIX)]:
        del model.graph.initializers[name]
    return bool(found)


def _packing_graph(model: ir.Model) -> ir.Graph:
    """The graph whose ops pack the model's weights: the one inside the steady form, or all there is."""
    body = next((node for node in model.graph if node.name == BODY and "then_branch" in node.attributes), None)
    return model.graph if body is None else body.attributes["then_branch"].as_graph()


def _products(weight: ir.Value) -> Iterator[ir.Node]:
    """An op that makes a matrix without rows, which no optimiser computes beforehand, and products with it.

    Each has a factor of its own, or the runtime would keep only one of them.
    """
    nothing = ir.Value(name=f"{PREFIX}nothing", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([0, ROWS]))
    made = [ir.AttrInt64s("shape", [0, ROWS]), ir.AttrFloat32("seed", 0.0)]
    yield ir.Node("", "RandomUniform", [], made, outputs=[nothing], name=nothing.name)
    for number in range(PRODUCTS):
        result = ir.Value(name=f"{PREFIX}{number}", type=nothing.type, shape=ir.Shape([0, 1]))
        factor = [ir.AttrFloat32("alpha", float(1 + number))]
        yield ir.Node("", "Gemm", [nothing, weight], factor, outputs=[result], name=result.name)
