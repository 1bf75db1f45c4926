"""What all models made here have in common: versions, attributes, and how nodes become a checked model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

IR_VERSION = 8
OPSET = 17
NEAREST: Mapping[str, Any] = MappingProxyType(
    {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
)

Array = npt.NDArray[np.generic]


def checked_model(
    name: str,
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[str],
    initializers: Iterable[onnx.TensorProto],
) -> onnx.ModelProto:
    """A model with float outputs, all shapes inferred, that passed the checker."""
    ends = [helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None) for output in outputs]
    graph = helper.make_graph(list(nodes), name, list(inputs), ends, list(initializers))
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets, producer_name="remat")
    model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    onnx.checker.check_model(model, full_check=True)
    return model
