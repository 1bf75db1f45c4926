"""Build examples/digits.onnx: a small convolutional net for 8 x 8 images of handwritten digits, seeded."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

WIDTHS = (1, 32, 32, 32, 32, 64, 64, 64)


def digits() -> onnx.ModelProto:
    """Seven convolutions, one pooling, ten classes."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for layer, (inner, outer) in enumerate(pairwise(WIDTHS), 1):
        kernel = rng.standard_normal((outer, inner, 3, 3)) * (2 / (9 * inner)) ** 0.5
        weights += [_weight(f"conv{layer}.weight", kernel), _weight(f"conv{layer}.bias", np.zeros(outer))]
        reads = [last, f"conv{layer}.weight", f"conv{layer}.bias"]
        nodes.append(helper.make_node("Conv", reads, [f"c{layer}"], f"conv{layer}", pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"], f"relu{layer}"))
        last = f"r{layer}"
        if layer == 4:
            nodes.append(helper.make_node("MaxPool", [last], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]))
            last = "p"
    weights += [_weight("head.weight", rng.standard_normal((64, 10)) / 8), _weight("head.bias", np.zeros(10))]
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["g"], "mean"))
    nodes.append(helper.make_node("Flatten", ["g"], ["f"], "flatten"))
    nodes.append(helper.make_node("Gemm", ["f", "head.weight", "head.bias"], ["logits"], "head"))
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 1, 8, 8])
    logits = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", 10])
    graph = helper.make_graph(nodes, "digits", [x], [logits], weights)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)], producer_name="remat")
    onnx.checker.check_model(model, full_check=True)
    return model


def _weight(name: str, values: np.ndarray) -> onnx.TensorProto:  # type: ignore[type-arg]
    return numpy_helper.from_array(values.astype(np.float32), name)


if __name__ == "__main__":
    onnx.save(digits(), Path(__file__).with_name("digits.onnx"))
