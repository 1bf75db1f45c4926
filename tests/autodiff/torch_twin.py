"""A small interpreter that runs ONNX models with torch, in training form: losses and gradients to compare with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import onnx
import torch
import torch.nn.functional as F  # noqa: N812
from onnx import helper, numpy_helper

Array = Any
Maybe = torch.Tensor | None
BatchNorm = Literal["train", "frozen"]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass
class Node:
    """An op about to run. `in_place` says that its first input may be overwritten; `seen`: see `Twin.forward`."""

    proto: onnx.NodeProto
    inputs: list[Maybe]
    batch_norm: BatchNorm
    in_place: bool
    seen: Mapping[str, torch.Tensor]
    attributes: dict[str, Any] = field(init=False)
    updates: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.attributes = {a.name: helper.get_attribute_value(a) for a in self.proto.attribute}

    def input(self, place: int) -> torch.Tensor:
        """An input that must be there."""
        value = self.inputs[place]
        assert value is not None
        return value

    def optional(self, place: int) -> Maybe:
        """An input that may be left out."""
        return self.inputs[place] if place < len(self.inputs) else None

    def get(self, name: str, default: Any) -> Any:
        """An attribute; text is decoded."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def ints(self, name: str, place: int) -> list[int]:
        """Whole numbers that older opsets give as an attribute and newer ones as an input."""
        value = self.optional(place)
        return list(self.get(name, [])) if value is None else [int(v) for v in value.tolist()]


@dataclass(frozen=True)
class Result:
    """What one training step gives: gradients and running statistics are by the name of the weight."""

    loss: float
    gradients: Mapping[str, Array]
    statistics: Mapping[str, Array]


Op = Callable[[Node], torch.Tensor | Sequence[torch.Tensor]]


