"""Models quantised by the tools that people use: an encoder of tokens, a recogniser of sounds, in dynamic int8."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from tests.splitting.random_models import Sample, Sketch


def encoder(length: int = 256, width: int = 32, heads: int = 2, blocks: int = 1, opset: int = 17) -> Sample:
    """Blocks of attention and a feed-forward part four times as wide, with a mean over all tokens behind."""
    sketch = Sketch(np.random.default_rng(blocks))
    shape = [1, length, width]
    value = sketch.input("x", shape)
    for _ in range(blocks):
        value = fed_forward(sketch, normalised(sketch, attended(sketch, value, heads, shape), shape), shape)
    return sketch.sample([sketch.add("GlobalAveragePool", [value], [1, length, 1])], opset)


def recogniser(height: int = 64, width: int = 48, channels: int = 16, groups: int = 1, opset: int = 17) -> Sample:
    """Convolutions, some of which leave out every other row, and a product behind them."""
    sketch = Sketch(np.random.default_rng(channels))
    value, read = sketch.input("x", [1, 3, height, width]), 3
    for stride, made in ((1, channels), (1, channels), (2, 2 * channels), (1, 2 * channels)):
        height, width = -(-height // stride), -(-width // stride)
        apart = groups if read % groups == 0 else 1
        weights = sketch.weight(made, read // apart, 3, 3, scale=0.2)
        shape = [1, made, height, width]
        value = sketch.add(
            "Conv",
            [value, weights, sketch.weight(made, scale=0.1)],
            shape,
            kernel_shape=[3, 3],
            pads=[1] * 4,
            strides=[stride] * 2,
            group=apart,
        )
        value, read = sketch.add("Relu", [value], shape), made
    value = sketch.add("Transpose", [value], [1, height, width, read], perm=[0, 2, 3, 1])
    return sketch.sample([linear(sketch, value, [1, height, width, 8])], opset)


def dynamic_int8(sample: Sample, **how: Any) -> Sample:
    """The same in dynamic int8, as the runtime's own tool writes it."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        onnx.save(sample.model, before)
        quantize_dynamic(before, after, **{"weight_type": QuantType.QInt8, **how})
        return Sample(onnx.load(after), sample.feeds)


def one_op(op_type: str, domain: str, x: np.ndarray, weights: Mapping[str, Any], reads: list[str]) -> Sample:
    """A model of one op that quantises what another makes, and whose results are its outputs."""
    made = [("y", TensorProto.UINT8, x.shape), ("y_scale", TensorProto.FLOAT, ()), ("y_point", TensorProto.UINT8, ())]
    if op_type == "DynamicQuantizeMatMul":
        made = [("y", TensorProto.FLOAT, (*x.shape[:-1], weights["b"].shape[1]))]
    nodes = [
        helper.make_node("Neg", ["x"], ["given"], name="before"),
        helper.make_node(op_type, reads, [name for name, *_ in made], name="op", domain=domain),
    ]
    graph = helper.make_graph(
        nodes,
        "one_op",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(*each) for each in made],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return Sample(helper.make_model(graph, opset_imports=imports, ir_version=8), {"x": x})


def fed_forward(sketch: Sketch, value: str, shape: list[int]) -> str:
    """A part four times as wide, added to what it reads and brought to mean and deviation."""
    inner = [*shape[:-1], 4 * shape[-1]]
    wide = linear(sketch, value, inner)
    scaled = sketch.add("Div", [wide, sketch.constant(np.array(np.sqrt(2), np.float32))], inner)
    bent = sketch.add("Add", [sketch.add("Erf", [scaled], inner), sketch.constant(np.array(1, np.float32))], inner)
    wide = sketch.add("Mul", [sketch.add("Mul", [wide, bent], inner), sketch.constant(np.float32([0.5]))], inner)
    return normalised(sketch, sketch.add("Add", [value, linear(sketch, wide, shape)], shape), shape)


def linear(sketch: Sketch, value: str, shape: list[int]) -> str:
    """A product with a matrix, and a bias."""
    weights = sketch.weight(sketch.shapes[value][-1], shape[-1], scale=0.2)
    return sketch.add("Add", [sketch.add("MatMul", [value, weights], shape), sketch.weight(shape[-1])], shape)


def normalised(sketch: Sketch, value: str, shape: list[int]) -> str:
    """Each line with mean and deviation of its own."""
    return sketch.add("LayerNormalization", [value, sketch.weight(shape[-1]), sketch.weight(shape[-1])], shape, axis=-1)


def attended(sketch: Sketch, value: str, heads: int, shape: list[int], more: Callable[..., str] | None = None) -> str:
    """Attention in plain ops, with what it reads added to it; `more` changes scores, of queries and keys."""
    items, length, width = shape
    apart = sketch.constant(np.array([0, 0, heads, width // heads]))
    parts = []
    for turn in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)):
        split = [items, length, heads, width // heads]
        part = sketch.add("Reshape", [linear(sketch, value, shape), apart], split)
        parts.append(sketch.add("Transpose", [part], [split[axis] for axis in turn], perm=turn))
    square = [items, heads, length, length]
    scores = sketch.add("MatMul", parts[:2], square)
    scores = scores if more is None else more(scores, *parts[:2])
    scores = sketch.add("Softmax", [scores], square, axis=-1)
    inner = [items, heads, length, width // heads]
    found = sketch.add("MatMul", [scores, parts[2]], inner)
    found = sketch.add("Transpose", [found], [items, length, heads, width // heads], perm=[0, 2, 1, 3])
    found = sketch.add("Reshape", [found, sketch.constant(np.array([0, 0, width]))], shape)
    return sketch.add("Add", [value, linear(sketch, found, shape)], shape)
