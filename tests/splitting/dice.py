"""Draws random ops, and holds slicing rules to their word on many of them, with one thread and with more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from remat_cli.splitting.rules.table import slice_op
from remat_cli.splitting.tiles.op_view import Slab
from tests.splitting.sliced_op import Array, OneOp, compare, run, view_of

THREADS = (2, 4, 8)
SLABS_PER_AXIS = 5


class Dice:
    """A seeded source of numbers, shapes and arrays."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def pick(self, *choices: Any) -> Any:
        """One of several."""
        return choices[int(self.generator.integers(len(choices)))]

    def integer(self, low: int, high: int) -> int:
        """From `low` to `high`, both included."""
        return int(self.generator.integers(low, high + 1))

    def coin(self, chance: float = 0.5) -> bool:
        """True so often."""
        return bool(self.generator.random() < chance)

    def real(self, *shape: int, dtype: type = np.float32) -> Array:
        """Normally distributed numbers."""
        return self.generator.standard_normal(shape).astype(dtype)

    def between(self, low: float, high: float, *shape: int) -> Array:
        """Evenly distributed numbers."""
        return self.generator.uniform(low, high, shape).astype(np.float32)

    def whole(self, low: int, high: int, *shape: int, dtype: type = np.int64) -> Array:
        """Integers from `low` on, below `high`."""
        return self.generator.integers(low, high, shape).astype(dtype)

    def slab(self, axis: int, extent: int) -> Slab:
        """Part of an axis."""
        start = self.integer(0, extent - 1)
        return Slab(axis, start, self.integer(start + 1, extent))


@dataclass
class Count:
    """How many slabs a campaign ran and found exact, how many rules refused, how many ops could not run at all."""

    exact: int = 0
    refused: int = 0
    broken: int = 0


def campaign(draw: Callable[[Dice], OneOp], seeds: range) -> Count:
    """One op per seed, several slabs of every axis; fails where one differs from the whole in a single bit."""
    count = Count()
    for seed in seeds:
        dice = Dice(seed)
        op = draw(dice)
        try:
            outputs = run(op)
        except Exception:  # the runtime refuses some combinations, each with an error of its own
            count.broken += 1
            continue
        if all(value is None or value.size for value in outputs):
            _check(op, outputs, dice, count)
    return count


def _check(op: OneOp, outputs: list[Array | None], dice: Dice, count: Count) -> None:
    view = view_of(op, outputs)
    slabs = {dice.slab(axis, extent) for axis, extent in enumerate(view.output_shape) for _ in range(SLABS_PER_AXIS)}
    accepted = [(slab, sliced) for slab in sorted(slabs) if (sliced := slice_op(view, slab)) is not None]
    count.refused += len(slabs) - len(accepted)
    threads = dice.pick(*THREADS)
    together = run(op, threads) if accepted else []
    compare(op, outputs, accepted)
    compare(op, together, accepted, threads)
    count.exact += 2 * len(accepted)
