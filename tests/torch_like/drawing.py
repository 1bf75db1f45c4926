"""A model under construction: every op knows the shapes of its results, so that blocks can be put together freely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper, shape_inference

FLOAT, FLOAT16, INT64, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL
SMALL = 64  # elements of constants that shape inference may look at

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Tensor:
    """A tensor of the model under construction."""

    name: str
    shape: tuple[int, ...]
    dtype: int = FLOAT

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass
class Drawing:
    """Ops, constants, inputs and outputs, with the dice that all choices are made by.

    `has_constant_nodes`: constants are nodes, as in older exports. `has_shape_chains`: target shapes are computed from
    shapes, as in exports that were not optimised.
    """

    dice: np.random.Generator
    opset: int = 17
    has_constant_nodes: bool = False
    has_shape_chains: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, onnx.TensorProto] = field(default_factory=dict)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    families: list[str] = field(default_factory=list)
    scope: str = ""
    _known: dict[str, onnx.TensorProto] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)

    def chance(self, share: float = 0.5) -> bool:
        """True in this share of calls."""
        return bool(self.dice.random() < share)

    def pick(self, *choices: Any) -> Any:
        """One of some values."""
        return choices[int(self.dice.integers(len(choices)))]

    def mark(self, family: str) -> None:
        """Note that the model has this kind of block."""
        if family not in self.families:
            self.families.append(family)

    def unique(self, word: str) -> str:
        """A name that no tensor has yet."""
        name = f"{self.scope}/{word}"
        count = self._names[name] = self._names.get(name, -1) + 1
        return f"{name}_{count}" if count else name

    def input(self, name: str, shape: Sequence[int], dtype: int = FLOAT) -> Tensor:
        """A new input of the model."""
        tensor = Tensor(name, tuple(shape), dtype)
        self.inputs.append(tensor)
        return tensor

    def constant(self, values: Any, dtype: type[np.generic] = np.float32) -> Tensor:
        """A constant, as a node or as an initialiser."""
        array = np.asarray(values, dtype)
        name = self.unique("Constant")
        proto = numpy_helper.from_array(array, name)
        if self.has_constant_nodes and array.size <= SMALL:
            self.nodes.append(helper.make_node("Constant", [], [name], name, value=proto))
        else:
            self.weights[name] = proto
        if array.size <= SMALL:
            self._known[name] = proto
        return Tensor(name, array.shape, proto.data_type)

    def ints(self, *values: int) -> Tensor:
        """A constant list of integers, such as axes."""
        return self.constant(values, np.int64)

    def weight(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
        """A normal weight."""
        values = self.dice.normal(mean, scale, shape).astype(np.float32)
        name = self.unique("weight")
        self.weights[name] = numpy_helper.from_array(values, name)
        return Tensor(name, shape)

    def positive(self, *shape: int) -> Tensor:
        """A weight around one, such as a scale or a variance."""
        name = self.unique("weight")
        values = self.dice.uniform(0.6, 1.4, shape).astype(np.float32)
        self.weights[name] = numpy_helper.from_array(values, name)
        return Tensor(name, shape)

    def op(self, op_type: str, *inputs: Tensor | None, shape: Sequence[int] | None = None, **attributes: Any) -> Tensor:
        """Append an op with one result; `shape` where inference cannot know it."""
        return self.ops(op_type, *inputs, count=1, shape=shape, **attributes)[0]

    def ops(
        self,
        op_type: str,
        *inputs: Tensor | None,
        count: int,
        shape: Sequence[int] | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> tuple[Tensor, ...]:
        """Append an op with several results."""
        name = self.unique(op_type)
        results = [f"{name}_output_{i}" for i in range(count)]
        names = [tensor.name if tensor else "" for tensor in inputs]
        node = helper.make_node(op_type, names, results, name, domain=domain, **attributes)
        self.nodes.append(node)
        if shape is not None and inputs and inputs[0]:
            return tuple(Tensor(result, tuple(shape), inputs[0].dtype) for result in results)
        types = self._types(node, [tensor for tensor in inputs if tensor])
        return tuple(_tensor(result, types[result]) for result in results)

    def has(self, op_type: str) -> bool:
        """Whether the opset knows this op."""
        return _exists(op_type, self.opset)

    def _types(self, node: onnx.NodeProto, inputs: Sequence[Tensor]) -> dict[str, onnx.TypeProto]:
        schema = defs.get_schema(node.op_type, self.opset, node.domain)
        given = {t.name: helper.make_tensor_type_proto(t.dtype, t.shape) for t in inputs}
        known = {t.name: self._known[t.name] for t in inputs if t.name in self._known}
        opset = [helper.make_opsetid("", self.opset)]
        types: dict[str, onnx.TypeProto] = shape_inference.infer_node_outputs(
            schema, node, given, known, opset_imports=opset, ir_version=8
        )
        return types

    def proto(self, name: str) -> onnx.ModelProto:
        """The model as drawn so far."""
        inputs = [helper.make_tensor_value_info(t.name, t.dtype, t.shape) for t in self.inputs]
        outputs = [helper.make_tensor_value_info(t.name, t.dtype, t.shape) for t in self.outputs]
        graph = helper.make_graph(self.nodes, name, inputs, outputs, list(self.weights.values()))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


def _exists(op_type: str, opset: int) -> bool:
    try:
        defs.get_schema(op_type, opset, "")
    except defs.SchemaError:
        return False
    return True


def _tensor(name: str, type_proto: onnx.TypeProto) -> Tensor:
    tensor = type_proto.tensor_type
    assert tensor.HasField("shape"), f"{name}: no shape"
    dims = tuple(dim.dim_value for dim in tensor.shape.dim)
    assert all(dims), f"{name}: {dims}"
    return Tensor(name, dims, tensor.elem_type)
