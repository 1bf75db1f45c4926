"""Networks of pictures, words and sounds written in torch, drawn with dice and exported by torch's tracing exporter."""

from __future__ import annotations

import io
import itertools
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from bench.drawn.drawn import WORDS, Drawn, Feed, Range
from bench.drawn.torch_parts import Dice, Layer, Up, acts, block, chance, down, norm, pick

FUSED_ATTENTION_OPSET = 14  # the least with which torch exports its own attention


@dataclass(frozen=True)
class Net:
    """A module and what it takes."""

    module: nn.Module
    feeds: Mapping[str, Feed]
    ranges: Mapping[str, Range]
    families: tuple[str, ...]


class Picture(nn.Module):
    """Down, perhaps up again, and a head: classes, a map, or boxes at several scales."""

    def __init__(self, dice: Dice, head: str) -> None:
        super().__init__()
        width, self.head = pick(dice, 16, 24), head
        widths = [width, *(min(48, width * 2**at) for at in (1, 1, 2)[: pick(dice, 2, 3)])]
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1), norm(dice, width), acts(dice))
        self.blocks = nn.ModuleList(block(dice, each, depth) for depth, each in enumerate(widths))
        self.downs = nn.ModuleList(down(dice, a, b) for a, b in itertools.pairwise(widths))
        self.ups = nn.ModuleList(Up(dice, b, a) for a, b in itertools.pairwise(widths))
        heads = widths if head == "boxes" else widths[:1]
        self.lasts = nn.ModuleList(nn.Conv2d(each, 4, 1) for each in heads)
        self.classes = nn.Linear(widths[-1], 10)
        self.turns = chance(dice)

    def forward(self, x: Tensor) -> Tensor:
        """The result."""
        x, fine = self.blocks[0](self.stem(x)), []
        for down_, block_ in zip(self.downs, list(self.blocks)[1:], strict=True):
            fine.append(x)
            x = block_(down_(x))
        if self.head == "classes":
            made: Tensor = self.classes(
                x.mean((2, 3)) if self.turns else torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1)
            )
            return made.softmax(-1)
        scales = [x]
        for up, before in zip(reversed(self.ups), reversed(fine), strict=True):
            x = up(x, before)
            scales.append(x)
        if self.head == "map":
            made = self.lasts[0](x)
            return made.sigmoid() if self.turns else made.softmax(1)
        flat = [last(scale).flatten(2) for last, scale in zip(self.lasts, reversed(scales), strict=True)]
        return torch.cat(flat, 2).transpose(1, 2).sigmoid()


def pictures(dice: Dice) -> Net:
    """Batches, heights and widths, one to three of them open."""
    head = pick(dice, "classes", "map", "map", "boxes")
    module = Picture(dice, head)
    step = pick(dice, 8, 16, 32)
    side = Range(step, 32 * pick(dice, 4, 5), step)
    ranges = {"height": side, "width": side, "batch": Range(1, pick(dice, 2, 4))}
    for name in pick(dice, ("batch",), ("width",), (), ("height", "width")):
        del ranges[name]
    shape = tuple(name if name in ranges else {"batch": 1}.get(name, 128) for name in ("batch", "height", "width"))
    return Net(module, {"x": Feed((shape[0], 3, *shape[1:]))}, ranges, ("pictures", head))


