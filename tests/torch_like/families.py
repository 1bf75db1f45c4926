"""Small models of the kinds that are compiled for all sizes, as torch exports them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bench.any_size_models import HEAD, HEADS, WORDS, Finds, Step
from tests.torch_like.drawing import Array

WIDTH, BUCKETS, NEAR = 64, 16, 24


class Layer(nn.Module):
    """Attention and a feed-forward part; `turn` is done to queries and keys, `bias` is added to scores."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

    def forward(self, x: Tensor, bias: Tensor, turn: Callable[[Tensor], Tensor]) -> Tensor:
        n, t, _ = x.shape
        parts = self.qkv(self.norms[0](x)).split(WIDTH, -1)
        q, k, v = (part.view(n, t, self.heads, -1).transpose(1, 2) for part in parts)
        scores = turn(q) @ turn(k).transpose(-1, -2) / math.sqrt(WIDTH // self.heads) + bias
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Local(nn.Module):
    """Rotary positions; the first layer looks at neighbours only, the second at all words that are shown."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Layer() for _ in range(2))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """[batch, seq] of words and of a mask to [batch, seq, width]."""
        at = torch.arange(input_ids.shape[1])
        shown = attention_mask[:, None, None, :].bool()
        near = ((at[None, :] - at[:, None]).abs() <= NEAR)[None, None] & shown
        masks = [torch.where(each, 0.0, -1e4) for each in (near, shown)]
        half = WIDTH // 4
        angles = at.float()[:, None] * (0.1 ** (torch.arange(half).float() / half))[None]
        cosine, sine = (torch.cat([part, part], -1)[None, None] for part in (angles.cos(), angles.sin()))

        def turn(x: Tensor) -> Tensor:
            return x * cosine + torch.cat([-x[..., half:], x[..., :half]], -1) * sine

        x = self.words(input_ids)
        for layer, mask in zip(self.layers, masks, strict=True):
            x = layer(x, mask, turn)
        return x


class Apart(nn.Module):
    """One bias for all layers, by how far words lie apart: exact nearby, by a logarithm further off."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Layer() for _ in range(2))
        self.heights = nn.Embedding(2 * BUCKETS, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        """[batch, seq] of words to [batch, seq, width]."""
        at = torch.arange(input_ids.shape[1])
        away = at[None, :] - at[:, None]
        half = BUCKETS // 2
        far = half + (torch.log(away.abs().float() / half) / math.log(128 / half) * half).to(torch.long)
        bucket = torch.where(away.abs() < half, away.abs(), far.clamp(max=BUCKETS - 1)) + (away > 0).long() * BUCKETS
        bias = self.heights(bucket).permute(2, 0, 1)[None]
        x = self.words(input_ids)
        for layer in self.layers:
            x = layer(x, bias, lambda part: part)
        return x


@dataclass(frozen=True)
class Kind:
    """A module, the names of its outputs, which dimensions of its inputs have names, and the sizes and the budget."""

    module: Callable[[], nn.Module]
    inputs: Mapping[str, tuple[str | int, ...]]
    dims: Mapping[str, str]
    budget: str
    limits: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("y",)

    @property
    def axes(self) -> dict[str, dict[int, str]]:
        """As torch's exporter wants them."""
        return {
            name: {axis: dim for axis, dim in enumerate(shape) if isinstance(dim, str)}
            for name, shape in self.inputs.items()
        }

    def feeds(self, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
        """Inputs of these sizes: words, a mask that shows all but a few, or numbers."""
        dice = np.random.default_rng(seed)
        found: dict[str, Array] = {}
        for name, dims in self.inputs.items():
            shape = [sizes[dim] if isinstance(dim, str) else dim for dim in dims]
            if name == "input_ids":
                found[name] = dice.integers(3, WORDS, shape)
            elif name == "attention_mask":
                found[name] = (dice.random(shape) < 0.9).astype(np.int64) | (np.arange(shape[1]) == 0)
            else:
                found[name] = dice.standard_normal(shape).astype(np.float32)
        return found

    def save(self, path: Path) -> Path:
        """Export it with these names."""
        torch.manual_seed(0)
        sizes = {name: int(size.split("..")[0]) + 7 for name, size in self.dims.items()}
        feeds = tuple(torch.from_numpy(feed) for feed in self.feeds(sizes).values())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                self.module().eval(),
                feeds,
                str(path),
                input_names=list(self.inputs),
                output_names=list(self.outputs),
                dynamic_axes=self.axes,
                opset_version=17,
                dynamo=False,
            )
        return path


TEXT = ("batch", "seq")
PAST = ("past_0_key", "past_0_value")
KINDS: Mapping[str, Kind] = {
    "rotary and local attention": Kind(
        Local,
        {"input_ids": TEXT, "attention_mask": TEXT},
        {"batch": "1..4", "seq": "1..512"},
        "50%",
        ("batch*seq<=1024",),
    ),
    "bias by distance": Kind(Apart, {"input_ids": TEXT}, {"batch": "1..2", "seq": "1..512"}, "50%"),
    "decoder with a cache": Kind(
        lambda: Step(1),
        {"input_ids": TEXT, **dict.fromkeys(PAST, ("batch", HEADS, "past", HEAD))},
        {"batch": "1", "seq": "1..512", "past": "1..512"},
        "60%",
        outputs=("y", "present_0_key", "present_0_value"),
    ),
    "detector": Kind(lambda: Finds(8, 3), {"pixels": ("batch", 3, 64, 64)}, {"batch": "1..16"}, "60%"),
}
