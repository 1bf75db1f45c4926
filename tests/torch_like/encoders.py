"""Random encoders of text as torch exports them, with batch and length left open: one per seed."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.torch_like.drawing import Array

WORDS = 60
LONGEST = 1024  # positions in tables


class RootMeanSquare(nn.Module):
    """RMSNorm as models write it out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class RandomAttention(nn.Module):
    """Self attention: one of the ways to make heads, to tell positions, to mask, and to weight."""

    def __init__(self, dice: np.random.Generator, width: int) -> None:
        super().__init__()
        self.heads = int(dice.choice([2, 4]))
        self.groups = int(dice.choice([1, 1, 2])) if self.heads == 4 else 1
        self.positions = str(dice.choice(["none", "none", "rotary", "bias", "alibi"]))
        self.masking = str(dice.choice(["padding", "padding", "none", "causal", "local"]))
        self.is_fused, self.is_sdpa, self.is_split = (bool(dice.random() < share) for share in (0.4, 0.4, 0.5))
        self.size = width // self.heads
        inner = width // self.groups
        self.qkv = nn.Linear(width, width + 2 * inner) if self.is_fused else None
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, inner), nn.Linear(width, inner)
        self.out = nn.Linear(width, width)
        self.table = nn.Embedding(32, self.heads)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        n, t, c = x.shape
        if self.qkv is not None:
            inner = c // self.groups
            q, k, v = self.qkv(x).split([c, inner, inner], -1)
        else:
            q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = (part.view(n, t, -1, self.size).transpose(1, 2) for part in (q, k, v))
        if self.positions == "rotary":
            q, k = self._rotated(q), self._rotated(k)
        if self.groups > 1:
            k, v = (
                part[:, :, None].expand(n, part.shape[1], self.groups, t, self.size).reshape(n, -1, t, self.size)
                for part in (k, v)
            )
        bias = self._bias(x, mask)
        if self.is_sdpa:
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(self.size)
            scores = scores if bias is None else scores + bias
            y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(n, t, c))

    def _rotated(self, x: Tensor) -> Tensor:
        half = self.size // 2
        rate = 1.0 / 100 ** (torch.arange(half, dtype=torch.float32) / half)
        angles = torch.arange(x.shape[2], dtype=torch.float32)[:, None] * rate[None]
        cosine, sine = (torch.cat([part, part], -1)[None, None] for part in (angles.cos(), angles.sin()))
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * cosine + turned * sine

    def _bias(self, x: Tensor, mask: Tensor) -> Tensor | None:
        t = x.shape[1]
        at = torch.arange(t)
        away = at[None, :] - at[:, None]
        found: list[Tensor] = []
        if self.positions == "bias":
            near = away.clamp(-15, 16) + 15
            found.append(self.table(near).permute(2, 0, 1)[None])
        if self.positions == "alibi":
            slope = 2.0 ** -torch.arange(1, self.heads + 1, dtype=torch.float32)
            found.append(-away.abs().float()[None, None] * slope[None, :, None, None])
        if self.masking == "padding":
            found.append((1.0 - mask[:, None, None, :].float()) * -1e4)
        if self.masking == "causal":
            found.append(torch.where(away > 0, -1e4, 0.0)[None, None])
        if self.masking == "local":
            shown = (away.abs() <= 16)[None, None] & mask[:, None, None, :].bool()
            found.append(torch.zeros(1).masked_fill(~shown, -1e4))
        return sum(found[1:], found[0]) if found else None