def _spatial(node: Node, kernel: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Strides, dilations and pads (begins, then ends)."""
    assert node.get("auto_pad", "NOTSET") in ("NOTSET", "VALID"), "auto_pad"
    rank = len(kernel)
    return node.get("strides", [1] * rank), node.get("dilations", [1] * rank), node.get("pads", [0] * 2 * rank)


def _pads(pads: Sequence[int]) -> list[int]:
    """Pads as torch's `pad` orders them: last dimension first."""
    half = len(pads) // 2
    return [pads[place + end * half] for place in reversed(range(half)) for end in (0, 1)]


def _is_even(pads: Sequence[int]) -> bool:
    return list(pads[: len(pads) // 2]) == list(pads[len(pads) // 2 :])


def _conv(node: Node) -> torch.Tensor:
    x, weight = node.input(0), node.input(1)
    strides, dilations, pads = _spatial(node, weight.shape[2:])
    if not _is_even(pads):
        x, pads = F.pad(x, _pads(pads)), [0] * len(pads)
    conv: Any = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(strides)]
    half = pads[: len(strides)]
    return conv(x, weight, node.optional(2), strides, half, dilations, node.get("group", 1))  # type: ignore[no-any-return]


def _conv_transpose(node: Node) -> torch.Tensor:
    weight = node.input(1)
    strides, dilations, pads = _spatial(node, weight.shape[2:])
    assert _is_even(pads)
    assert "output_shape" not in node.attributes
    rank = len(strides)
    conv: Any = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[rank]
    extra = node.get("output_padding", [0] * rank)
    window = strides, pads[:rank], extra, node.get("group", 1), dilations
    return conv(node.input(0), weight, node.optional(2), *window)  # type: ignore[no-any-return]


def _max_pool(node: Node) -> torch.Tensor:
    x, kernel = node.input(0), node.get("kernel_shape", None)
    strides, dilations, pads = _spatial(node, kernel)
    if not _is_even(pads):
        x, pads = F.pad(x, _pads(pads), value=-math.inf), [0] * len(pads)
    pool: Any = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[len(kernel)]
    half = pads[: len(kernel)]
    return pool(x, kernel, strides, half, dilations, bool(node.get("ceil_mode", 0)))  # type: ignore[no-any-return]


def _average_pool(node: Node) -> torch.Tensor:
    """Sums over windows by how many elements of each are not padding."""
    x, kernel = node.input(0), node.get("kernel_shape", None)
    strides, dilations, pads = _spatial(node, kernel)
    assert len(kernel) == 2
    assert set(dilations) == {1}
    assert not node.get("ceil_mode", 0)
    counts_pads = bool(node.get("count_include_pad", 0))
    if _is_even(pads):
        return F.avg_pool2d(x, kernel, strides, pads[:2], count_include_pad=counts_pads)
    padded = F.avg_pool2d(F.pad(x, _pads(pads)), kernel, strides)
    if counts_pads:
        return padded
    return padded / F.avg_pool2d(F.pad(torch.ones_like(x[:1, :1]), _pads(pads)), kernel, strides)


def _batch_norm(node: Node) -> torch.Tensor:
    x, scale, bias, mean, variance = (node.input(place) for place in range(5))
    epsilon, momentum = node.get("epsilon", 1e-5), node.get("momentum", 0.9)
    if node.batch_norm == "frozen":
        return F.batch_norm(x, mean, variance, scale, bias, training=False, eps=epsilon)
    with torch.no_grad():
        axes = [axis for axis in range(x.dim()) if axis != 1]
        new_variance, new_mean = torch.var_mean(x, axes, correction=0)
        for name, old, new in zip(node.proto.input[3:5], (mean, variance), (new_mean, new_variance), strict=True):
            node.updates[name] = momentum * old + (1 - momentum) * new
    return F.batch_norm(x, None, None, scale, bias, training=True, eps=epsilon)


def _layer_norm(node: Node) -> torch.Tensor:
    x = node.input(0)
    shape = x.shape[node.get("axis", -1) % x.dim() :]
    return F.layer_norm(x, shape, node.input(1), node.optional(2), node.get("epsilon", 1e-5))


def _lrn(node: Node) -> torch.Tensor:
    size, alpha = node.get("size", None), node.get("alpha", 1e-4)
    return F.local_response_norm(node.input(0), size, alpha, node.get("beta", 0.75), node.get("bias", 1.0))


def _gemm(node: Node) -> torch.Tensor:
    a, b, c = node.input(0), node.input(1), node.optional(2)
    a, b = (a.T if node.get("transA", 0) else a), (b.T if node.get("transB", 0) else b)
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    return alpha * (a @ b) if c is None else torch.addmm(c, a, b, beta=beta, alpha=alpha)


def _relu(node: Node) -> torch.Tensor:
    return F.relu(node.input(0), inplace=node.in_place)


def _clip(node: Node) -> torch.Tensor:
    """Between bounds, as torch's ReLU6 does it."""
    low, high = node.optional(1), node.optional(2)
    least = node.get("min", -math.inf) if low is None else float(low)
    most = node.get("max", math.inf) if high is None else float(high)
    return F.hardtanh(node.input(0), least, most, inplace=node.in_place)


def _relu_as_seen(node: Node) -> torch.Tensor:
    return node.input(0) * (node.seen[node.proto.output[0]] > 0)


def _clip_as_seen(node: Node) -> torch.Tensor:
    seen = node.seen[node.proto.output[0]]
    is_inside = (seen > node.input(1)) & (seen < node.input(2))
    return torch.where(is_inside, node.input(0), seen.to(node.input(0).dtype))


def _max_pool_as_seen(node: Node) -> torch.Tensor:
    """The elements that are largest in what was seen."""
    kernel = node.get("kernel_shape", None)
    strides, dilations, pads = _spatial(node, kernel)
    assert len(kernel) == 2
    assert not node.get("ceil_mode", 0)
    seen = F.pad(node.seen[node.proto.input[0]], _pads(pads), value=-math.inf)
    places = F.max_pool2d(seen, kernel, strides, 0, dilations, return_indices=True)[1]
    padded = F.pad(node.input(0), _pads(pads), value=-math.inf)
    return padded.flatten(2).gather(2, places.flatten(2)).reshape(places.shape)


def _softmax(node: Node) -> torch.Tensor:
    """Old opsets flatten everything from the axis on, which for the last axis comes to the same."""
    x, axis = node.input(0), node.get("axis", -1)
    if "axis" not in node.attributes:
        assert math.prod(x.shape[2:]) == 1, "default axis"
        axis = 1
    return F.softmax(x, axis)


def _reshape(node: Node) -> torch.Tensor:
    x = node.input(0)
    shape = node.ints("shape", 1)
    return x.reshape([x.shape[place] if size == 0 else size for place, size in enumerate(shape)])


def _flatten(node: Node) -> torch.Tensor:
    x, axis = node.input(0), node.get("axis", 1)
    return x.reshape(math.prod(x.shape[:axis]), -1)


def _unsqueeze(node: Node) -> torch.Tensor:
    x = node.input(0)
    axes = node.ints("axes", 1)
    for axis in sorted(axis % (x.dim() + len(axes)) for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _squeeze(node: Node) -> torch.Tensor:
    return node.input(0).squeeze(tuple(node.ints("axes", 1)))


def _transpose(node: Node) -> torch.Tensor:
    x = node.input(0)
    return x.permute(node.get("perm", list(reversed(range(x.dim())))))


def _split(node: Node) -> Sequence[torch.Tensor]:
    x, axis = node.input(0), node.get("axis", 0)
    sizes = node.ints("split", 1) or [x.shape[axis] // len(node.proto.output)] * len(node.proto.output)
    return x.split(sizes, axis)


def _resize(node: Node) -> torch.Tensor:
    """Whole factors upwards, nearest."""
    x = node.input(0)
    style = [node.get(key, "") for key in ("mode", "coordinate_transformation_mode", "nearest_mode")]
    assert style == ["nearest", "asymmetric", "floor"], style
    scales = [float(scale) for scale in node.input(2)]
    assert scales[:2] == [1, 1]
    assert all(scale.is_integer() for scale in scales)
    return F.interpolate(x, scale_factor=scales[2:])


def _gather(node: Node) -> torch.Tensor:
    x, index, axis = node.input(0), node.input(1), node.get("axis", 0)
    if axis == 0:
        return F.embedding(index, x)
    return x.index_select(axis, index.reshape(-1)).reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


def _sum(node: Node) -> torch.Tensor:
    total = node.input(0)
    for place in range(1, len(node.inputs)):
        total = total + node.input(place)
    return total


OPS: Mapping[str, Op] = {
    "Add": lambda node: node.input(0) + node.input(1),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Concat": lambda node: torch.cat([x for x in node.inputs if x is not None], node.get("axis", 1)),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Div": lambda node: node.input(0) / node.input(1),
    "Dropout": lambda node: node.input(0),
    "Erf": lambda node: torch.erf(node.input(0)),
    "Flatten": _flatten,
    "Gather": _gather,
    "Gemm": _gemm,
    "GlobalAveragePool": lambda node: node.input(0).mean(list(range(2, node.input(0).dim())), keepdim=True),
    "Identity": lambda node: node.input(0),
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "MatMul": lambda node: node.input(0) @ node.input(1),
    "MaxPool": _max_pool,
    "Mul": lambda node: node.input(0) * node.input(1),
    "Pow": lambda node: node.input(0) ** float(node.input(1)),
    "ReduceMean": lambda node: node.input(0).mean(node.ints("axes", 1), keepdim=bool(node.get("keepdims", 1))),
    "Relu": _relu,
    "Reshape": _reshape,
    "Resize": _resize,
    "Sigmoid": lambda node: torch.sigmoid(node.input(0)),
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _squeeze,
    "Sub": lambda node: node.input(0) - node.input(1),
    "Sum": _sum,
    "Tanh": lambda node: torch.tanh(node.input(0)),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
AS_SEEN: Mapping[str, Op] = {"Clip": _clip_as_seen, "MaxPool": _max_pool_as_seen, "Relu": _relu_as_seen}
OVERWRITABLE = frozenset(
    {"Conv", "ConvTranspose", "BatchNormalization", "Gemm", "Add", "Sum"}
)  # backward without output


class Twin:
    """A model in torch. `weights` holds its real initialisers by name; those that `train` names are leaves."""

    def __init__(self, model: onnx.ModelProto, train: Sequence[str], dtype: torch.dtype = torch.float32) -> None:
        """Read weights; refuse ops that no function is known for."""
        unknown = sorted({node.op_type for node in model.graph.node} - OPS.keys())
        assert not unknown, f"no torch function for {', '.join(unknown)}"
        self.graph = model.graph
        self.dtype = dtype
        self.weights = {t.name: self.tensor(numpy_helper.to_array(t)) for t in model.graph.initializer}
        self.trained = {name: self.weights[name].requires_grad_() for name in train}
        self.updates: dict[str, torch.Tensor] = {}
        self._overwritable = _overwritable(self.graph)

    def tensor(self, array: Array) -> torch.Tensor:
        """An array as a tensor, reals in the element type of this twin."""
        tensor = array if isinstance(array, torch.Tensor) else torch.tensor(np.array(array))
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def forward(
        self,
        feeds: Mapping[str, Array],
        end: str,
        batch_norm: BatchNorm = "train",
        in_place: bool = False,
        seen: Mapping[str, Array] | None = None,
    ) -> torch.Tensor:
        """The tensor called `end`; every other one is dropped after its last reader, as a module's locals are.

        `seen` are tensors of another run of the model: ops with kinks (`AS_SEEN`) then take the branches that were
        taken there. Rounding decides otherwise near a kink, and one element may change a gradient by percents.
        """
        values = {name: self.tensor(array) for name, array in feeds.items()}
        known = {name: torch.tensor(array) for name, array in (seen or {}).items()}
        nodes = needed_for(end, self.graph)
        last_reader = {name: place for place, node in enumerate(nodes) for name in node.input}
        for place, proto in enumerate(nodes):
            inputs = [None if name == "" else values.get(name, self.weights.get(name)) for name in proto.input]
            node = Node(proto, inputs, batch_norm, in_place and proto.output[0] in self._overwritable, known)
            self._run(node, values)
            del inputs, node
            for name in proto.input:
                if last_reader[name] == place:
                    values.pop(name, None)
        return values[end]

    def _run(self, node: Node, values: dict[str, torch.Tensor]) -> None:
        ops = {**OPS, **AS_SEEN} if node.seen else OPS
        result = ops[node.proto.op_type](node)
        self.updates |= node.updates
        values.update(zip(node.proto.output, [result] if isinstance(result, torch.Tensor) else result, strict=False))


def _overwritable(graph: onnx.GraphProto) -> frozenset[str]:
    """Results of elementwise ops that may overwrite their input: no other op reads it, its maker does not need it."""
    makers = {name: node.op_type for node in graph.node for name in node.output}
    readers = [name for node in graph.node for name in node.input]
    return frozenset(
        node.output[0]
        for node in graph.node
        if readers.count(node.input[0]) == 1 and makers.get(node.input[0]) in OVERWRITABLE
    )


def needed_for(end: str, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The ops that a tensor depends on, in order."""
    names, found = {end}, []
    for node in reversed(graph.node):
        if names.intersection(node.output):
            names.update(node.input)
            found.append(node)
    return found[::-1]


def cross_entropy(axis: int = 1) -> Loss:
    """Mean over all but the class axis."""
    return lambda output, target: F.cross_entropy(output.movedim(axis, 1), target)


def train_once(twin: Twin, loss: torch.Tensor) -> Result:
    """Backward from a loss; a weight that it does not react to has gradient zero."""
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {
        name: np.zeros(tuple(leaf.shape)) if leaf.grad is None else leaf.grad.numpy()
        for name, leaf in twin.trained.items()
    }
    return Result(loss.item(), gradients, {name: update.numpy() for name, update in twin.updates.items()})
