"""Models like those with which people reported that they ran out of memory, written as old exporters write them.

Weights are random, and few enough to be quick to make: what counts is which ops there are, and how large tensors are.
Each has sizes that vary, under the names by which `bench/any_size.py` compiles it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WORDS = 1000
WORDS_OF = ("input_ids", "attention_mask")
Shape = list[int | str]


class Writer:
    """Appends ops to a graph; every method returns the name of what it makes."""

    def __init__(self, opset: int) -> None:
        """Start an empty graph for a version of the operators."""
        self._opset = opset
        self._rng = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, np.ndarray] = {}

    def add(self, op_type: str, *reads: str, outputs: int = 1, **attributes: Any) -> str:
        """An op; the first of its results."""
        label = f"{op_type}_{len(self._nodes)}"
        made = [f"{label}_output_{at}" for at in range(outputs)]
        self._nodes.append(helper.make_node(op_type, list(reads), made, label, **attributes))
        return made[0]

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """Numbers as a weight, one for all that are alike."""
        array = np.asarray(value, dtype)
        name = f"c_{array.dtype}_{'x'.join(map(str, array.shape))}_{'_'.join(map(str, array.ravel()))}"
        self._weights[name] = array
        return name

    def number(self, value: float) -> str:
        """One number as a weight."""
        return self.constant(value, np.float32)

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """A weight of random numbers, so large that what is made with it stays about as large."""
        name = f"w{len(self._weights)}"
        terms = np.prod(shape[1:]) if len(shape) > 2 else shape[0]
        array = self._rng.standard_normal(shape) * (terms**-0.5 if scale is None else scale)
        self._weights[name] = array.astype(np.float32)
        return name

    def axes(self, op_type: str, value: str, *axes: int, **attributes: Any) -> str:
        """Unsqueeze, Squeeze or ReduceSum, whose axes were an attribute before version 13."""
        if self._opset < 13:
            return self.add(op_type, value, axes=axes, **attributes)
        return self.add(op_type, value, self.constant(axes), **attributes)

    def size(self, value: str, axis: int) -> str:
        """One length of a tensor as a number, as old exporters compute it."""
        return self.add("Gather", self.add("Shape", value), self.constant(axis), axis=0)

    def shape(self, *parts: str | int) -> str:
        """A shape put together of numbers and of lengths."""
        listed = [self.constant([each]) if isinstance(each, int) else self.axes("Unsqueeze", each, 0) for each in parts]
        return self.add("Concat", *listed, axis=0)

    def halves(self, value: str, axis: int) -> tuple[str, str]:
        """A tensor in two."""
        first = self.add("Split", value, outputs=2, axis=axis)
        return first, self._nodes[-1].output[1]

    def linear(self, value: str, before: int, after: int) -> str:
        """A product with a matrix, and a bias."""
        return self.add("Add", self.weight(after, scale=0.1), self.add("MatMul", value, self.weight(before, after)))

    def norm(self, value: str, width: int) -> str:
        """LayerNormalization taken apart."""
        apart = self.add("Sub", value, self.add("ReduceMean", value, axes=[-1]))
        spread = self.add("ReduceMean", self.add("Pow", apart, self.number(2)), axes=[-1])
        deviation = self.add("Sqrt", self.add("Add", spread, self.number(1e-12)))
        scaled = self.add("Mul", self.add("Div", apart, deviation), self.weight(width, scale=1))
        return self.add("Add", scaled, self.weight(width, scale=0.1))

    def conv(self, value: str, before: int, after: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> str:
        """A convolution of pictures that keeps their size but for strides."""
        weight, bias = self.weight(after, before // groups, kernel, kernel), self.weight(after, scale=0.1)
        window: dict[str, Any] = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "strides": [stride] * 2}
        return self.add("Conv", value, weight, bias, group=groups, **window)

    def save(self, path: Path, inputs: Mapping[str, Shape], outputs: Mapping[str, tuple[str, Shape]]) -> Path:
        """Write the model; of each output the value and the shape. Inputs of words are those that say so."""
        ports = [
            helper.make_tensor_value_info(name, TensorProto.INT64 if name in WORDS_OF else TensorProto.FLOAT, shape)
            for name, shape in inputs.items()
        ]
        results = []
        for name, (value, shape) in outputs.items():
            maker = next(node for node in self._nodes if value in node.output)
            dtype = TensorProto.INT64 if maker.op_type == "TopK" and value == maker.output[1] else TensorProto.FLOAT
            maker.output[list(maker.output).index(value)] = name
            for node in self._nodes:
                node.input[:] = [name if each == value else each for each in node.input]
            results.append(helper.make_tensor_value_info(name, dtype, shape))
        held = [numpy_helper.from_array(array, name) for name, array in self._weights.items()]
        graph = helper.make_graph(self._nodes, "torch-jit-export", ports, results, held)
        imports = [helper.make_opsetid("", self._opset)]
        onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=7), path)
        return path


def save_embedder(path: Path, layers: int = 12, width: int = 384, heads: int = 12) -> Path:
    """An encoder of sentences with its normalisation behind each part, and the mean of its words as the result."""
    w, head = Writer(14), width // heads
    ids, mask = "input_ids", "attention_mask"
    shown = w.axes("Unsqueeze", w.axes("Unsqueeze", mask, 1), 2)
    hidden_words = w.add("Mul", w.add("Sub", w.number(1), w.add("Cast", shown, to=1)), w.number(-10000))
    length = w.axes("Unsqueeze", w.size(ids, 1), 0)
    places = w.add("Slice", w.constant([range(512)]), w.constant([0]), length, w.constant([1]), w.constant([1]))
    value = w.add("Add", w.add("Gather", w.weight(WORDS, width, scale=1), ids), w.weight(1, 1, width, scale=1))
    value = w.norm(w.add("Add", value, w.add("Gather", w.weight(512, width, scale=1), places)), width)

    def split(each: str, perm: list[int]) -> str:
        shape = w.shape(w.size(each, 0), w.size(each, 1), heads, head)
        return w.add("Transpose", w.add("Reshape", each, shape), perm=perm)

    for _ in range(layers):
        q, k, v = (split(w.linear(value, width, width), perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scores = w.add("Add", w.add("Div", w.add("MatMul", q, k), w.number(head**0.5)), hidden_words)
        joined = w.add("Transpose", w.add("MatMul", w.add("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        joined = w.add("Reshape", joined, w.shape(w.size(joined, 0), w.size(joined, 1), width))
        value = w.norm(w.add("Add", w.linear(joined, width, width), value), width)
        wide = w.linear(value, width, 4 * width)
        bent = w.add("Add", w.add("Erf", w.add("Div", wide, w.number(2**0.5))), w.number(1))
        wide = w.add("Mul", w.add("Mul", wide, bent), w.number(0.5))
        value = w.norm(w.add("Add", w.linear(wide, 4 * width, width), value), width)
    counted = w.add("Expand", w.axes("Unsqueeze", mask, -1), w.add("Shape", value))
    counted = w.add("Cast", counted, to=1)
    total = w.axes("ReduceSum", w.add("Mul", value, counted), 1, keepdims=0)
    count = w.add("Clip", w.axes("ReduceSum", counted, 1, keepdims=0), w.number(1e-9))
    mean = w.add("Div", total, count)
    length_of = w.add("Clip", w.add("ReduceL2", mean, axes=[1]), w.number(1e-12))
    y = w.add("Div", mean, w.add("Expand", length_of, w.add("Shape", mean)))
    return w.save(path, {ids: ["batch", "seq"], mask: ["batch", "seq"]}, {"y": (y, ["batch", width])})


def save_text_detector(path: Path, width: int = 16) -> Path:
    """A small backbone with weights for whole channels, features joined from coarse to fine, and two enlargements."""
    w = Writer(11)

    def bent(value: str) -> str:
        """HardSwish, as it was written before there was such an op."""
        three = w.add("Clip", w.add("Add", value, w.number(3)), w.number(0), w.number(6))
        return w.add("Div", w.add("Mul", value, three), w.number(6))

    def weighted(value: str, channels: int) -> str:
        few = w.add("Relu", w.conv(w.add("GlobalAveragePool", value), channels, channels // 4, 1))
        return w.add("Mul", value, w.add("HardSigmoid", w.conv(few, channels // 4, channels, 1), alpha=0.2, beta=0.5))

    def block(value: str, before: int, wide: int, after: int, stride: int, *, is_weighted: bool) -> str:
        made = bent(w.conv(value, before, wide, 1))
        made = bent(w.conv(made, wide, wide, 5 if is_weighted else 3, stride, wide))
        made = w.conv(weighted(made, wide) if is_weighted else made, wide, after, 1)
        return w.add("Add", made, value) if stride == 1 and before == after else made

    def larger(value: str, factor: int) -> str:
        scales = w.constant([1, 1, factor, factor], np.float32)
        modes: dict[str, Any] = {
            "mode": "nearest",
            "nearest_mode": "floor",
            "coordinate_transformation_mode": "asymmetric",
        }
        return w.add("Resize", value, w.constant([], np.float32), scales, **modes)

    value = bent(w.conv("x", 3, width, 3, 2))
    features, before = [], width
    for at, after in enumerate((width, 2 * width, 4 * width, 6 * width)):
        value = block(value, before, 4 * before, after, 1 if at == 0 else 2, is_weighted=at > 1)
        value = block(value, after, 4 * after, after, 1, is_weighted=at > 1)
        value = value if at else block(value, after, 4 * after, after, 2, is_weighted=False)
        features.append(w.conv(value, after, 96, 1))
        before = after
    for at in (2, 1, 0):
        features[at] = w.add("Add", features[at], larger(features[at + 1], 2))
    parts = [w.conv(each, 96, 24) for each in features]
    joined = w.add(
        "Concat", *(larger(each, 2**at) if at else each for at, each in reversed([*enumerate(parts)])), axis=1
    )
    made = w.add("Relu", w.conv(joined, 96, 24))
    for after in (24, 1):
        window: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0] * 4}
        made = w.add("ConvTranspose", made, w.weight(24, after, 2, 2), w.weight(after, scale=0.1), **window)
        made = w.add("Relu", made) if after > 1 else w.add("Sigmoid", made)
    return w.save(path, {"x": [1, 3, "height", "width"]}, {"y": (made, [1, 1, "height", "width"])})


def _swish(w: Writer, value: str) -> str:
    return w.add("Mul", value, w.add("Sigmoid", value))


def _shifted(w: Writer, scores: str, length: str) -> str:
    """Rows that count distances from the far end, turned so that each counts them from its own position."""
    longer = w.add("Pad", scores, w.constant([0, 0, 0, 1, 0, 0, 0, 0]), w.number(0), mode="constant")
    b, h, rows, columns = (w.size(scores, axis) for axis in range(4))
    turned = w.add("Reshape", longer, w.shape(b, h, w.add("Add", columns, w.constant(1)), rows))
    turned = w.add("Slice", turned, w.constant([1]), w.constant([2**62]), w.constant([2]), w.constant([1]))
    turned = w.add("Reshape", turned, w.shape(b, h, rows, columns))
    return w.add("Slice", turned, w.constant([0]), w.axes("Unsqueeze", length, 0), w.constant([3]), w.constant([1]))


def _by_distance(w: Writer, value: str, places: str, length: str, width: int, heads: int) -> str:
    """Attention to all frames, by what they are and by how far away."""
    head = width // heads

    def split(each: str) -> str:
        return w.add("Reshape", each, w.shape(w.size(each, 0), -1, heads, head))

    q, k, v = (split(w.linear(value, width, width)) for _ in range(3))
    p = w.add("Transpose", split(w.add("MatMul", places, w.weight(width, width))), perm=[0, 2, 3, 1])
    here, there = (
        w.add("Transpose", w.add("Add", q, w.weight(heads, head, scale=0.1)), perm=[0, 2, 1, 3]) for _ in range(2)
    )
    scores = w.add("MatMul", here, w.add("Transpose", k, perm=[0, 2, 3, 1]))
    scores = w.add("Add", scores, _shifted(w, w.add("MatMul", there, p), length))
    scores = w.add("Softmax", w.add("Div", scores, w.number(head**0.5)), axis=-1)
    joined = w.add("MatMul", scores, w.add("Transpose", v, perm=[0, 2, 1, 3]))
    joined = w.add("Transpose", joined, perm=[0, 2, 1, 3])
    return w.linear(w.add("Reshape", joined, w.shape(w.size(joined, 0), -1, width)), width, width)


def _to_neighbours(w: Writer, value: str, width: int) -> str:
    """Convolutions along frames, gated."""
    line = w.add("Transpose", value, perm=[0, 2, 1])
    line = w.add("Conv", line, w.weight(2 * width, width, 1), w.weight(2 * width, scale=0.1), kernel_shape=[1])
    line, gate = w.halves(line, 1)
    line = w.add("Mul", line, w.add("Sigmoid", gate))
    window: dict[str, Any] = {"kernel_shape": [9], "pads": [4, 4]}
    line = w.add("Conv", line, w.weight(width, 1, 9), w.weight(width, scale=0.1), group=width, **window)
    line = w.add("Conv", _swish(w, line), w.weight(width, width, 1), w.weight(width, scale=0.1), kernel_shape=[1])
    return w.add("Transpose", line, perm=[0, 2, 1])


def save_conformer(path: Path, layers: int = 8, width: int = 256, heads: int = 4, most: int = 5000) -> Path:
    """Speech: an eighth of the frames, then layers that look at all of them by distance, and at their neighbours."""
    w = Writer(14)
    value = w.add("Unsqueeze", w.add("Transpose", "x", perm=[0, 2, 1]), w.constant([1]))
    value = w.add("Relu", w.conv(value, 1, width, 3, 2))
    for _ in range(2):
        value = w.add("Relu", w.conv(w.conv(value, width, width, 3, 2, width), width, width, 1))
    value = w.add("Transpose", value, perm=[0, 2, 1, 3])
    value = w.add("Reshape", value, w.shape(w.size(value, 0), w.size(value, 1), -1))
    value = w.linear(value, 10 * width, width)
    length, middle = w.size(value, 1), w.constant(most)
    first = w.axes("Unsqueeze", w.add("Sub", middle, length), 0)
    last = w.axes("Unsqueeze", w.add("Sub", w.add("Add", middle, length), w.constant(1)), 0)
    places = w.weight(1, 2 * most - 1, width, scale=1)
    places = w.add("Slice", places, first, last, w.constant([1]), w.constant([1]))

    def forward(value: str) -> str:
        wide = _swish(w, w.linear(w.norm(value, width), width, 4 * width))
        return w.add("Mul", w.linear(wide, 4 * width, width), w.number(0.5))

    for _ in range(layers):
        value = w.add("Add", value, forward(value))
        value = w.add("Add", value, _by_distance(w, w.norm(value, width), places, length, width, heads))
        value = w.add("Add", value, _to_neighbours(w, w.norm(value, width), width))
        value = w.norm(w.add("Add", value, forward(value)), width)
    y = w.linear(value, width, 128)
    return w.save(path, {"x": [1, 80, "frames"]}, {"y": (y, [1, "steps", 128])})


def save_neighbours(path: Path, kept: int = 6000, width: int = 384, batch: int | str = "batch") -> Path:
    """How far patches of pictures are from the nearest of those that are kept: all differences at once."""
    w = Writer(13)
    apart = w.add("Sub", w.add("Unsqueeze", "x", w.constant([2])), w.weight(1, 1, kept, width, scale=1))
    squares = w.axes("ReduceSum", w.add("Pow", apart, w.number(2)), 3, keepdims=0)
    nearest = w.add("TopK", w.add("Sqrt", squares), w.constant([9]), axis=2, largest=0, sorted=1, outputs=2)
    return w.save(path, {"x": [batch, 196, width]}, {"distance": (nearest, [batch, 196, 9])})


def save_keypoints(path: Path, width: int = 64) -> Path:
    """Corners of pictures as scores of all pixels, and descriptions of every eighth."""
    w, value, before = Writer(12), "x", 1
    for at, after in enumerate((width, width, 2 * width, 2 * width)):
        value = w.add("Relu", w.conv(w.add("Relu", w.conv(value, before, after)), after, after))
        value = value if at == 3 else w.add("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
        before = after
    scores = w.conv(w.add("Relu", w.conv(value, before, 4 * width)), 4 * width, 65, 1)
    # softmax over the axis of channels, as it was written when it could not be given
    scores = w.add(
        "Transpose", w.add("Softmax", w.add("Transpose", scores, perm=[0, 3, 2, 1]), axis=3), perm=[0, 3, 2, 1]
    )
    scores = w.add("Slice", scores, w.constant([0]), w.constant([64]), w.constant([1]), w.constant([1]))
    b, _, rows, columns = (w.size(scores, axis) for axis in range(4))
    cells = w.add("Reshape", w.add("Transpose", scores, perm=[0, 2, 3, 1]), w.shape(b, rows, columns, 8, 8))
    wide = (w.add("Mul", each, w.constant(8)) for each in (rows, columns))
    scores = w.add("Reshape", w.add("Transpose", cells, perm=[0, 1, 3, 2, 4]), w.shape(b, *wide))
    told = w.conv(w.add("Relu", w.conv(value, before, 4 * width)), 4 * width, 4 * width, 1)
    told = w.add("Div", told, w.axes("Unsqueeze", w.add("ReduceL2", told, axes=[1], keepdims=0), 1))
    inputs: dict[str, Shape] = {"x": [1, 1, "height", "width"]}
    return w.save(
        path,
        inputs,
        {"scores": (scores, [1, "height", "width"]), "told": (told, [1, 4 * width, "rows", "columns"])},
    )


def save_pitch(path: Path, width: int = 1024, hop: int = 256, channels: int = 12) -> Path:
    """Pitches of a sound: its spectrum by products of its own, then windows along frames and, far apart, along bins."""
    w, pieces, side = Writer(18), width // hop, 32
    rows = w.add("Reshape", "x", w.constant([-1, hop]))
    frames = w.add("Sub", w.size(rows, 0), w.constant(pieces - 1))
    parts = []
    for at in range(pieces):
        end = w.axes("Unsqueeze", w.add("Add", frames, w.constant(at)), 0)
        parts.append(w.add("Slice", rows, w.constant([at]), end, w.constant([0])))
    framed = w.add("Mul", w.add("Concat", *parts, axis=1), w.weight(width, scale=1))
    framed = w.add("Reshape", framed, w.constant([-1, side, width // side]))
    turns = [w.weight(side, side) for _ in range(2)]
    real, other = (w.add("MatMul", turn, framed) for turn in turns)
    twiddles = [w.weight(side, width // side, scale=1) for _ in range(2)]
    crossed = [w.add("Mul", value, twiddle) for value in (real, other) for twiddle in twiddles]
    real, other = w.add("Sub", crossed[0], crossed[3]), w.add("Add", crossed[1], crossed[2])
    real, other = (w.add("MatMul", value, turns[0]) for value in (real, other))
    power = w.add("Add", w.add("Mul", real, real), w.add("Mul", other, other))
    power = w.add("Reshape", w.add("Transpose", power, perm=[0, 2, 1]), w.constant([0, width]))
    half = w.add("Slice", power, w.constant([0]), w.constant([width // 2 + 1]), w.constant([1]))
    bands = w.add("MatMul", w.add("Sqrt", half), w.weight(width // 2 + 1, 128))
    bands = w.add("Log", w.add("Add", w.add("Abs", bands), w.number(1e-3)))
    value = w.axes("Unsqueeze", w.add("Transpose", bands, perm=[1, 0]), 0, 1)
    before = 1
    for apart in (1, 17, 27, 40):
        window: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [apart, 1, apart, 1], "dilations": [apart, 1]}
        made = w.add("Conv", value, w.weight(channels, before, 3, 3), w.weight(channels, scale=0.1), **window)
        value = w.add("Relu", w.add("Add", made, value) if before > 1 else made)
        before = channels
    scores = w.axes("Squeeze", w.conv(value, channels, 1, 1), 1)
    scores = w.add("Softmax", w.add("Transpose", scores, perm=[0, 2, 1]), axis=-1)
    return w.save(path, {"x": [1, "samples"]}, {"y": (scores, [1, "frames", 128])})