class RandomMlp(nn.Module):
    """The little network: plain, gated, or with a convolution along the tokens."""

    def __init__(self, dice: np.random.Generator, width: int) -> None:
        super().__init__()
        self.kind = str(dice.choice(["plain", "plain", "gated", "fused_gate", "along"]))
        self.bend = [nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.ReLU()][int(dice.integers(4))]
        wide = width * int(dice.choice([2, 4]))
        self.up = nn.Linear(width, 2 * wide if self.kind == "fused_gate" else wide)
        self.gate = nn.Linear(width, wide)
        self.along = nn.Conv1d(wide, wide, 3, padding=1, groups=wide)
        self.down = nn.Linear(wide, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        if self.kind == "gated":
            y = self.bend(self.gate(x)) * y
        elif self.kind == "fused_gate":
            gate, y = y.chunk(2, -1)
            y = self.bend(gate) * y
        elif self.kind == "along":
            y = self.bend(self.along(y.transpose(1, 2)).transpose(1, 2))
        else:
            y = self.bend(y)
        return self.down(y)


class RandomEncoder(nn.Module):
    """An embedding, a few layers of one making, and a head."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        dice = np.random.default_rng(seed)
        torch.manual_seed(seed)
        width = int(dice.choice([32, 64]))
        norm = nn.LayerNorm if dice.random() < 0.7 else RootMeanSquare
        self.embedding = str(dice.choice(["table", "sines", "none"]))
        self.is_before = bool(dice.random() < 0.6)
        self.head = str(dice.choice(["tokens", "words", "mean", "first", "both"]))
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LONGEST, width)
        layers = int(dice.integers(1, 4))
        form = int(dice.integers(2**31))
        self.attention = nn.ModuleList(RandomAttention(np.random.default_rng(form), width) for _ in range(layers))
        self.mlp = nn.ModuleList(RandomMlp(np.random.default_rng(form), width) for _ in range(layers))
        self.norms = nn.ModuleList(norm(width) for _ in range(2 * layers + 1))
        self.classes = nn.Linear(width, WORDS)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        x = self.words(input_ids)
        at = torch.arange(x.shape[1])
        if self.embedding == "table":
            x = x + self.places(at)[None]
        if self.embedding == "sines":
            angles = at[:, None].float() * torch.exp(torch.arange(x.shape[2]).float() * -0.2)[None]
            x = x + angles.sin()[None]
        for number, (attention, mlp) in enumerate(zip(self.attention, self.mlp, strict=True)):
            first, second = self.norms[2 * number], self.norms[2 * number + 1]
            if self.is_before:
                x = x + attention(first(x), attention_mask)
                x = x + mlp(second(x))
            else:
                x = first(x + attention(x, attention_mask))
                x = second(x + mlp(x))
        return self._said(self.norms[-1](x), attention_mask)

    def _said(self, x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        share = mask[..., None].float()
        mean = (x * share).sum(1) / share.sum(1).clamp(min=1.0)
        # what the mask is for is in the graph whatever the layers do with it
        found = {
            "tokens": (x * share,),
            "words": (self.classes(x) * share,),
            "mean": (mean,),
            "first": (self.classes(x[:, 0] + mean).tanh(),),
            "both": (x, self.classes(mean)),
        }
        return found[self.head]


def save_encoder_of(seed: int, path: Path) -> RandomEncoder:
    """Export the encoder of a seed, with named dimensions `batch` and `seq`; returns it."""
    model = RandomEncoder(seed).eval()
    names = ["input_ids", "attention_mask"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            tuple(torch.from_numpy(feed) for feed in feeds_of(seed, 2, 13).values()),
            str(path),
            input_names=names,
            output_names=["first", "second"][: 2 if model.head == "both" else 1],
            dynamic_axes={name: {0: "batch", 1: "seq"} for name in names},
            opset_version=17,
            dynamo=False,
        )
    return model


def feeds_of(seed: int, batch: int, length: int) -> dict[str, Array]:
    """Words, and a mask that shows at least the first of each row."""
    dice = np.random.default_rng((seed, batch, length))
    shown = dice.random((batch, length)) < 0.9
    shown[:, 0] = True
    return {
        "input_ids": dice.integers(0, WORDS, (batch, length)),
        "attention_mask": shown.astype(np.int64),
    }
