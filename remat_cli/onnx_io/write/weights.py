"""New weights of a model, as values that its ops read."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import onnx_ir as ir


def new_weight(name: str, array: npt.NDArray[Any]) -> ir.Value:
    """A weight that no graph has as yet."""
    tensor = ir.tensor(array, name=name)
    weight = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape))
    weight.const_value = tensor
    return weight


def weight_in(graph: ir.Graph, name: str, array: npt.NDArray[Any]) -> ir.Value:
    """A weight of a graph, one for each name."""
    if name not in graph.initializers:
        graph.register_initializer(new_weight(name, array))
    return graph.initializers[name]
