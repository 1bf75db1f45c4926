"""Layers of Paddle by paddle2onnx."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle2onnx
from paddle import nn

from bench.drawn.drawn import Feed, Range
from bench.exporters.recipe import Recipe, Write, export

SIDES = {"h": Range(32, 256, 32), "w": Range(32, 256, 32)}


class Detector(nn.Layer):  # type: ignore[misc]
    """Finds text: down, up by nearest, two transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2D(3, 16, 3, 2, 1), nn.BatchNorm2D(16), nn.Hardswish())
        self.deep = nn.Sequential(nn.Conv2D(16, 32, 3, 2, 1), nn.Hardswish(), nn.Conv2D(32, 16, 1))
        self.joined = nn.Sequential(nn.Conv2D(32, 24, 3, 1, 1), nn.BatchNorm2D(24), nn.ReLU())
        self.up = nn.Conv2DTranspose(24, 1, 2, 2)

    def forward(self, x: Any) -> Any:
        x = self.down(x)
        y = nn.functional.interpolate(self.deep(x), scale_factor=[2.0, 2.0], mode="nearest")
        return nn.functional.sigmoid(self.up(self.joined(paddle.concat([x, y], 1))))


class Recogniser(nn.Layer):  # type: ignore[misc]
    """Reads a line of text: convolutions, mean over rows, LSTM of both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2D(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2D(16, 32, 3, (2, 1), 1), nn.ReLU())
        self.read = nn.LSTM(32, 24, direction="bidirect")
        self.told = nn.Linear(48, 20)

    def forward(self, x: Any) -> Any:
        x, _ = self.read(self.down(x).mean(2).transpose([0, 2, 1]))
        return nn.functional.softmax(self.told(x), -1)


class Words(nn.Layer):  # type: ignore[misc]
    """Two layers of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 32)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 64), 2)
        self.told = nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        return self.told(self.layers(self.words(x)).mean(1))


class Pooled(nn.Layer):  # type: ignore[misc]
    """Pooling with ceil, shuffled channels, squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2D(3, 16, 3, 1, 1), nn.PReLU(16), nn.MaxPool2D(3, 2, 1, ceil_mode=True))
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2D(1), nn.Conv2D(16, 4, 1), nn.ReLU(), nn.Conv2D(4, 16, 1))
        self.told = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        n, _, h, w = paddle.shape(x)
        x = x.reshape([n, 4, 4, h, w]).transpose([0, 2, 1, 3, 4]).reshape([n, 16, h, w])
        x = x * nn.functional.hardsigmoid(self.squeeze(x))
        return self.told(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


def by_paddle2onnx(made: type, feeds: Mapping[str, Feed], opset: int) -> Write:
    """By way of the files of a traced layer."""

    def write(path: Path) -> object:
        paddle.seed(0)
        net = made()
        net.eval()
        shapes = {name: [-1 if isinstance(size, str) else size for size in feed.shape] for name, feed in feeds.items()}
        given = [paddle.static.InputSpec(shapes[name], np.dtype(feed.dtype).name, name) for name, feed in feeds.items()]
        with tempfile.TemporaryDirectory() as folder:
            paddle.jit.save(net, f"{folder}/net", given)
            graph = next(each for each in (Path(folder) / "net.json", Path(folder) / "net.pdmodel") if each.exists())
            return paddle2onnx.export(str(graph), f"{folder}/net.pdiparams", str(path), opset_version=opset)

    return write


def recipes() -> list[Recipe]:
    """What this environment writes."""
    picture, pictures = {"x": Feed((1, 3, "h", "w"))}, {"x": Feed(("batch", 3, "h", "w"))}
    line = {"x": Feed(("batch", 3, 32, "w"))}
    words = {"x": Feed(("batch", "seq"), "words", np.int64)}
    batch = {"batch": Range(1, 6)}
    name = "paddle2onnx"
    return [
        Recipe("paddle_det_11", name, "finds text", picture, SIDES, by_paddle2onnx(Detector, picture, 11)),
        Recipe(
            "paddle_rec_12",
            name,
            "reads text, LSTM",
            line,
            {**batch, "w": Range(32, 512, 8)},
            by_paddle2onnx(Recogniser, line, 12),
        ),
        Recipe(
            "paddle_words_13",
            name,
            "transformer",
            words,
            {**batch, "seq": Range(1, 96)},
            by_paddle2onnx(Words, words, 13),
        ),
        Recipe(
            "paddle_pooled_16",
            name,
            "pooling with ceil, shuffled channels",
            pictures,
            {**batch, **SIDES},
            by_paddle2onnx(Pooled, pictures, 16),
        ),
    ]


if __name__ == "__main__":
    export(recipes())
