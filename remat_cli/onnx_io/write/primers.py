"""Puts primers into a model that is written with packed copies of its weights, and takes them out again."""

from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from remat_cli.base.present import present
from remat_cli.onnx_io.read.interface import fed_inputs
from remat_cli.ort_rules.primers import COLUMNS, PREFIX, PRODUCTS, SMALL_BYTES, SMALL_PRODUCTS
from remat_cli.ort_rules.steady import BODY

WEIGHT = np.zeros((1, COLUMNS), np.float32)
OLDEST_OPSET = 11  # the first in which a Gemm needs no third input


def can_be_primed(model: ir.Model) -> bool:
    """Whether a model has what primers are made of: a recent opset, and an input with dimensions."""
    opsets = model.graph.opset_imports
    return opsets.get("", opsets.get("ai.onnx", 0)) >= OLDEST_OPSET and _fed(model) is not None


def primed(model: ir.Model) -> ir.Model:
    """The model with primers before the ops that pack its weights; `can_be_primed` must hold.

    A session packs weights in the order of a graph's nodes, those of a branch after those around it: so they are the
    first nodes of the graph inside the steady form, where there is one. Nothing reads what they make.
    """
    new = model.clone()
    fed = present(_fed(new), "an input that primers read")
    weight, none = _constant(new, "weight", WEIGHT), _constant(new, "none", np.zeros(0, np.bool_))
    graph = _packing_graph(new)
    nodes = list(_products(fed, weight, none))
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


def _fed(model: ir.Model) -> ir.Value | None:
    """An input of numbers that has dimensions."""
    inputs = fed_inputs(model.graph)
    return next((value for value in inputs if value.shape and value.dtype not in (None, ir.DataType.STRING)), None)


def _packing_graph(model: ir.Model) -> ir.Graph:
    """The graph whose ops pack the model's weights: the one inside the steady form, or all there is."""
    body = next((node for node in model.graph if node.name == BODY and "then_branch" in node.attributes), None)
    return model.graph if body is None else body.attributes["then_branch"].as_graph()


def _constant(model: ir.Model, name: str, values: Any) -> ir.Value:
    """A new weight of the model."""
    tensor = ir.tensor(values, name=f"{PREFIX}{name}")
    kind, shape = ir.TensorType(tensor.dtype), ir.Shape(values.shape)
    weight = ir.Value(name=tensor.name, type=kind, shape=shape, const_value=tensor)
    model.graph.register_initializer(weight)
    return weight


def _products(fed: ir.Value, weight: ir.Value, none: ir.Value) -> Iterator[ir.Node]:
    """Ops that take no element of an input, and no row of the weight for it; then products with the weight.

    So there is a matrix without rows that no optimiser can compute beforehand. Each product has a factor of its own, or
    the runtime would keep only one of them.
    """
    taken = yield from _op("Compress", "taken", [fed, none])
    places = yield from _op("Cast", "places", [taken], to=ir.DataType.INT64.value)
    rows = yield from _op("Gather", "rows", [weight, places])
    for number in range(PRODUCTS):
        yield from _op("Gemm", str(number), [rows, weight], alpha=float(1 + number), transB=1)
    # Small products all hold the same values: of values that it has not met yet a session notes something, which takes
    # a place up again.
    thin = yield from _op("Gemm", "thin", [rows, weight], alpha=0.5, transB=1)
    values = np.ones((1, SMALL_BYTES // 4), np.float32)
    for number in range(SMALL_PRODUCTS):
        # Inside the graph that packs it, so that a session drops it once it is packed.
        name = f"{PREFIX}small_{number}"
        small = ir.Value(name=name)
        yield ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(values))], outputs=[small], name=name)
        yield from _op("Gemm", f"of_small_{number}", [thin, small], alpha=float(1 + number))


def _op(op_type: str, name: str, inputs: list[ir.Value], **attributes: float) -> Generator[ir.Node, None, ir.Value]:
    name = f"{PREFIX}{name}"
    made = ir.Value(name=name)
    given = [
        ir.AttrFloat32(key, n) if isinstance(n, float) else ir.AttrInt64(key, int(n)) for key, n in attributes.items()
    ]
    yield ir.Node("", op_type, inputs, given, outputs=[made], name=name)
    return made
