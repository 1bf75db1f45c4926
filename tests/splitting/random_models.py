"""Random models for splitting: images through branches, skips and joins; transformer blocks; all weights random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
EPSILON = np.array([1e-5], np.float32)


@dataclass
class Sketch:
    """A model while it grows; every tensor's shape is known, as the runtime's own rules give it."""

    rng: np.random.Generator
    channels: tuple[int, ...] = (16, 32)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def input(self, name: str, shape: Sequence[int]) -> str:
        self.inputs[name] = self.shapes[name] = tuple(shape)
        return name

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        return self.constant((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def constant(self, value: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = value
        return name

    def add(self, op_type: str, reads: Sequence[str], shape: Sequence[int], **attributes: Any) -> str:
        return self.add_several(op_type, reads, [shape], **attributes)[0]

    def add_several(
        self, op_type: str, reads: Sequence[str], shapes: Sequence[Sequence[int]], **attributes: Any
    ) -> list[str]:
        number = len(self.nodes)
        names = [f"t{number}" if position == 0 else f"t{number}_{position}" for position in range(len(shapes))]
        self.nodes.append(helper.make_node(op_type, reads, names, name=f"n{number}_{op_type}", **attributes))
        self.shapes.update(dict(zip(names, map(tuple, shapes), strict=True)))
        return names

    def unread(self) -> list[str]:
        read = {name for node in self.nodes for name in node.input}
        return [name for node in self.nodes for name in node.output if name not in read]

    def model(self, outputs: Sequence[str], opset: int = OPSET) -> onnx.ModelProto:
        """The finished model, its outputs in the given order."""
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in self.inputs.items()]
        made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shapes[name]) for name in outputs]
        constants = [numpy_helper.from_array(value, name) for name, value in self.weights.items()]
        graph = helper.make_graph(self.nodes, "random", infos, made, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)

    def feeds(self) -> Mapping[str, np.ndarray]:
        return {name: self.rng.standard_normal(shape).astype(np.float32) for name, shape in self.inputs.items()}

    def sample(self, outputs: Sequence[str], opset: int = OPSET) -> Sample:
        return Sample(self.model(outputs, opset), self.feeds())


@dataclass(frozen=True)
class Sample:
    """A model and inputs for it."""

    model: onnx.ModelProto
    feeds: Mapping[str, np.ndarray]

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Short enough for the message of a failed test."""
        nodes = [f"{n.name}({', '.join(n.input)}) -> {', '.join(n.output)}" for n in self.model.graph.node]
        printer.text("; ".join([*(f"{name}: {value.shape}" for name, value in self.feeds.items()), *nodes]))


@st.composite
def image_models(draw: st.DrawFn, most_ops: int = 8, most_extent: int = 13) -> Sample:
    """Convolutions, pooling, resizing, activations, joins; 1-D to 3-D, odd sizes, several outputs at times."""
    counts = draw(st.sampled_from([(16, 32), (16, 32), (3, 7, 24), (16, 32, 3, 7, 24)]))
    sketch = Sketch(np.random.default_rng(draw(st.integers(0, 99))), counts)
    dimensions = draw(st.sampled_from([2, 2, 2, 2, 1, 3]))
    extents = [draw(st.integers(4, most_extent if dimensions < 3 else 7)) for _ in range(dimensions)]
    channels = draw(st.sampled_from([*counts, 3]))
    tensors = [sketch.input("x", [draw(st.sampled_from([1, 1, 2, 3])), channels, *extents])]
    for _ in range(draw(st.integers(2, most_ops))):
        grow = draw(st.sampled_from([convolve, convolve, convolve, pool, join, join, point, point, resize, other]))
        tensors.append(grow(draw, sketch, tensors))
    outputs = sketch.unread()
    if draw(st.integers(0, 4)) == 0:
        outputs = list(dict.fromkeys([*outputs, draw(st.sampled_from(tensors[1:]))]))
    return sketch.sample(outputs)


def pick(draw: st.DrawFn, tensors: Sequence[str]) -> str:
    """One of the newest tensors, so that chains grow long and skips remain."""
    return draw(st.sampled_from(tensors[-3:]))


