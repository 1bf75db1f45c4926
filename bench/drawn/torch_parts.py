"""Blocks of networks that are written in torch, drawn with dice."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Act = Callable[[], nn.Module]
ACTS: Sequence[Act] = (
    nn.ReLU,
    nn.ReLU,
    nn.SiLU,
    nn.Hardswish,
    nn.GELU,
    nn.LeakyReLU,
    nn.Mish,
    nn.ELU,
    nn.PReLU,
    nn.ReLU6,
)


@dataclass(frozen=True)
class Dice:
    """The dice of one network, most of whose activations are of one kind."""

    rng: np.random.Generator
    act: Act

    @classmethod
    def of(cls, seed: int) -> Dice:
        """The dice of a seed."""
        rng = np.random.default_rng(seed)
        return cls(rng, ACTS[int(rng.integers(len(ACTS)))])


def acts(dice: Dice) -> nn.Module:
    """An activation, most often that of the network."""
    kind = dice.act if chance(dice, 0.85) else pick(dice, *ACTS)
    return kind()


def pick(dice: Dice, *choices: Any) -> Any:
    """One of some values."""
    return choices[int(dice.rng.integers(len(choices)))]


def chance(dice: Dice, share: float = 0.5) -> bool:
    """True in this share of calls."""
    return bool(dice.rng.random() < share)


def norm(dice: Dice, width: int, axes: int = 2) -> nn.Module:
    """A norm of channels, most often over the batch."""
    batch = nn.BatchNorm2d if axes == 2 else nn.BatchNorm1d
    instance = nn.InstanceNorm2d if axes == 2 else nn.InstanceNorm1d
    kind = pick(dice, "batch", "batch", "batch", "group", "instance", "none")
    if kind == "group":
        return nn.GroupNorm(math.gcd(4, width), width)
    return {"batch": batch(width), "instance": instance(width, affine=True), "none": nn.Identity()}[kind]


class Residual(nn.Module):
    """ResNet's block, basic or with a narrow middle."""

    def __init__(self, dice: Dice, width: int) -> None:
        super().__init__()
        middle = pick(dice, width, width // 2)
        self.body = nn.Sequential(
            nn.Conv2d(width, middle, pick(dice, 1, 3), padding="same"),
            norm(dice, middle),
            acts(dice),
            nn.Conv2d(middle, width, 3, padding=1, bias=False),
            norm(dice, width),
        )
        self.last = acts(dice)

    def forward(self, x: Tensor) -> Tensor:
        """The result."""
        made: Tensor = self.last(x + self.body(x))
        return made


class Inverted(nn.Module):
    """MobileNet's block: wider, each channel alone, a share for each channel, narrower."""

    def __init__(self, dice: Dice, width: int) -> None:
        super().__init__()
        wide, act, kernel = width * pick(dice, 2, 3), pick(dice, nn.ReLU6, nn.SiLU, nn.Hardswish), pick(dice, 3, 5)
        self.up = nn.Sequential(nn.Conv2d(width, wide, 1, bias=False), norm(dice, wide), act())
        each = nn.Conv2d(wide, wide, kernel, padding=kernel // 2, groups=wide, bias=False)
        self.each = nn.Sequential(each, norm(dice, wide), act())
        gate = pick(dice, nn.Sigmoid, nn.Hardsigmoid)
        squeeze = (nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, 8, 1), nn.ReLU(), nn.Conv2d(8, wide, 1), gate())
        self.share = nn.Sequential(*squeeze) if chance(dice) else None
        self.down = nn.Sequential(nn.Conv2d(wide, width, 1, bias=False), norm(dice, width))

    def forward(self, x: Tensor) -> Tensor:
        """The result."""
        y: Tensor = self.each(self.up(x))
        if self.share is not None:
            y = y * self.share(y)
        made: Tensor = x + self.down(y)
        return made


class ConvNext(nn.Module):
    """A large kernel for each channel, a layer norm with channels last, two linear layers, a scale."""

    def __init__(self, dice: Dice, width: int) -> None:
        super().__init__()
        self.each = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.act, self.down = pick(dice, nn.GELU, nn.SiLU)(), nn.Linear(3 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        """The result."""
        y = self.norm(self.each(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(self.act(self.up(y)))
        made: Tensor = x + y.permute(0, 3, 1, 2)
        return made


class Gated(nn.Module):
    """A half of the channels gates the other."""

    def __init__(self, dice: Dice, width: int) -> None:
        super().__init__()
        self.both = nn.Conv2d(width, 2 * width, 3, padding=pick(dice, 1, 2), dilation=1)
        self.gate, self.back = pick(dice, torch.sigmoid, torch.tanh, nn.functional.gelu), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The result."""
        one, other = self.both(x).chunk(2, 1)
        y: Tensor = self.back(one * self.gate(other))
        return x + y[:, :, : x.shape[2], : x.shape[3]]


class Dilated(nn.Module):
    """Branches that look near and far, side by side."""

    def __init__(self, dice: Dice, width: int) -> None:
        super().__init__()
        each = width // 4
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, each, 3, padding=far, dilation=far), norm(dice, each), acts(dice))
            for far in (1, 2, 3)
        )
        self.mean = nn.Sequential(nn.AvgPool2d(3, 1, 1), nn.Conv2d(width, each, 1))

    def forward(self, x: Tensor) -> Tensor:
        """The result."""
        return torch.cat([*(branch(x) for branch in self.branches), self.mean(x)], 1)


class Places(nn.Module):
    """Attention among the places of a small picture."""

    def __init__(self, dice: Dice, width: int) -> None:
        super().__init__()
        self.body = Layer(dice, width)

    def forward(self, x: Tensor) -> Tensor:
        """The result."""
        n, c, h, w = x.shape
        made: Tensor = self.body(x.flatten(2).transpose(1, 2)).transpose(1, 2)
        return made.reshape(n, c, h, w)


class Layer(nn.Module):
    """A transformer's layer, normed before or after; its scores divided here or there, a bias added or none."""

    def __init__(self, dice: Dice, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.apart = chance(dice)
        self.qkv = nn.Linear(width, 3 * width)
        self.parts = nn.ModuleList(nn.Linear(width, width) for _ in range(3)) if self.apart else nn.ModuleList()
        self.out, self.act = nn.Linear(width, width), pick(dice, nn.GELU, nn.ReLU, nn.SiLU)()
        self.is_gated, self.is_before, self.form = (
            chance(dice, 0.3),
            chance(dice, 0.7),
            pick(dice, "sdpa", "after", "before"),
        )
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width if self.is_gated else 4 * width, width)

    def mixed(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Attention."""
        n, t, c = x.shape
        made = [part(x) for part in self.parts] if self.apart else self.qkv(x).chunk(3, -1)
        q, k, v = (part.view(n, t, self.heads, self.size).transpose(1, 2) for part in made)
        if self.form == "sdpa":
            y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            root = math.sqrt(self.size)
            scores = (q / root) @ k.transpose(-1, -2) if self.form == "before" else q @ k.transpose(-1, -2) / root
            y = (scores if bias is None else scores + bias).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(n, t, c))  # type: ignore[no-any-return]

    def fed(self, x: Tensor) -> Tensor:
        """The little network."""
        y = self.up(x)
        if self.is_gated:
            one, other = y.chunk(2, -1)
            y = one * self.act(other)
        else:
            y = self.act(y)
        return self.down(y)  # type: ignore[no-any-return]

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """The result."""
        if self.is_before:
            x = x + self.mixed(self.norms[0](x), bias)
            return x + self.fed(self.norms[1](x))
        x = self.norms[0](x + self.mixed(x, bias))
        made: Tensor = self.norms[1](x + self.fed(x))
        return made


BLOCKS: Sequence[Callable[[Dice, int], nn.Module]] = (Residual, Residual, Inverted, Inverted, ConvNext, Gated, Dilated)


def block(dice: Dice, width: int, depth: int) -> nn.Module:
    """One of the blocks; attention only where pictures are small."""
    if depth >= 3 and chance(dice, 0.3):
        return Places(dice, width)
    made: nn.Module = pick(dice, *BLOCKS)(dice, width)
    return made


def down(dice: Dice, before: int, after: int) -> nn.Module:
    """Half as high and wide."""
    kind = pick(dice, "conv", "conv", "max", "mean", "fold")
    if kind == "conv":
        return nn.Sequential(nn.Conv2d(before, after, 3, 2, 1), norm(dice, after), acts(dice))
    if kind == "fold":
        return nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(4 * before, after, 1))
    pool = nn.MaxPool2d(*pick(dice, (2, 2, 0), (3, 2, 1))) if kind == "max" else nn.AvgPool2d(2)
    return nn.Sequential(pool, nn.Conv2d(before, after, 1))


class Up(nn.Module):
    """Twice as high and wide, joined with what was there before."""

    def __init__(self, dice: Dice, before: int, after: int) -> None:
        super().__init__()
        self.kind, self.adds = pick(dice, "nearest", "bilinear", "size", "transposed", "shuffle"), chance(dice)
        lifted = nn.Conv2d(before, 4 * after, 1) if self.kind == "shuffle" else nn.Conv2d(before, after, 1)
        self.lift = nn.ConvTranspose2d(before, after, 2, 2) if self.kind == "transposed" else lifted
        self.join = nn.Conv2d(after if self.adds else 2 * after, after, 3, padding=1)
        self.act = acts(dice)

    def forward(self, x: Tensor, fine: Tensor) -> Tensor:
        """The result."""
        y = self.lift(x)
        if self.kind == "shuffle":
            y = nn.functional.pixel_shuffle(y, 2)
        elif self.kind == "size":
            y = nn.functional.interpolate(y, size=fine.shape[2:])
        elif self.kind == "bilinear":
            y = nn.functional.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)
        elif self.kind == "nearest":
            y = nn.functional.interpolate(y, scale_factor=2.0)
        made: Tensor = self.act(self.join(y + fine if self.adds else torch.cat([fine, y], 1)))
        return made
