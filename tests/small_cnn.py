"""A convolutional network so small that an emulated processor runs it in no time."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS, SIZE = 16, 32


def small_cnn(convolutions: int = 4) -> onnx.ModelProto:
    """Convolutions with activations, each added to the one before: the runtime keeps them in its blocked layout."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for number in range(convolutions):
        inputs = 3 if number == 0 else CHANNELS
        kernel = rng.standard_normal((CHANNELS, inputs, 3, 3)).astype(np.float32) / 8
        weights.append(numpy_helper.from_array(kernel, f"w{number}"))
        nodes += [
            helper.make_node("Conv", [last, f"w{number}"], [f"c{number}"], name=f"conv{number}", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"c{number}"], [f"r{number}"], name=f"relu{number}"),
        ]
        made = f"r{number}"
        if number:
            nodes.append(helper.make_node("Add", [made, last], [f"s{number}"], name=f"add{number}"))
            made = f"s{number}"
        last = made
    nodes[-1].output[0] = "y"
    kind = TensorProto.FLOAT
    ports = ([1, 3, SIZE, SIZE], [1, CHANNELS, SIZE, SIZE])
    x, y = (helper.make_tensor_value_info(name, kind, shape) for name, shape in zip("xy", ports, strict=True))
    graph = helper.make_graph(nodes, "small", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
