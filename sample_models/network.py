"""A network under construction with the names of its paper's reference code, weights drawn only when it is built."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sample_models.assemble import NEAREST, Array, checked_model

OUTPUT = "logits"


@dataclass(frozen=True)
class Weight:
    """An initialiser to be drawn from a normal distribution; running statistics are not trained."""

    shape: tuple[int, ...]
    scale: float
    mean: float = 0.0
    is_trained: bool = True

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class Network:
    """Appends ops under given names; every method returns the tensor it makes, which has the name of its op.

    Weights are named as torch does: `NAME.weight`, `NAME.bias`, `NAME.running_mean`, `NAME.running_var`.
    """

    def __init__(self, name: str, entry: onnx.ValueInfoProto, channels: int) -> None:
        """Start from one input of so many channels."""
        self.name = name
        self.entry = entry
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Weight] = {}
        self.constants: dict[str, onnx.TensorProto] = {}
        self.channels = {entry.name: channels}

    def op(self, name: str, op_type: str, *inputs: str, channels: int | None = None, **attributes: Any) -> str:
        """Append an op; its output has `channels`, by default those of the first input."""
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], name, **attributes))
        self.channels[name] = self.channels[inputs[0]] if channels is None else channels
        return name

    def constant(self, name: str, values: Array) -> str:
        """An initialiser that is no weight, once per name."""
        self.constants.setdefault(name, numpy_helper.from_array(values, name))
        return name

    def number(self, name: str, value: float) -> str:
        """A float constant of rank 0."""
        return self.constant(name, np.array(value, np.float32))

    def weight(self, name: str, shape: tuple[int, ...], scale: float, mean: float = 0.0) -> str:
        """A trained weight."""
        self.weights[name] = Weight(shape, scale, mean)
        return name

    def statistic(self, name: str, width: int, mean: float) -> str:
        """A running statistic, ten deviations or more away from a variance of zero."""
        self.weights[name] = Weight((width,), 0.1, mean, is_trained=False)
        return name

    def kernel(self, name: str, width: int, inner: int, kernel: int) -> str:
        """He weights of a convolution."""
        return self.weight(f"{name}.weight", (width, inner, kernel, kernel), (2 / (inner * kernel**2)) ** 0.5)

    def bias(self, name: str, width: int) -> str:
        """A small bias."""
        return self.weight(f"{name}.bias", (width,), 0.02)

    def conv(self, name: str, x: str, width: int, kernel: int = 3, stride: int = 1) -> str:
        """A convolution with a bias, padded to keep the size at stride 1."""
        parameters = self.kernel(name, width, self.channels[x], kernel), self.bias(name, width)
        return self.op(name, "Conv", x, *parameters, channels=width, **_window(kernel, stride))

    def bare_conv(self, name: str, x: str, width: int, kernel: int = 3, stride: int = 1) -> str:
        """A convolution without a bias, as in front of a normalization."""
        weight = self.kernel(name, width, self.channels[x], kernel)
        return self.op(name, "Conv", x, weight, channels=width, **_window(kernel, stride))

    def depthwise(self, name: str, x: str, stride: int) -> str:
        """A 3x3 convolution of each channel by itself, without a bias."""
        weight = self.kernel(name, self.channels[x], 1, 3)
        return self.op(name, "Conv", x, weight, group=self.channels[x], **_window(3, stride))

    def double(self, name: str, x: str, width: int) -> str:
        """A transposed convolution with a bias that doubles the size, each input element making four of its own."""
        parameters = self.transposed_kernel(name, (self.channels[x], width), 2, 2), self.bias(name, width)
        return self.op(name, "ConvTranspose", x, *parameters, channels=width, kernel_shape=[2, 2], strides=[2, 2])

    def enlarge(self, name: str, x: str, width: int, times: int) -> str:
        """A transposed convolution without a bias whose windows overlap by half, as bilinear interpolation has it."""
        weight = self.transposed_kernel(name, (self.channels[x], width), 2 * times, times)
        window: dict[str, Any] = {"kernel_shape": [2 * times] * 2, "strides": [times] * 2, "pads": [times // 2] * 4}
        return self.op(name, "ConvTranspose", x, weight, channels=width, **window)

    def transposed_kernel(self, name: str, widths: tuple[int, int], kernel: int, stride: int) -> str:
        """Weights of a transposed convolution that keep the scale of what they enlarge."""
        return self.weight(f"{name}.weight", (*widths, kernel, kernel), stride / (widths[0] ** 0.5 * kernel))

    def norm(self, name: str, x: str, gain: float = 1.0) -> str:
        """Batch normalization in inference form; `gain` is the mean of its scales."""
        width = self.channels[x]
        return self.op(
            name,
            "BatchNormalization",
            x,
            self.weight(f"{name}.weight", (width,), 0.1 * gain, gain),
            self.weight(f"{name}.bias", (width,), 0.1),
            self.statistic(f"{name}.running_mean", width, 0.0),
            self.statistic(f"{name}.running_var", width, 1.0),
        )

    def relu(self, name: str, x: str) -> str:
        """Relu."""
        return self.op(name, "Relu", x)

    def add(self, name: str, x: str, y: str) -> str:
        """Sum of two tensors."""
        return self.op(name, "Add", x, y)

    def concat(self, name: str, *tensors: str) -> str:
        """Concatenate along the channels."""
        return self.op(name, "Concat", *tensors, channels=sum(self.channels[t] for t in tensors), axis=1)

    def pool(self, name: str, x: str) -> str:
        """Max pooling that halves the size."""
        return self.op(name, "MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])

    def upsample(self, name: str, x: str) -> str:
        """Nearest-neighbour upsampling by two."""
        scales = self.constant("twice", np.array([1, 1, 2, 2], np.float32))
        return self.op(name, "Resize", x, "", scales, **NEAREST)

    def flatten(self, name: str, x: str, pixels: int) -> str:
        """One row per image, of all channels at so many pixels."""
        return self.op(name, "Flatten", x, channels=self.channels[x] * pixels, axis=1)

    def dense(self, name: str, x: str, width: int) -> str:
        """A fully connected layer over rows: Gemm with weights [out, in]."""
        weight = self.weight(f"{name}.weight", (width, self.channels[x]), self.channels[x] ** -0.5)
        return self.op(name, "Gemm", x, weight, self.bias(name, width), channels=width, transB=1)

    def linear(self, name: str, x: str, width: int) -> str:
        """A fully connected layer on the last axis: MatMul with weights [in, out], and Add."""
        weight = self.weight(f"{name}.weight", (self.channels[x], width), self.channels[x] ** -0.5)
        product = self.op(f"{name}.matmul", "MatMul", x, weight, channels=width)
        return self.add(name, product, self.bias(name, width))

    def layer_norm(self, name: str, x: str, epsilon: float) -> str:
        """Layer normalization of the last axis."""
        width = self.channels[x]
        scale = self.weight(f"{name}.weight", (width,), 0.1, 1.0)
        return self.op(name, "LayerNormalization", x, scale, self.bias(name, width), axis=-1, epsilon=epsilon)

    def split(self, name: str, x: str, parts: tuple[str, ...]) -> list[str]:
        """Equal parts along the last axis."""
        width = self.channels[x] // len(parts)
        sizes = self.constant(f"{name}.sizes", np.array([width] * len(parts), np.int64))
        tensors = [f"{name}.{part}" for part in parts]
        self.nodes.append(helper.make_node("Split", [x, sizes], tensors, name, axis=-1))
        self.channels |= dict.fromkeys(tensors, width)
        return tensors

    def skeleton(self) -> onnx.ModelProto:
        """The model with its weights as inputs; the last op makes its output."""
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in self.nodes]
        nodes[-1].output[:] = [OUTPUT]
        weights = [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, weight.shape)
            for name, weight in self.weights.items()
        ]
        model = checked_model(self.name, nodes, [self.entry, *weights], [OUTPUT], self.constants.values())
        for value in (*model.graph.value_info, *model.graph.output):
            _name_open_dimension(value, self.entry)
        return model

    def build(self, seed: int = 0) -> onnx.ModelProto:
        """The model with its weights drawn."""
        model = self.skeleton()  # inferred and checked without the weights: they are large
        del model.graph.input[1:]
        for name, weight in self.weights.items():
            tensor = model.graph.initializer.add(name=name, data_type=onnx.TensorProto.FLOAT, dims=weight.shape)
            tensor.raw_data = _drawn(weight, np.random.default_rng([seed, zlib.crc32(f"{self.name}/{name}".encode())]))
        return model

    def parameter_count(self) -> int:
        """Number of trained elements."""
        return sum(weight.size for weight in self.weights.values() if weight.is_trained)


def _window(kernel: int, stride: int) -> dict[str, Any]:
    return {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}


def _name_open_dimension(value: onnx.ValueInfoProto, entry: onnx.ValueInfoProto) -> None:
    """Call an open dimension as the input calls its own, the only one: inference loses it in Resize. In place."""
    name = entry.type.tensor_type.shape.dim[0].dim_param
    for dim in value.type.tensor_type.shape.dim:
        if not dim.HasField("dim_value"):
            dim.dim_param = name


def _drawn(weight: Weight, rng: np.random.Generator) -> bytes:
    values = rng.standard_normal(weight.shape, dtype=np.float32)
    values *= weight.scale
    values += weight.mean
    return values.tobytes()
