"""Small graphs as the layout step of the runtime finds them: written op by op, as scenes and as models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, Self

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from remat_cli.ort_rules.layout import BACK, IN_BLOCKS, REORDERED, LayoutOp, LayoutScene, Shape

CONTRIB = "com.microsoft"


class Net:
    """A graph that grows by ops, each named after what it makes; what nobody reads is a result of the model."""

    def __init__(self, **inputs: Shape) -> None:
        self.inputs = inputs
        self.shapes: dict[str, Shape] = dict(inputs)
        self.ops: list[LayoutOp] = []
        self.weights: dict[str, tuple[int, ...]] = {}
        self.numbers: dict[str, tuple[float, ...]] = {}
        self.kept: set[str] = set()

    def op(
        self, made: str, op_type: str, *reads: str, shape: Shape | None = None, domain: str = "", **attributes: Any
    ) -> Self:
        """Add an op; its first result has the shape of what it reads first, unless another is given."""
        makes = tuple(made.split(","))
        self.ops.append(LayoutOp(f"op_{makes[0]}", op_type, domain, reads, makes, attributes))
        known = self.shapes.get(reads[0]) if shape is None else shape
        if known is not None:
            self.shapes |= dict.fromkeys(makes, known)
        return self

    def conv(
        self,
        made: str,
        read: str,
        inputs: int,
        outputs: int,
        kernel: int = 1,
        *,
        groups: int = 1,
        bias: str | None = None,
        more: tuple[str, ...] = (),
        op_type: str = "Conv",
        domain: str = "",
        shape: Shape | None = None,
        **attributes: Any,
    ) -> Self:
        """Add a convolution of so many input channels for each group; its weight and bias are constants."""
        weight, bias = f"w_{made}", f"b_{made}" if bias is None else bias
        self.weights[weight] = (outputs, inputs, kernel, kernel)
        if bias == f"b_{made}":
            self.weights[bias] = (outputs,)
        if groups > 1:
            attributes["group"] = groups
        before = self.shapes[read]
        shape = shape or (before[0], outputs, *before[2:])
        reads = (read, weight, *([bias] if bias or more else []), *more)
        return self.op(made, op_type, *reads, shape=shape, domain=domain, **attributes)

    def constant(self, name: str, *values: float) -> Self:
        """Add a small constant."""
        self.numbers[name] = values
        return self

    def floats(self, **shapes: tuple[int, ...]) -> Self:
        """Add constants of which only shapes matter."""
        self.weights |= shapes
        return self

    def keep(self, *names: str) -> Self:
        """Say that values are results of the model, though ops read them."""
        self.kept |= set(names)
        return self

    @property
    def outputs(self) -> frozenset[str]:
        """Names of its results."""
        read = {name for op in self.ops for name in op.reads}
        return frozenset(name for op in self.ops for name in op.makes if name and name not in read) | self.kept

    @property
    def scene(self) -> LayoutScene:
        """The graph as the layout step sees it."""
        return LayoutScene(tuple(self.ops), self.shapes, self.weights, self.numbers, self.outputs)


def told(ops: Iterable[LayoutOp], net: Net) -> list[str]:
    """Each op in a word: `a#=*Conv+sum(x',b#)[a+y]` makes `a` in blocks, of `x` put into blocks, for two ops."""
    found = []
    for op in ops:
        activation = op.attributes.get("activation") if op.is_conv else None
        kind = f"{op.op_type}{'+sum' if op.has_sum else ''}{f'+{activation}' if activation else ''}"
        reads = ",".join(_short(name) for name in op.reads if name not in net.weights and name not in net.numbers)
        covers = "+".join(name.removeprefix("op_") for name in op.covers) if op.covers[1:] else ""
        made = ",".join(map(_short, op.makes))
        found.append(f"{made}={'*' * op.is_blocked}{kind}({reads}){f'[{covers}]' * bool(covers)}")
    return found


def _short(name: str) -> str:
    return name.replace(IN_BLOCKS, "#").replace(REORDERED, "'").replace(BACK, "")


def model_of(nets: Mapping[str, Net]) -> onnx.ModelProto:
    """One model of many nets beside each other; names are those of a net's behind its own name."""
    rng, nodes, weights, inputs, outputs = np.random.default_rng(0), [], [], [], []
    for place, net in nets.items():
        names = {name: f"{place}/{name}" for name in (*net.inputs, *net.weights, *net.numbers)}
        names |= {name: f"{place}/{name}" for op in net.ops for name in op.makes if name}
        for op in net.ops:
            reads, makes = ([names.get(name, "") for name in part] for part in (op.reads, op.makes))
            name = f"{place}/{op.name}"
            nodes.append(helper.make_node(op.op_type, reads, makes, name, domain=op.domain, **op.attributes))
        for name, shape in net.weights.items():
            values = rng.random(prod(shape), np.float32).reshape(shape)
            weights.append(numpy_helper.from_array(values, names[name]))
        for name, values in net.numbers.items():
            weights.append(numpy_helper.from_array(np.array(values, np.float32), names[name]))
        for name, shape in net.inputs.items():
            inputs.append(helper.make_tensor_value_info(names[name], TensorProto.FLOAT, shape))
        places = {name for op in net.ops if op.op_type == "MaxPool" for name in op.makes[1:]}
        kinds = {name: TensorProto.INT64 if name in places else TensorProto.FLOAT for name in sorted(net.outputs)}
        outputs += [helper.make_tensor_value_info(names[name], kind, None) for name, kind in kinds.items()]
    graph = helper.make_graph(nodes, "nets", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