def convolve(draw: st.DrawFn, sketch: Sketch, tensors: Sequence[str]) -> str:
    """A convolution: any kernel, stride, dilation, padding and grouping that fits."""
    source = pick(draw, tensors)
    batch, channels, *extents = sketch.shapes[source]
    windows = [_window(draw, extent, padding=2) for extent in extents]
    kernels, strides, dilations, before, after, made = zip(*windows, strict=True)
    group = draw(st.sampled_from([1, 1, 1, channels, *([2] if channels % 2 == 0 else [])]))
    results = group if group == channels else draw(st.sampled_from([16, 32] if group > 1 else sketch.channels))
    fan = channels // group * int(np.prod(kernels))
    reads = [source, sketch.weight(results, channels // group, *kernels, scale=fan**-0.5)]
    if draw(st.booleans()):
        reads.append(sketch.weight(results))
    sizes = {"kernel_shape": kernels, "strides": strides, "dilations": dilations, "pads": [*before, *after]}
    return sketch.add("Conv", reads, [batch, results, *made], group=group, **sizes)


def _window(draw: st.DrawFn, extent: int, padding: int) -> tuple[int, int, int, int, int, int]:
    """Kernel, stride, dilation, padding before and after, and what comes out, at least 1."""
    kernel = draw(st.sampled_from([1, 2, 3, 3, 3, 5]))
    dilation = draw(st.sampled_from([1, 1, 2]))
    if kernel * dilation > extent:
        kernel = dilation = 1
    stride = draw(st.sampled_from([1, 1, 1, 2, 3]))
    before, after = (draw(st.integers(0, min(padding, kernel - 1))) for _ in range(2))
    made = (extent + before + after - (kernel - 1) * dilation - 1) // stride + 1
    return kernel, stride, dilation, before, after, made


def pool(draw: st.DrawFn, sketch: Sketch, tensors: Sequence[str]) -> str:
    """Max or average pooling, rounding up at times."""
    source = pick(draw, tensors)
    batch, channels, *extents = sketch.shapes[source]
    kind = draw(st.sampled_from(["MaxPool", "AveragePool"]))
    ceil = draw(st.integers(0, 1))
    columns = []
    for extent in extents:
        kernel = draw(st.sampled_from([2, 3])) if extent > 3 else 1
        stride, before, after = draw(st.integers(1, 3)), draw(st.integers(0, kernel - 1)), draw(st.integers(0, 1))
        after = min(after, kernel - 1)
        room = extent + before + after - kernel
        made = -(-room // stride) + 1 if ceil else room // stride + 1
        if ceil and (made - 1) * stride >= extent + before:
            made -= 1  # a last window that starts in the padding is dropped
        columns.append((kernel, stride, before, after, made))
    kernels, strides, befores, afters, sizes = zip(*columns, strict=True)
    attributes: dict[str, Any] = {"kernel_shape": kernels, "strides": strides, "pads": [*befores, *afters]}
    if kind == "AveragePool":
        attributes["count_include_pad"] = draw(st.integers(0, 1))
    return sketch.add(kind, [source], [batch, channels, *sizes], ceil_mode=ceil, **attributes)


def join(draw: st.DrawFn, sketch: Sketch, tensors: Sequence[str]) -> str:
    """A sum of two tensors of one shape, or channels side by side; a sum with itself moved where there is no other."""
    one = pick(draw, tensors)
    shape = sketch.shapes[one]
    alike = [name for name in tensors if sketch.shapes[name] == shape and name != one]
    beside = [n for n in tensors if sketch.shapes[n][:1] + sketch.shapes[n][2:] == shape[:1] + shape[2:]]
    if alike and draw(st.booleans()):
        return sketch.add(draw(st.sampled_from(["Add", "Mul", "Sub"])), [one, draw(st.sampled_from(alike))], shape)
    other_one = draw(st.sampled_from(beside))
    channels = shape[1] + sketch.shapes[other_one][1]
    if channels <= 96:
        return sketch.add("Concat", [one, other_one], [shape[0], channels, *shape[2:]], axis=1)
    return sketch.add("Add", [one, sketch.add("Relu", [one], shape)], shape)


def point(draw: st.DrawFn, sketch: Sketch, tensors: Sequence[str]) -> str:
    """An op on single values, or on single channels."""
    source = pick(draw, tensors)
    shape = sketch.shapes[source]
    kind = draw(st.sampled_from(["Relu", "Sigmoid", "LeakyRelu", "Clip", "Norm", "Scale", "Abs", "Tanh"]))
    if kind == "Norm":
        weights = [sketch.weight(shape[1]) for _ in range(3)]
        spread = sketch.constant(np.linspace(0.5, 1.5, shape[1], dtype=np.float32))
        return sketch.add("BatchNormalization", [source, *weights, spread], shape)
    if kind == "Scale":
        return sketch.add("Mul", [source, sketch.weight(1, shape[1], *[1] * (len(shape) - 2))], shape)
    if kind == "Clip":
        limits = [sketch.constant(np.array(limit, np.float32)) for limit in (-0.5, 0.7)]
        return sketch.add("Clip", [source, *limits], shape)
    return sketch.add(kind, [source], shape)


def resize(draw: st.DrawFn, sketch: Sketch, tensors: Sequence[str]) -> str:
    """Twice as large by nearest or linear interpolation, where that stays small."""
    source = pick(draw, tensors)
    shape = sketch.shapes[source]
    if len(shape) != 4 or max(shape[2:]) > 16:
        return sketch.add("Relu", [source], shape)
    scales = sketch.constant(np.array([1, 1, 2, 2], np.float32))
    forms = [("nearest", "asymmetric"), ("linear", "half_pixel"), ("linear", "asymmetric"), ("nearest", "half_pixel")]
    mode, place = draw(st.sampled_from(forms))
    rounding = {"nearest_mode": "floor"} if mode == "nearest" else {}
    made = [*shape[:2], 2 * shape[2], 2 * shape[3]]
    reads = [source, "", scales]
    return sketch.add("Resize", reads, made, mode=mode, coordinate_transformation_mode=place, **rounding)


def other(draw: st.DrawFn, sketch: Sketch, tensors: Sequence[str]) -> str:
    """Padding, a part of the rows, two halves of the channels, larger images by a transposed convolution, or a view."""
    source = pick(draw, tensors)
    batch, channels, *extents = shape = sketch.shapes[source]
    kind = draw(st.sampled_from(["Pad", "Slice", "Split", "ConvTranspose", "Reshape"]))
    if kind == "Pad":
        pads = np.array([0, 0, *[1] * len(extents), 0, 0, *[2] * len(extents)], np.int64)
        mode = draw(st.sampled_from(["constant", "edge"]))
        return sketch.add(
            "Pad", [source, sketch.constant(pads)], [batch, channels, *(e + 3 for e in extents)], mode=mode
        )
    if kind == "Slice" and extents[0] > 4:
        bounds = [sketch.constant(np.array([value], np.int64)) for value in (1, extents[0] - 1, 2)]
        return sketch.add("Slice", [source, *bounds], [batch, channels, extents[0] - 2, *extents[1:]])
    if kind == "Split" and channels > 1:
        first = channels // 2
        sizes = sketch.constant(np.array([first, channels - first], np.int64))
        shapes = [[batch, count, *extents] for count in (first, channels - first)]
        halves = sketch.add_several("Split", [source, sizes], shapes, axis=1)
        return sketch.add("Concat", halves[::-1], shape, axis=1)
    if kind == "ConvTranspose" and len(extents) < 3 and max(extents) < 16:
        weight = sketch.weight(channels, 8, *[3] * len(extents), scale=(9 * channels) ** -0.5)
        made = [batch, 8, *((e - 1) * 2 + 3 for e in extents)]
        return sketch.add("ConvTranspose", [source, weight], made, strides=[2] * len(extents))
    target = sketch.constant(np.array([batch, 1, *shape[1:]], np.int64))
    opened = sketch.add("Reshape", [source, target], [batch, 1, *shape[1:]])
    acted = sketch.add("Softplus", [opened], [batch, 1, *shape[1:]])
    return sketch.add("Reshape", [acted, sketch.constant(np.array(shape, np.int64))], shape)


@st.composite
def transformer_models(draw: st.DrawFn, most_blocks: int = 2) -> Sample:
    """Blocks of attention and of two matrix products, each with a residual and a normalisation before or after."""
    sketch = Sketch(np.random.default_rng(draw(st.integers(0, 99))))
    batch, length = draw(st.sampled_from([1, 1, 2])), draw(st.integers(5, 24))
    heads, width = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([4, 8, 16]))
    value = sketch.input("x", [batch, length, heads * width])
    for _ in range(draw(st.integers(1, most_blocks))):
        value = attend(sketch, value, heads)
        value = _norm(sketch, value) if draw(st.booleans()) else value
        hidden = _linear(sketch, value, 2 * heads * width)
        hidden = sketch.add(draw(st.sampled_from(["Relu", "Sigmoid", "Tanh"])), [hidden], sketch.shapes[hidden])
        value = sketch.add("Add", [value, _linear(sketch, hidden, heads * width)], sketch.shapes[value])
    return sketch.sample([value])


def attend(sketch: Sketch, value: str, heads: int) -> str:
    """MatMul, Softmax, MatMul over heads, with a normalisation before and a residual around."""
    batch, length, width = sketch.shapes[value]
    normal, part = _norm(sketch, value), width // heads
    split = sketch.constant(np.array([batch, length, heads, part], np.int64))
    turned = []
    for order in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)):
        apart = sketch.add("Reshape", [_linear(sketch, normal, width), split], [batch, length, heads, part])
        shape = [(batch, length, heads, part)[axis] for axis in order]
        turned.append(sketch.add("Transpose", [apart], shape, perm=order))
    scores = sketch.add("MatMul", turned[:2], [batch, heads, length, length])
    scaled = sketch.add(
        "Mul", [scores, sketch.constant(np.array(part**-0.5, np.float32))], [batch, heads, length, length]
    )
    shares = sketch.add("Softmax", [scaled], [batch, heads, length, length], axis=-1)
    mixed = sketch.add("MatMul", [shares, turned[2]], [batch, heads, length, part])
    back = sketch.add("Transpose", [mixed], [batch, length, heads, part], perm=(0, 2, 1, 3))
    flat = sketch.add(
        "Reshape", [back, sketch.constant(np.array([batch, length, width], np.int64))], [batch, length, width]
    )
    return sketch.add("Add", [value, _linear(sketch, flat, width)], [batch, length, width])


