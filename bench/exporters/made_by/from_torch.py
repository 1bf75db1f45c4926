"""torch's two exporters, onnxscript, spox and Hummingbird: what shares torch's environment."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxscript
import spox
import spox.opset.ai.onnx.v21 as spox21
import torch
from onnxscript import FLOAT, script
from onnxscript import opset18 as op18
from torch import nn

from bench.drawn.drawn import Feed, Range
from bench.exporters.recipe import Recipe, Write, export

SIDES = {"batch": Range(1, 6), "h": Range(32, 256, 16), "w": Range(32, 256, 16)}
PICTURES = {"x": Feed(("batch", 3, "h", "w"))}
FRAMES = {"x": Feed(("batch", "frames", 16))}
LENGTHS = {"batch": Range(1, 6), "frames": Range(8, 256)}
WORDS = {"x": Feed(("batch", "seq"), "words", np.int64)}
SEQ = {"batch": Range(2, 6), "seq": Range(2, 96)}


class Pictures(nn.Module):
    """Down and up with a skip, by bilinear Resize."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.InstanceNorm2d(16, affine=True), nn.SiLU())
        self.deep = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.GELU(), nn.Conv2d(32, 16, 1))
        self.told = nn.Conv2d(32, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> Any:
        """The map of a picture."""
        skip = self.down(x)
        y = nn.functional.interpolate(self.deep(skip), size=skip.shape[2:], mode="bilinear")
        return self.told(torch.cat([skip, y], 1)).sigmoid()


class Recurrent(nn.Module):
    """Convolutions over time, then a recurrent layer of both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv1d(16, 32, 5, padding=2), nn.ReLU())
        self.read = nn.GRU(32, 24, batch_first=True, bidirectional=True)
        self.told = nn.Linear(48, 6)

    def forward(self, x: torch.Tensor) -> Any:
        """What is told of each frame."""
        return self.told(self.read(self.first(x.transpose(1, 2)).transpose(1, 2))[0]).log_softmax(-1)


class Words(nn.Module):
    """A layer of a transformer, with attention as one op of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.told = nn.Embedding(50, 32), nn.Linear(32, 8)
        self.mixed, self.out, self.norm = nn.Linear(32, 96), nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> Any:
        """What is told of each text."""
        y = self.words(x)
        q, k, v = (each.unflatten(-1, (4, 8)).transpose(1, 2) for each in self.mixed(y).chunk(3, -1))
        seen = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.told(self.norm(y + self.out(seen)).mean(1))


class Steps(nn.Module):
    """Steps as often as there are frames in eight, and a branch by what is fed: a loop and a branch when scripted."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What is left after the steps."""
        y = torch.relu(x) + torch.sin(x)
        for _ in range(x.size(1) // 8):
            y = torch.tanh(self.step(y)) + x
        if bool(x.mean() > 0):  # noqa: SIM108  scripted as a branch
            y = torch.softmax(y, -1)
        else:
            y = y * 2
        return y


def by_tracing(
    made: Callable[[], nn.Module], feeds: Mapping[str, Feed], scripts: bool = False, opset: int = 12
) -> Write:
    """By the exporter of before 2.5, traced or scripted."""

    def write(path: Path) -> object:
        torch.manual_seed(0)
        net: Any = made().eval()
        net = torch.jit.script(net) if scripts else net
        opened = {name: {a: s for a, s in enumerate(feed.shape) if isinstance(s, str)} for name, feed in feeds.items()}
        words: dict[str, Any] = {"dynamo": False, "opset_version": opset, "input_names": list(feeds)}
        return torch.onnx.export(net, _given(feeds), str(path), dynamic_axes=opened, **words)

    return write


def by_dynamo(made: Callable[[], nn.Module], feeds: Mapping[str, Feed], opset: int) -> Write:
    """By the exporter of today, with its functions."""

    def write(path: Path) -> object:
        torch.manual_seed(0)
        opened = tuple(
            {axis: torch.export.Dim.DYNAMIC for axis, size in enumerate(feed.shape) if isinstance(size, str)}
            for feed in feeds.values()
        )
        words: dict[str, Any] = {"dynamo": True, "opset_version": opset, "external_data": False}
        return torch.onnx.export(
            made().eval(), _given(feeds), str(path), input_names=list(feeds), dynamic_shapes=opened, **words
        )

    return write


def _given(feeds: Mapping[str, Feed]) -> tuple[torch.Tensor, ...]:
    sizes = {"batch": 3, "h": 64, "w": 96, "frames": 40, "seq": 12}
    dice = np.random.default_rng(0)
    return tuple(torch.from_numpy(feed.drawn(sizes, dice)) for feed in feeds.values())


def by_hummingbird(path: Path) -> object:
    """A forest as products of matrices."""
    from hummingbird.ml import convert
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier

    features, classes = make_classification(300, 12, n_informative=8, random_state=0)
    forest = RandomForestClassifier(20, max_depth=5, random_state=0).fit(features, classes)
    made = convert(forest, "torch", features.astype(np.float32)[:2], extra_config={"tree_implementation": "gemm"})
    given = torch.from_numpy(features[:5].astype(np.float32))
    words: dict[str, Any] = {"dynamo": False, "opset_version": 13, "input_names": ["x"]}
    return torch.onnx.export(made.model, (given,), str(path), dynamic_axes={"x": {0: "rows"}}, **words)


@script(onnxscript.values.Opset("bench", 1), default_opset=op18)  # type: ignore[untyped-decorator]
def gated(x: FLOAT[...], weight: FLOAT[...]) -> FLOAT[...]:
    """A function of the file's own."""
    y = op18.MatMul(x, weight)
    return op18.Mul(y, op18.Sigmoid(y))


def scripted(path: Path) -> object:
    """Functions, a loop and a branch."""
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32) / 4

    @script(default_opset=op18)  # type: ignore[untyped-decorator]
    def net(x: FLOAT[...]) -> FLOAT[...]:
        table = op18.Constant(value=onnx.numpy_helper.from_array(weight))
        y = gated(x, table)
        for _ in range(3):
            y = gated(y, table) + x
        total = op18.CumSum(y, op18.Constant(value_int=1))
        if op18.ReduceSum(x, keepdims=0) > 0.0:  # noqa: SIM108  a branch of the graph
            result = op18.Softmax(total, axis=-1)
        else:
            result = op18.Tanh(total)
        return result

    model = net.to_model_proto(ir_version=10)
    for value in (*model.graph.input, *model.graph.output):
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, ("batch", "frames", 16)))
    return onnx.save(model, str(path))


