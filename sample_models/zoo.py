"""The model-zoo graphs bundled with the onnx package, repaired and given seeded random weights.

The bundled files are IR version 3, list their initialisers as inputs, and make their weights with
ConstantOfShape nodes, so that all outputs are equal whatever the input is.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

IR_VERSION = 8
FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
PREFIX = "light_"
LAYOUT_OPS = ("Unsqueeze", "Reshape")

Weights = npt.NDArray[np.float32]
Role = tuple[str, int]  # the op that reads a weight, and at which of its inputs


def zoo_names() -> tuple[str, ...]:
    """Names that `load_zoo` accepts."""
    return tuple(sorted(path.stem.removeprefix(PREFIX) for path in FOLDER.glob(f"{PREFIX}*.onnx")))


def load_zoo(name: str, seed: int = 0) -> onnx.ModelProto:
    """Load a bundled model whose outputs vary and react to the input; equal seeds give equal weights."""
    if name not in zoo_names():
        raise ValueError(f"unknown model {name!r}, choose from {', '.join(zoo_names())}")
    model = onnx.load(FOLDER / f"{PREFIX}{name}.onnx")
    model.ir_version = IR_VERSION
    _name_nodes(model.graph)
    _replace_weights(model.graph, seed)
    return model


def _name_nodes(graph: onnx.GraphProto) -> None:
    """Give every node a name of its own."""
    for index, node in enumerate(graph.node):
        node.name = f"{node.op_type}_{index}"


def _replace_weights(graph: onnx.GraphProto, seed: int) -> None:
    """Make every float weight, generated or stored, a random initialiser that is no input."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    generators = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    shapes = {t.name: tuple(t.dims) for t in stored.values() if t.data_type == onnx.TensorProto.FLOAT}
    for node in generators:
        shapes[node.output[0]] = tuple(numpy_helper.to_array(stored[node.input[0]]).tolist())
    for value in [value for value in graph.input if value.name in stored]:
        graph.input.remove(value)
    for node in generators:
        graph.node.remove(node)
    index = _Index(graph.node)
    kept = [tensor for name, tensor in stored.items() if name in index.readers and name not in shapes]
    roles = {name: index.role(name) for name in shapes if name in index.readers}
    del graph.initializer[:]
    graph.initializer.extend(kept)
    for name, role in roles.items():
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        values = _random(role, shapes[name], rng).tobytes()
        graph.initializer.add(name=name, data_type=onnx.TensorProto.FLOAT, dims=shapes[name], raw_data=values)


class _Index:
    """Who makes and who reads each tensor."""

    def __init__(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Index the nodes."""
        self.maker: dict[str, str] = {}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in nodes:
            self.maker |= dict.fromkeys(node.output, node.op_type)
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def role(self, weight: str) -> Role:
        """What a weight is for: its reader, looking through nodes that only change the layout."""
        reader = self.readers[weight][0]
        if reader.op_type in LAYOUT_OPS:
            return self.role(reader.output[0])
        role = reader.op_type, list(reader.input).index(weight)
        if role == ("BatchNormalization", 1) and self._is_read_by_sum(reader.output[0]):
            return "Sum", 1
        if role == ("Conv", 1) and self.maker.get(reader.input[0]) == "BatchNormalization":
            return "Conv without Relu", 1
        return role

    def _is_read_by_sum(self, tensor: str) -> bool:
        return any(node.op_type == "Sum" for node in self.readers.get(tensor, []))


def _random(role: Role, shape: tuple[int, ...], rng: np.random.Generator) -> Weights:
    """Normally distributed values around the usual mean of the role."""
    mean, scale = 0.0, 0.1
    match role:
        case ("Conv", 1):
            scale = math.sqrt(2 / math.prod(shape[1:]))
        case ("Conv without Relu", 1):
            scale = math.sqrt(1 / math.prod(shape[1:]))
        case ("Gemm", 1):  # all of them are transposed
            scale = math.sqrt(1 / shape[-1])
        case ("BatchNormalization", 1 | 4) | ("Mul", 1):  # a scale, or a variance: ten deviations above zero
            mean = 1.0
        case ("Sum", 1):  # the scale that ends a residual branch: small, so that sums do not grow with depth
            mean, scale = 0.4, 0.05
    values = rng.standard_normal(shape, dtype=np.float32)
    values *= scale
    values += mean
    return values
