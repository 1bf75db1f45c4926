"""Chains of Chainer by onnx-chainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chainer
import numpy as np
import onnx_chainer
from chainer import functions as F  # noqa: N812
from chainer import links as L  # noqa: N812

from bench.drawn.drawn import Feed, Range
from bench.exporters.recipe import Recipe, Write, export


class Classifier(chainer.Chain):  # type: ignore[misc]
    """Convolutions, normalisation, pooling."""

    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.first = L.Convolution2D(3, 16, 3, pad=1)
            self.norm = L.BatchNormalization(16)
            self.second = L.Convolution2D(16, 24, 3, pad=1)
            self.told = L.Linear(24, 10)

    def forward(self, x: Any) -> Any:
        """What is told of each picture."""
        x = F.max_pooling_2d(F.relu(self.norm(self.first(x))), 2, 2)
        x = F.elu(self.second(x))
        return F.softmax(self.told(F.mean(x, axis=(2, 3))))


class Segments(chainer.Chain):  # type: ignore[misc]
    """Down, and up again by a transposed convolution, with local response normalisation."""

    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.down = L.Convolution2D(3, 16, 3, stride=2, pad=1)
            self.up = L.Deconvolution2D(16, 8, 4, stride=2, pad=1)
            self.told = L.Convolution2D(8, 2, 1)

    def forward(self, x: Any) -> Any:
        """The map of each picture."""
        y = F.local_response_normalization(F.leaky_relu(self.down(x)))
        return F.sigmoid(self.told(F.relu(self.up(y))))


def by_chainer(made: type, opset: int) -> Write:
    """By running it once."""

    def write(path: Path) -> object:
        np.random.seed(0)
        given = np.ones((1, 3, 64, 64), np.float32)
        net = made()
        with chainer.using_config("train", False):
            net(given)
            shapes = [("batch", 3, 64, 64)]
            return onnx_chainer.export(net, given, str(path), opset_version=opset, input_shapes=shapes)

    return write


def recipes() -> list[Recipe]:
    """What this environment writes."""
    pictures, batch = {"x": Feed(("batch", 3, 64, 64))}, {"batch": Range(1, 24)}
    return [
        Recipe("chainer_net_7", "onnx-chainer", "convolutions, pooling", pictures, batch, by_chainer(Classifier, 7)),
        Recipe("chainer_net_9", "onnx-chainer", "convolutions, pooling", pictures, batch, by_chainer(Classifier, 9)),
        Recipe(
            "chainer_seg_9", "onnx-chainer", "transposed convolution, LRN", pictures, batch, by_chainer(Segments, 9)
        ),
    ]


if __name__ == "__main__":
    export(recipes())