def spoxed(path: Path) -> object:
    """Layers, a loop and a branch, made op by op."""
    dice = np.random.default_rng(0)
    x = spox.argument(spox.Tensor(np.float32, ("batch", "frames", 16)))
    wide, back = (spox21.const(dice.standard_normal(shape).astype(np.float32) / 4) for shape in ((16, 64), (64, 16)))
    y = spox21.add(x, spox21.matmul(spox21.gelu(spox21.matmul(x, wide)), back))
    (y,) = spox21.loop(
        spox21.const(np.int64(3)),
        v_initial=[y],
        body=lambda _at, go, state: [go, spox21.tanh(spox21.add(state, x))],
    )
    mean = spox21.reduce_mean(x, keepdims=False)
    (y,) = spox21.if_(
        spox21.greater(mean, spox21.const(np.float32(0))),
        then_branch=lambda: [spox21.softmax(y, axis=-1)],
        else_branch=lambda: [spox21.relu(y)],
    )
    return onnx.save(spox.build({"x": x}, {"y": y}), str(path))


def by_transformers(path: Path) -> object:
    """A small BERT of random weights, as its library makes it."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    net = BertModel(BertConfig(num_hidden_layers=2, max_position_embeddings=128, **sizes), add_pooling_layer=False)
    words = torch.ones(3, 12, dtype=torch.int64)
    opened = ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},) * 2
    told: dict[str, Any] = {"dynamo": True, "external_data": False, "input_names": ["x", "mask"]}
    return torch.onnx.export(net.eval(), (words, words), str(path), dynamic_shapes=opened, **told)


def recipes() -> list[Recipe]:
    """What this environment writes."""
    warnings.simplefilter("ignore")
    tables, mask = {"x": Feed(("rows", 12))}, {"mask": Feed(("batch", "seq"), "mask", np.int64)}
    rows = {"rows": Range(1, 512)}
    traced, dynamo = "torch, traced", "torch, dynamo"
    return [
        Recipe("torch_pictures_11", "torch", traced, PICTURES, SIDES, by_tracing(Pictures, PICTURES, opset=11)),
        Recipe("torch_recurrent_9", "torch", traced, FRAMES, LENGTHS, by_tracing(Recurrent, FRAMES, opset=9)),
        Recipe("torch_words_14", "torch", traced, WORDS, SEQ, by_tracing(Words, WORDS, opset=14)),
        Recipe(
            "torch_steps_13",
            "torch",
            "torch, scripted: Loop, If",
            FRAMES,
            LENGTHS,
            by_tracing(Steps, FRAMES, scripts=True, opset=13),
        ),
        Recipe("dynamo_pictures_18", "torch", dynamo, PICTURES, SIDES, by_dynamo(Pictures, PICTURES, 18)),
        Recipe("dynamo_recurrent_20", "torch", dynamo, FRAMES, LENGTHS, by_dynamo(Recurrent, FRAMES, 20)),
        Recipe("dynamo_words_23", "torch", "torch, dynamo: Attention", WORDS, SEQ, by_dynamo(Words, WORDS, 23)),
        Recipe("bert", "transformers", "BERT of two layers, dynamo", {**WORDS, **mask}, SEQ, by_transformers),
        Recipe("humming_forest_13", "hummingbird-ml", "forest as products", tables, rows, by_hummingbird),
        Recipe("script_18", "onnxscript", "functions, Loop, If", FRAMES, LENGTHS, scripted),
        Recipe("spox_21", "spox", "Loop, If", FRAMES, LENGTHS, spoxed),
    ]


if __name__ == "__main__":
    export(recipes())
