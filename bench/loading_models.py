"""Models with weights of 128 KiB to 64 MiB that kernels pack, as `bench.loading` compiles and loads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray


class Draft:
    """Appends nodes and weights, drawn at random; every method returns the name of what it makes."""

    def __init__(self, *shape: int) -> None:
        """Start with an input `x` of this shape."""
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def op(self, op_type: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> str:
        """An op; of several results the first is returned, the others are named `NAME_1` and so on."""
        name = f"{op_type}_{len(self.nodes)}"
        results = [name, *(f"{name}_{number}" for number in range(1, outputs))]
        self.nodes.append(helper.make_node(op_type, inputs, results, name=name, **attributes))
        return name

    def weight(self, *shape: int) -> str:
        """Numbers of a size that keeps values near one."""
        values = self._random.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-2]))
        return self.constant(values)

    def constant(self, values: Array) -> str:
        """A weight of these values."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def product(self, x: str, rows: int, columns: int) -> str:
        """A product with a weight of this many rows and columns."""
        return self.op("MatMul", [x, self.weight(rows, columns)])

    def save(self, path: Path, result: str) -> None:
        """Write the model; the runtime finds the shape of its output."""
        ports = (
            helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape),
            helper.make_tensor_value_info(result, TensorProto.FLOAT, None),
        )
        graph = helper.make_graph(self.nodes, "loading", [ports[0]], [ports[1]], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(onnx.shape_inference.infer_shapes(model), path)


def chain(path: Path, batch: int, widths: Sequence[int]) -> None:
    """Products with one weight after the other."""
    draft = Draft(batch, widths[0])
    x = "x"
    for rows, columns in pairwise(widths):
        x = draft.op("Relu", [draft.product(x, rows, columns)])
    draft.save(path, x)


def transformer(path: Path, layers: int = 6, width: int = 512, length: int = 128) -> None:
    """Layers of attention of one head and two larger products: weights of 1 and 4 MiB."""
    draft = Draft(1, length, width)
    x = "x"
    scale, shift = (draft.constant(np.full(width, value, np.float32)) for value in (1, 0))
    for _ in range(layers):
        query, key, value = (draft.product(x, width, width) for _ in range(3))
        turned = draft.op("Transpose", [key], perm=[0, 2, 1])
        scores = draft.op("Softmax", [draft.op("MatMul", [query, turned])], axis=-1)
        mixed = draft.product(draft.op("MatMul", [scores, value]), width, width)
        x = draft.op("LayerNormalization", [draft.op("Add", [x, mixed]), scale, shift])
        wide = draft.op("Relu", [draft.product(x, width, 4 * width)])
        x = draft.op("LayerNormalization", [draft.op("Add", [x, draft.product(wide, 4 * width, width)]), scale, shift])
    draft.save(path, x)


def recurrent(path: Path, layers: int = 3, width: int = 1024, steps: int = 16) -> None:
    """LSTMs, each with two weights of 16 MiB."""
    draft = Draft(steps, 1, width)
    x, axis = "x", draft.constant(np.array([1], np.int64))
    for _ in range(layers):
        weights = [draft.weight(1, 4 * width, width) for _ in range(2)]
        x = draft.op("Squeeze", [draft.op("LSTM", ["x" if x == "x" else x, *weights], hidden_size=width), axis])
    draft.save(path, x)


def convolutions(path: Path, side: int = 56, channels: int = 512) -> None:
    """Convolutions with weights of 9 MiB, which are not packed, before products with weights of 64, 16 and 4 MiB."""
    draft = Draft(1, 64, side, side)
    x, before = "x", 64
    for _ in range(4):
        kernel = draft.weight(channels, before, 3, 3)
        x, before = draft.op("Relu", [draft.op("Conv", [x, kernel], pads=[1, 1, 1, 1], strides=[2, 2])]), channels
    shape = draft.constant(np.array([1, 4096], np.int64))
    pooled = draft.op("AveragePool", [x], kernel_shape=[2, 1], strides=[2, 1])
    x = draft.op("Reshape", [pooled, shape])
    for rows, columns in ((4096, 4096), (4096, 1024), (1024, 1024)):
        x = draft.op("Relu", [draft.op("Gemm", [x, draft.weight(rows, columns)])])
    draft.save(path, x)


def integers(path: Path, layers: int = 12, width: int = 2048, batch: int = 64) -> None:
    """Products of bytes with weights of 4 MiB."""
    draft = Draft(batch, width)
    x, random = "x", np.random.default_rng(0)
    for _ in range(layers):
        quantised = draft.op("DynamicQuantizeLinear", [x], outputs=3)
        weight = draft.constant(random.integers(-127, 128, (width, width), np.int8))
        product = draft.op("MatMulInteger", [quantised, weight, f"{quantised}_2"])
        real = draft.op("Cast", [product], to=TensorProto.FLOAT)
        scaled = draft.op("Mul", [real, f"{quantised}_1"])
        x = draft.op("Relu", [draft.op("Mul", [scaled, draft.constant(np.array(1 / 4096, np.float32))])])
    draft.save(path, x)


MIXED = (256, 128, 1024, 1024, 4096, 4096, 2048, 1024, 1536, 256)

MODELS: Mapping[str, Callable[[Path], None]] = MappingProxyType(
    {
        "mlp 5 x 16 MiB": lambda path: chain(path, 512, [*[2048] * 6, 64]),
        "mlp 40 x 2 MiB": lambda path: chain(path, 64, [1024, *(512, 1024) * 20]),
        "transformer 1 and 4 MiB": transformer,
        "mixed 128 KiB to 64 MiB": lambda path: chain(path, 64, MIXED),
        "lstm 6 x 16 MiB": recurrent,
        "convolutions and products": convolutions,
        "integers 12 x 4 MiB": integers,
    }
)
"""By name, what writes them."""
BUDGETS: Mapping[str, str] = MappingProxyType({"mlp 5 x 16 MiB": "60%", "transformer 1 and 4 MiB": "75%"})
"""Of those that planning can make smaller; all others keep what they have."""