class Words(nn.Module):
    """An encoder: positions of one of four kinds, layers, and the mean, the first word, or all of them."""

    def __init__(self, dice: Dice, masked: bool) -> None:
        super().__init__()
        width, self.head, self.masked = pick(dice, 32, 64), pick(dice, "mean", "first", "all"), masked
        self.words, self.kind = nn.Embedding(WORDS, width), pick(dice, "learnt", "waves", "distance", "none")
        self.places, self.heights = nn.Embedding(512, width), nn.Embedding(512, 2)
        self.layers = nn.ModuleList(Layer(dice, width) for _ in range(pick(dice, 2, 3)))
        self.last, self.causal = nn.Linear(width, 12), chance(dice, 0.3)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """The result."""
        x = self.words(ids)
        at = torch.arange(ids.shape[1])
        if self.kind == "learnt":
            x = x + self.places(at)[None]
        elif self.kind == "waves":
            speeds = torch.exp(torch.arange(0, x.shape[2], 2).float() * (-math.log(1e4) / x.shape[2]))
            angles = at.float()[:, None] * speeds
            x = x + torch.cat([angles.sin(), angles.cos()], -1)
        bias = torch.zeros(1, 1, 1, 1)
        if self.kind == "distance":
            bias = (
                bias
                + self.heights((at[None] - at[:, None]).float().clamp(-200, 200).long() + 200).permute(2, 0, 1)[None]
            )
        if self.causal:
            bias = bias + torch.where(at[None] > at[:, None], -1e4, 0.0)[None, None]
        if mask is not None:
            bias = bias + (1.0 - mask[:, None, None].float()) * -1e4
        for layer in self.layers:
            x = layer(x, bias if self.causal or self.masked or self.kind == "distance" else None)
        if self.head == "mean":
            weights = torch.ones_like(ids)[..., None].float() if mask is None else mask[..., None].float()
            x = (x * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        elif self.head == "first":
            x = x[:, 0]
        made: Tensor = self.last(x)
        return made


def words(dice: Dice) -> Net:
    """Batches and lengths."""
    masked = chance(dice)
    module = Words(dice, masked)
    ranges = {"batch": Range(1, pick(dice, 2, 4)), "seq": Range(1, pick(dice, 128, 256, 320))}
    if chance(dice, 0.3):
        del ranges["batch"]
    shape = ("batch" if "batch" in ranges else 1, "seq")
    feeds = {"ids": Feed(shape, "words", np.int64)}
    if masked:
        feeds["mask"] = Feed(shape, "mask", np.int64)
    return Net(module, feeds, ranges, ("words", module.kind, module.head))


class Sound(nn.Module):
    """Convolutions along time, perhaps a recurrent layer, and back to the length it had, or a mean."""

    def __init__(self, dice: Dice) -> None:
        super().__init__()
        width, self.kind = pick(dice, 24, 32), pick(dice, "waves", "recurrent", "network", "conformer")
        self.first = nn.Conv1d(8, width, 5, 1, 2)
        self.shrink, self.grow = nn.Conv1d(width, width, 4, 2, 1), nn.ConvTranspose1d(width, width, 4, 2, 1)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 3, padding=far, dilation=far) for far in (1, 2, 4))
        self.backs = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(3))
        kind = pick(dice, nn.LSTM, nn.GRU)
        self.recurrent = kind(width, width // 2, batch_first=True, bidirectional=True)
        self.layer, self.each = Layer(dice, width), nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm, self.last, self.is_mean = norm(dice, width, 1), nn.Conv1d(width, 6, 1), chance(dice)
        self.act = acts(dice)

    def forward(self, x: Tensor) -> Tensor:
        """The result."""
        x = self.act(self.norm(self.first(x)))
        y = self.shrink(x)
        if self.kind == "waves":
            for gate, back in zip(self.gates, self.backs, strict=True):
                one, other = gate(y).chunk(2, 1)
                y = y + back(one.tanh() * other.sigmoid())
        elif self.kind == "recurrent":
            y = self.recurrent(y.transpose(1, 2))[0].transpose(1, 2)
        elif self.kind == "conformer":
            y = self.layer(y.transpose(1, 2)).transpose(1, 2)
            y = y + self.act(self.each(y))
        else:
            for back in self.backs:
                y = y + back(nn.functional.leaky_relu(self.each(y), 0.1))
        y = x + self.grow(y)
        made: Tensor = self.last(y)
        return made.mean(2) if self.is_mean else made.tanh()


def sounds(dice: Dice) -> Net:
    """Frames, and perhaps batches."""
    module = Sound(dice)
    long = 512 if module.kind == "conformer" else pick(dice, 1024, 2048)
    step = pick(dice, 2, 8, 16)
    ranges = {"frames": Range(2 * step, long, step), "batch": Range(1, pick(dice, 2, 3))}
    if chance(dice):
        del ranges["batch"]
    return Net(module, {"x": Feed(("batch" if "batch" in ranges else 1, 8, "frames"))}, ranges, ("sounds", module.kind))


KINDS: Mapping[str, Callable[[Dice], Net]] = {"pictures": pictures, "words": words, "sounds": sounds}


def draw_torch(seed: int, least_opset: int = 11, most_opset: int = 17) -> Drawn:
    """The network of a seed, exported with one of these operator sets."""
    dice = Dice.of(seed)
    torch.manual_seed(seed)
    net = pick(dice, pictures, pictures, words, words, sounds)(dice)
    opset = int(dice.rng.integers(least_opset, most_opset + 1))
    return exported(net, opset, seed)


def exported(net: Net, opset: int, seed: int) -> Drawn:
    """The module traced at a small size."""
    drawn = Drawn(onnx.ModelProto(), net.feeds, net.ranges)
    sizes = {name: each.near(0.3) for name, each in net.ranges.items()}
    feeds = tuple(map(torch.from_numpy, drawn.feeds_at(sizes, seed).values()))
    axes = {
        name: {axis: dim for axis, dim in enumerate(feed.shape) if isinstance(dim, str)}
        for name, feed in net.feeds.items()
    }
    file: Any = io.BytesIO()  # which the exporter takes, though it does not say so
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = net.module.eval()
        for each in module.modules():
            if isinstance(each, Layer) and each.form == "sdpa" and opset < FUSED_ATTENTION_OPSET:
                each.form = "after"
        torch.onnx.export(
            module,
            feeds,
            file,
            input_names=list(net.feeds),
            output_names=["y"],
            dynamic_axes=axes,
            opset_version=opset,
            dynamo=False,
        )
    model = onnx.load_from_string(file.getvalue())
    return Drawn(model, net.feeds, net.ranges, (*net.families, f"opset {opset}"))
