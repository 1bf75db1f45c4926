"""A model that was drawn: its file, what it is fed, and the ranges of its open sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

Array = np.ndarray[Any, Any]
SIZES = 10
WORDS = 50
LINES = np.array(["red apple", "a green pear", "", "sky", "an apple a day and a plum in the blue sky of red"])


@dataclass(frozen=True)
class Feed:
    """What an input takes: names of open sizes and numbers, and whether it is numbers, words, a mask of words, text."""

    shape: tuple[str | int, ...]
    kind: str = "numbers"
    dtype: type[np.generic] = np.float32

    def drawn(self, sizes: Mapping[str, int], dice: np.random.Generator) -> Array:
        """Values at these sizes; a mask shows all but a few, and the first."""
        shape = [sizes[each] if isinstance(each, str) else each for each in self.shape]
        if self.kind == "words":
            return dice.integers(0, WORDS, shape).astype(self.dtype)
        if self.kind == "text":
            return LINES[dice.integers(0, len(LINES), shape)].astype(object)
        if self.kind == "mask":
            shown = dice.random(shape) < 0.9
            shown[:, 0] = True
            return shown.astype(self.dtype)
        return dice.standard_normal(shape).astype(self.dtype)


@dataclass(frozen=True)
class Range:
    """From the least to the most in steps."""

    least: int
    most: int
    step: int = 1

    def __str__(self) -> str:
        return f"{self.least}..{self.most}" + (f":{self.step}" if self.step > 1 else "")

    def near(self, share: float) -> int:
        """The size that lies at this share between the least and the most, in steps."""
        return self.least + round(share * (self.most - self.least) / self.step) * self.step


@dataclass(frozen=True)
class Drawn:
    """A model with the names of the blocks that it was made of."""

    model: onnx.ModelProto
    feeds: Mapping[str, Feed]
    ranges: Mapping[str, Range]
    families: tuple[str, ...] = field(default=())

    def sequence(self, dice: np.random.Generator) -> list[dict[str, int]]:
        """Ten sizes as programs meet them: large, small, one, large again, then any, small ones as often as large."""
        ends: list[dict[str, int]] = [
            {name: each.near(share) for name, each in self.ranges.items()} for share in (1, 0.1, 0, 1)
        ]
        more = [{name: each.near(dice.random() ** 2) for name, each in self.ranges.items()} for _ in range(SIZES - 4)]
        return ends + more

    def feeds_at(self, sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
        """Inputs of these sizes."""
        dice = np.random.default_rng(seed)
        return {name: feed.drawn(sizes, dice) for name, feed in self.feeds.items()}