def two_convolutions(inputs: int, channels: int, side: int, scale: float = 0.1) -> onnx.ModelProto:
    """Two convolutions of a square image, the second from as many channels as it makes, then pooling by four."""
    sketch = Sketch(np.random.default_rng(0))
    value, read, shape = sketch.input("x", [1, inputs, side, side]), inputs, [1, channels, side, side]
    for _ in range(2):
        weight = sketch.weight(channels, read, 3, 3, scale=scale)
        value = sketch.add("Conv", [value, weight, sketch.weight(channels)], shape, kernel_shape=[3, 3], pads=[1] * 4)
        value, read = sketch.add("Relu", [value], shape), channels
    pooled = [1, channels, side // 4, side // 4]
    value = sketch.add("MaxPool", [value], pooled, kernel_shape=[4, 4], strides=[4, 4])
    return sketch.model([value])


def _linear(sketch: Sketch, value: str, width: int) -> str:
    *sizes, before = sketch.shapes[value]
    product = sketch.add("MatMul", [value, sketch.weight(before, width, scale=before**-0.5)], [*sizes, width])
    return sketch.add("Add", [product, sketch.weight(width)], [*sizes, width])


def _norm(sketch: Sketch, value: str) -> str:
    shape = sketch.shapes[value]
    reads = [value, sketch.weight(shape[-1]), sketch.weight(shape[-1])]
    return sketch.add("LayerNormalization", reads, shape, axis=-1)
