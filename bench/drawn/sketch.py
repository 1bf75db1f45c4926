"""A graph under construction as older exporters write it: ops as their operator set has them, sizes from shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.drawn.drawn import Array

INPUTS_OF_CLIP, INPUTS_OF_SLICE, INPUTS_OF_AXES, INPUTS_OF_PAD, OLD_RESIZE = 11, 10, 13, 11, 11
SMALL = 16  # values of a constant that may be written as a list
FAR = 2**31 - 1


@dataclass(frozen=True)
class Style:
    """What an exporter is known by."""

    name: str
    opset: int
    is_last: bool = False  # channels last, with moves around what wants them second
    pads_alone: bool = False  # auto_pad in place of numbers
    has_int32: bool = False  # shapes are cast to 32 bits, and back
    has_constant_nodes: bool = False
    has_weights_as_inputs: bool = False
    ir_version: int = 7
    act: str = "relu"  # most of its activations


@dataclass(frozen=True)
class Flow:
    """A tensor on its way: its channels, and whether they come last."""

    name: str
    channels: int
    is_last: bool = False


@dataclass
class Sketch:
    """Nodes and weights, with the dice that choices are made by."""

    dice: np.random.Generator
    style: Style
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    families: list[str] = field(default_factory=list)

    @property
    def opset(self) -> int:
        """The operator set."""
        return self.style.opset

    def chance(self, share: float = 0.5) -> bool:
        """True in this share of calls."""
        return bool(self.dice.random() < share)

    def pick(self, *choices: Any) -> Any:
        """One of some values."""
        return choices[int(self.dice.integers(len(choices)))]

    def mark(self, family: str) -> None:
        """Note that the model has this."""
        if family not in self.families:
            self.families.append(family)

    def ops(self, op_type: str, *inputs: str, count: int = 1, domain: str = "", **attributes: Any) -> list[str]:
        """Append an op with several results."""
        number = len(self.nodes)
        results = [f"{op_type}_{number}:{at}" if at else f"{op_type}_{number}" for at in range(count)]
        name = f"node_{op_type}_{number}" if self.chance(0.9) else ""
        self.nodes.append(helper.make_node(op_type, list(inputs), results, name, domain=domain, **attributes))
        return results

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Append an op with one result."""
        return self.ops(op_type, *inputs, **attributes)[0]

    def constant(self, values: Any, dtype: type[np.generic] = np.float32) -> str:
        """A constant, in one of the forms that there are."""
        array = np.asarray(values, dtype)
        has_lists = self.opset >= 12 and 0 < array.size <= SMALL and dtype in (np.float32, np.int64)
        if array.size <= SMALL and self.style.has_constant_nodes:
            if has_lists and array.ndim <= 1 and self.chance(0.5):
                kind = ("value_float" if dtype is np.float32 else "value_int") + "s" * array.ndim
                return self.op("Constant", **{kind: array.tolist()})
            return self.op("Constant", value=numpy_helper.from_array(array))
        name = f"const_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, *values: int) -> str:
        """A list of integers."""
        return self.constant(values, np.int64)

    def weight(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> str:
        """A normal weight."""
        return self._kept(self.dice.normal(mean, scale, shape))

    def positive(self, *shape: int) -> str:
        """A weight around one."""
        return self._kept(self.dice.uniform(0.6, 1.4, shape))

    def _kept(self, values: Array) -> str:
        name = f"weight_{len(self.weights)}/read:0"
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    # Ops whose attributes became inputs.

    def clip(self, x: str, least: float, most: float) -> str:
        """Bounds, as Clip or as Min and Max."""
        if self.style.name == "tf" and self.opset >= 8 and self.chance():
            return self.op("Max", self.op("Min", x, self.constant(most)), self.constant(least))
        if self.opset >= INPUTS_OF_CLIP:
            return self.op("Clip", x, self.constant(least), self.constant(most))
        return self.op("Clip", x, min=least, max=most)

    def slice(self, x: str, start: int, end: int, axis: int) -> str:
        """A part of one axis."""
        if self.opset >= INPUTS_OF_SLICE:
            more = [self.ints(1)] if self.chance() else []
            return self.op("Slice", x, self.ints(start), self.ints(end), self.ints(axis), *more)
        return self.op("Slice", x, starts=[start], ends=[end], axes=[axis])

    def squeeze(self, x: str, *axes: int) -> str:
        """Axes of length one go."""
        if self.opset >= INPUTS_OF_AXES:
            return self.op("Squeeze", x, self.ints(*axes))
        return self.op("Squeeze", x, axes=list(axes))

    def unsqueeze(self, x: str, *axes: int) -> str:
        """Axes of length one come."""
        if self.opset >= INPUTS_OF_AXES:
            return self.op("Unsqueeze", x, self.ints(*axes))
        return self.op("Unsqueeze", x, axes=list(axes))

    def pad(self, x: str, pads: Sequence[int]) -> str:
        """Zeros around."""
        if self.opset >= INPUTS_OF_PAD:
            return self.op("Pad", x, self.ints(*pads), self.constant(0.0))
        return self.op("Pad", x, pads=list(pads), mode="constant", value=0.0)

    def split(self, x: str, sizes: Sequence[int], axis: int) -> list[str]:
        """Parts of these sizes."""
        count = len(sizes)
        if self.opset >= INPUTS_OF_AXES:
            return self.ops("Split", x, self.ints(*sizes), count=count, axis=axis)
        return self.ops("Split", x, count=count, axis=axis, split=list(sizes))

    def mean(self, x: str, *axes: int) -> str:
        """The mean over axes, which stay."""
        return self.op("ReduceMean", x, axes=list(axes), keepdims=1)

    def sum(self, x: str, *axes: int) -> str:
        """The sum over axes, which go."""
        if self.opset >= INPUTS_OF_AXES:
            return self.op("ReduceSum", x, self.ints(*axes), keepdims=0)
        return self.op("ReduceSum", x, axes=list(axes), keepdims=0)

    # Shapes.

    def shape(self, x: str) -> str:
        """The shape of a tensor; some read it as 32 bits, which is cast back where it is used."""
        found = self.op("Shape", x)
        return self.op("Cast", found, to=TensorProto.INT32) if self.style.has_int32 else found

    def sizes(self, *parts: tuple[str, int] | int) -> str:
        """A target shape of numbers and of entries of shapes: Slice or Gather of each, joined."""
        kind = np.int32 if self.style.has_int32 else np.int64
        joined = [self.constant([part], kind) if isinstance(part, int) else self._entry(*part) for part in parts]
        target = self.op("Concat", *joined, axis=0)
        return self.op("Cast", target, to=TensorProto.INT64) if self.style.has_int32 else target

    def _entry(self, shape: str, at: int) -> str:
        if self.chance():
            return self.slice(shape, at, at + 1, 0)
        return self.unsqueeze(self.op("Gather", shape, self.constant(at, np.int64), axis=0), 0)

    def reshape(self, x: str, *parts: tuple[str, int] | int) -> str:
        """A reshape to a computed target, or to constants where there are only those."""
        numbers = [part for part in parts if isinstance(part, int)]
        return self.op("Reshape", x, self.ints(*numbers) if len(numbers) == len(parts) else self.sizes(*parts))

    # Layouts.

    def second(self, x: Flow) -> Flow:
        """With channels second."""
        return replace(x, name=self.op("Transpose", x.name, perm=[0, 3, 1, 2]), is_last=False) if x.is_last else x

    def last(self, x: Flow) -> Flow:
        """With channels last."""
        return x if x.is_last else replace(x, name=self.op("Transpose", x.name, perm=[0, 2, 3, 1]), is_last=True)

    def like(self, x: Flow, other: Flow) -> Flow:
        """In the layout of another."""
        return self.last(x) if other.is_last else self.second(x)

    def vector(self, values: str, x: Flow, channels: int) -> str:
        """A weight by channel in a form that broadcasts to a picture."""
        return values if x.is_last else self.op("Reshape", values, self.ints(1, channels, 1, 1))

    def scaled(self, *shape: int) -> str:
        """A weight of a convolution or of a linear layer."""
        return self.weight(*shape, scale=math.sqrt(1.6 / max(1, math.prod(shape[1:]))))
