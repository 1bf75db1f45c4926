"""Float16 and quantised forms of two models, by the runtime's own converters."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers.float16 import convert_float_to_float16


def to_float16(source: Path, target: Path) -> None:
    """Write a model in half precision, inputs and outputs as they are.

    The converter writes some casts twice and some behind their readers: twins are left out, and nodes sorted.
    """
    model = convert_float_to_float16(onnx.load(source), keep_io_types=True)
    unique = {tuple(node.output): node for node in model.graph.node}
    nodes = _sorted(list(unique.values()), {value.name for value in model.graph.initializer})
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, target)


def _sorted(nodes: list[onnx.NodeProto], known: set[str]) -> list[onnx.NodeProto]:
    made = {name for node in nodes for name in node.output}
    ready, waiting = [], nodes
    have = set(known)
    while waiting:
        later = []
        for node in waiting:
            if all(name in have or name not in made for name in node.input):
                ready.append(node)
                have.update(node.output)
            else:
                later.append(node)
        if len(later) == len(waiting):
            raise ValueError("the nodes of the model form a circle")
        waiting = later
    return ready


class Samples(CalibrationDataReader):  # type: ignore[misc]
    """A few seeded inputs."""

    def __init__(self, model: Path, count: int = 2) -> None:
        generator = np.random.default_rng(20)
        graph = onnx.load(model).graph
        shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in graph.input}
        self.samples: Iterator[dict[str, Any]] = iter(
            [
                {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
                for _ in range(count)
            ]
        )

    def get_next(self) -> dict[str, Any] | None:
        """The next one; None at the end."""
        return next(self.samples, None)


def to_qdq(source: Path, target: Path) -> None:
    """Write a model with eight-bit weights and activations, as pairs of QuantizeLinear and DequantizeLinear."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.onnx"
        quant_pre_process(str(source), str(ready), skip_symbolic_shape=True)
        quantize_static(
            str(ready),
            str(target),
            Samples(ready),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )


VARIANTS: dict[str, tuple[str, Callable[[Path, Path], None]]] = {
    "segformer-b2-float16": ("segformer-b2", to_float16),
    "u2net-qdq": ("u2net", to_qdq),
}
