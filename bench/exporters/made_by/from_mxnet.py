"""Gluon networks by MXNet's own exporter, which asks for modules that ONNX and NumPy have given up."""

from __future__ import annotations

import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bench.drawn.drawn import Feed, Range
from bench.exporters.recipe import Recipe, Write, export

mapping: Any = types.ModuleType("onnx.mapping")
KINDS = ("float32", "float16", "float64", "int32", "int64", "uint8", "int8", "bool")
mapping.NP_TYPE_TO_TENSOR_TYPE = {
    np.dtype(kind): onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for kind in KINDS
}
mapping.TENSOR_TYPE_TO_NP_TYPE = {code: kind for kind, code in mapping.NP_TYPE_TO_TENSOR_TYPE.items()}
sys.modules["onnx.mapping"] = mapping
setattr(onnx, "mapping", mapping)  # noqa: B010
for word, kind in (("bool", bool), ("object", object), ("int", int), ("float", float)):
    if word not in vars(np):
        setattr(np, word, kind)

import mxnet as mx  # noqa: E402
from mxnet.gluon import nn  # noqa: E402

SIDES = {"batch": Range(1, 6), "h": Range(32, 256, 8), "w": Range(32, 256, 8)}
PICTURES = {"data": Feed(("batch", 3, "h", "w"))}


def classifier() -> Any:
    """Convolutions with normalisation and pooling."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(16, 3, padding=1, in_channels=3), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(2, 2))
    net.add(nn.Conv2D(24, 3, padding=1), nn.LeakyReLU(0.1), nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(10))
    return net


def segments() -> Any:
    """Down, and up again by a transposed convolution."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(16, 3, padding=1, in_channels=3), nn.PReLU(), nn.AvgPool2D(2, 2))
    net.add(nn.Conv2DTranspose(8, 4, 2, 1), nn.Conv2D(2, 1), nn.Activation("sigmoid"))
    return net


def frames() -> Any:
    """Dense layers on each frame."""
    net = nn.HybridSequential()
    net.add(nn.Dense(48, flatten=False, activation="tanh"), nn.Dense(64, flatten=False, activation="softrelu"))
    net.add(nn.Dense(6, flatten=False))
    return net


def by_mxnet(made: Callable[[], Any], shape: tuple[int, ...], opened: tuple[int | None, ...]) -> Write:
    """By way of the files of a traced network."""

    def write(path: Path) -> object:
        mx.random.seed(0)
        net = made()
        net.initialize()
        net.hybridize()
        net(mx.nd.random.normal(shape=shape))
        with tempfile.TemporaryDirectory() as folder:
            net.export(f"{folder}/net")
            files = [f"{folder}/net-symbol.json", f"{folder}/net-0000.params"]
            options: dict[str, Any] = {"dynamic": True, "dynamic_input_shapes": [opened]}
            return mx.onnx.export_model(*files, [shape], [np.float32], str(path), **options)

    return write


def recipes() -> list[Recipe]:
    """What this environment writes."""
    open_ = (None, 3, None, None)
    sounds = {"data": Feed(("batch", "frames", 16))}
    sizes = {"batch": Range(1, 6), "frames": Range(1, 256)}
    return [
        Recipe(
            "mx_net", "mxnet", "convolutions, pooling", PICTURES, SIDES, by_mxnet(classifier, (4, 3, 64, 64), open_)
        ),
        Recipe("mx_seg", "mxnet", "transposed convolution", PICTURES, SIDES, by_mxnet(segments, (4, 3, 64, 64), open_)),
        Recipe(
            "mx_frames", "mxnet", "layers over frames", sounds, sizes, by_mxnet(frames, (4, 32, 16), (None, None, 16))
        ),
    ]


if __name__ == "__main__":
    export(recipes())
