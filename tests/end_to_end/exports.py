"""Small models in the forms in which exporters write a head behind features, their batch left open.

What these forms compute of shapes is constant as soon as the batch is bound, and the runtime then fuses other ops:
bits differ where products add up more values than its kernel adds at once, so all heads have wide inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
SIDE, CHANNELS, UNITS, WIDE = 32, 16, 64, 512
PLACES = 64  # of maps of eight by eight
FEATURES = CHANNELS * PLACES


@dataclass
class Writer:
    """Nodes and weights of a graph while it is written; every op has one result, named after its place."""

    seed: int = 0
    nodes: list = field(default_factory=list)
    weights: list = field(default_factory=list)

    def op(self, op_type: str, *reads: str, **attributes: object) -> str:
        """The name of what a new op makes; with a domain it is that of a contrib op."""
        name = f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(reads), [name], name=f"op/{name}", **attributes))
        return name

    def constant(self, values: Sequence[int], kind: type = np.int64) -> str:
        """A small integer weight."""
        return self._weight(np.array(values, kind))

    def drawn(self, *shape: int) -> str:
        """A weight of random numbers."""
        drawn = np.random.default_rng([self.seed, len(self.weights)]).standard_normal(shape) / np.sqrt(shape[0])
        return self._weight(drawn.astype(np.float32))

    def _weight(self, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(array, f"weight_{len(self.weights)}"))
        return self.weights[-1].name

    def dense(self, read: str, width: int) -> str:
        """A product and a bias, as exporters of TensorFlow and Paddle write them."""
        return self.op("Add", self.op("MatMul", read, self.drawn(width, UNITS)), self.drawn(UNITS))

    def features(self, read: str) -> str:
        """Maps of eight by eight, with a large tensor on the way to them."""
        maps = self.op("Relu", self.op("Conv", read, self.drawn(CHANNELS, 3, 3, 3), pads=[1, 1, 1, 1]))
        return self.op("MaxPool", maps, kernel_shape=[4, 4], strides=[4, 4])

    def pooled(self, read: str) -> str:
        """The mean of each of many channels."""
        maps = self.op("Conv", self.features(read), self.drawn(WIDE, CHANNELS, 1, 1))
        return self.op("GlobalAveragePool", self.op("Relu", maps))


def tf2onnx_flatten(new: Writer, x: str) -> str:
    """Flatten of a strided slice of the shape, counted in int32."""
    maps = new.features(x)
    shape = new.op("Cast", new.op("Shape", maps), to=TensorProto.INT32)
    batch = new.op("Slice", shape, new.constant([0]), new.constant([1]))
    target = new.op("Concat", batch, new.constant([-1], np.int32), axis=0)
    flat = new.op("Reshape", maps, new.op("Cast", target, to=TensorProto.INT64))
    return new.op("Relu", new.dense(flat, FEATURES))


def tf2onnx_transposed(new: Writer, x: str) -> str:
    """Maps with their channels last, as TensorFlow flattens them."""
    maps = new.op("Transpose", new.features(x), perm=[0, 2, 3, 1])
    batch = new.op("Squeeze", new.op("Slice", new.op("Shape", maps), new.constant([0]), new.constant([1])))
    batch = new.op("Unsqueeze", batch, new.constant([0]))
    flat = new.op("Reshape", maps, new.op("Concat", batch, new.constant([FEATURES]), axis=0))
    return new.op("Softmax", new.dense(flat, FEATURES))


def keras_reshape(new: Writer, x: str) -> str:
    """A Reshape layer to three dimensions, a Dense layer on the last, and Flatten."""
    maps = new.features(x)
    batch = new.op("Gather", new.op("Shape", maps), new.constant([0]), axis=0)
    rows = new.op("Reshape", maps, new.op("Concat", batch, new.constant([2, FEATURES // 2]), axis=0))
    hidden = new.op("Relu", new.dense(rows, FEATURES // 2))
    flat = new.op("Reshape", hidden, new.op("Concat", batch, new.constant([-1]), axis=0))
    return new.op("Sigmoid", new.dense(flat, 2 * UNITS))


def keras_pooled(new: Writer, x: str) -> str:
    """GlobalAveragePooling2D and Dense."""
    pooled = new.op("Squeeze", new.pooled(x), new.constant([2, 3]))
    return new.op("Softmax", new.dense(new.op("Relu", new.dense(pooled, WIDE)), UNITS))


def paddle_flatten(new: Writer, x: str) -> str:
    """flatten_contiguous_range: the kept dimension is sliced out of the shape."""
    maps = new.features(x)
    kept = new.op("Slice", new.op("Shape", maps), new.constant([0]), new.constant([1]), new.constant([0]))
    flat = new.op("Reshape", maps, new.op("Concat", kept, new.constant([-1]), axis=0))
    return new.op("Softmax", new.dense(new.op("Relu", new.dense(flat, FEATURES)), UNITS), axis=1)


def paddle_pooled(new: Writer, x: str) -> str:
    """adaptive_avg_pool2d, flatten and fc, with the bias in a shape of its own."""
    pooled = new.pooled(x)
    shape = new.op("Cast", new.op("Shape", pooled), to=TensorProto.INT64)
    kept = new.op("Slice", shape, new.constant([0]), new.constant([2]))
    flat = new.op("Reshape", pooled, kept)
    return new.op("Sigmoid", new.dense(flat, WIDE))


def torch_view(new: Writer, x: str) -> str:
    """x.view(x.size(0), -1) and a product without nn.Linear, as TorchScript traces them."""
    maps = new.features(x)
    batch = new.op("Unsqueeze", new.op("Gather", new.op("Shape", maps), new.constant(0), axis=0), new.constant([0]))
    flat = new.op("Reshape", maps, new.op("Concat", batch, new.constant([-1]), axis=0))
    return new.op("Relu", new.dense(flat, FEATURES))


def torch_heads(new: Writer, x: str) -> str:
    """Queries in heads: view and transpose by sizes of the input, a product, and back."""
    maps = new.op("Reshape", new.features(x), new.constant([0, CHANNELS, PLACES]))
    rows = new.op("Transpose", maps, perm=[0, 2, 1])
    shape = new.op("Shape", rows)
    first, second = (
        new.op("Unsqueeze", new.op("Gather", shape, new.constant(at), axis=0), new.constant([0])) for at in (0, 1)
    )
    hidden = new.dense(rows, CHANNELS)
    target = new.op("Concat", first, second, new.constant([4, UNITS // 4]), axis=0)
    heads = new.op("Transpose", new.op("Reshape", hidden, target), perm=[0, 2, 1, 3])
    scores = new.op("Softmax", new.op("MatMul", heads, new.op("Transpose", heads, perm=[0, 1, 3, 2])), axis=-1)
    mixed = new.op("Transpose", new.op("MatMul", scores, heads), perm=[0, 2, 1, 3])
    back = new.op("Reshape", mixed, new.op("Concat", first, second, new.constant([UNITS]), axis=0))
    flat = new.op("Reshape", back, new.op("Concat", first, new.constant([PLACES * UNITS]), axis=0))
    return new.dense(flat, PLACES * UNITS)


def sklearn_network(new: Writer, x: str) -> str:
    """MLPClassifier: a Cast, products and sums, a Reshape of what comes out by its own shape."""
    batch = new.op("Slice", new.op("Shape", x), new.constant([0]), new.constant([1]))
    rows = new.op("Reshape", x, new.op("Concat", batch, new.constant([-1]), axis=0))
    hidden = new.op("Relu", new.dense(new.op("Cast", rows, to=FLOAT), 3 * SIDE * SIDE))
    hidden = new.op("Relu", new.dense(hidden, UNITS))
    return new.op("Softmax", new.dense(new.op("Reshape", hidden, new.op("Shape", hidden)), UNITS), axis=1)


def upsampled(new: Writer, x: str) -> str:
    """UpSampling2D of half a picture, by sizes that are computed, and a Dense layer on every row."""
    small = new.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    shape = new.op("Shape", x)
    ends = new.op("Slice", shape, new.constant([2]), new.constant([4]))
    first = new.op("Slice", new.op("Shape", small), new.constant([0]), new.constant([2]))
    nothing = helper.make_node("Constant", [], ["none"], value=numpy_helper.from_array(np.zeros(0, np.float32)))
    new.nodes.append(nothing)
    large = new.op("Resize", small, "none", "none", new.op("Concat", first, ends, axis=0), mode="nearest")
    maps = new.features(new.op("Add", x, large))
    batch = new.op("Slice", shape, new.constant([0]), new.constant([1]))
    flat = new.op("Reshape", maps, new.op("Concat", batch, new.constant([FEATURES]), axis=0))
    return new.dense(flat, FEATURES)


def gathered_mean(new: Writer, x: str) -> str:
    """A mean over positions divided by a count out of the shape, and two heads in one product."""
    maps = new.op("Conv", new.features(x), new.drawn(WIDE, CHANNELS, 1, 1))
    maps = new.op("Reshape", maps, new.constant([0, WIDE, -1]))
    count = new.op("Cast", new.op("Gather", new.op("Shape", maps), new.constant(2), axis=0), to=FLOAT)
    mean = new.op("Div", new.op("ReduceSum", maps, new.constant([2]), keepdims=0), count)
    batch = new.op("Slice", new.op("Shape", mean), new.constant([0]), new.constant([1]))
    flat = new.op("Reshape", mean, new.op("Concat", batch, new.constant([WIDE]), axis=0))
    return new.dense(new.op("Relu", new.dense(flat, WIDE)), UNITS)


Form = Callable[[Writer, str], str]
FORMS: dict[str, Form] = {
    form.__name__: form
    for form in (
        tf2onnx_flatten,
        tf2onnx_transposed,
        keras_reshape,
        keras_pooled,
        paddle_flatten,
        paddle_pooled,
        torch_view,
        torch_heads,
        sklearn_network,
        upsampled,
        gathered_mean,
    )
}


def export(form: Form, path: Path, dim: str | None = "N", opset: int = 13) -> Path:
    """Write a form with an open batch, which has a name or none."""
    new = Writer()
    end = form(new, "x")
    new.nodes.append(helper.make_node("Identity", [end], ["y"]))
    x = helper.make_tensor_value_info("x", FLOAT, [dim, 3, SIDE, SIDE])
    y = helper.make_tensor_value_info("y", FLOAT, None)
    graph = helper.make_graph(new.nodes, form.__name__, [x], [y], new.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, path)
    return path
