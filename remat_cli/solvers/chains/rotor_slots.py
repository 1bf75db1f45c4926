"""Memory in slots: chains' sizes as whole numbers small enough to index a table with (Shilova 2021, 2.5)."""

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from remat_cli.solvers.chains.actions import Chain

Ints: TypeAlias = NDArray[np.int64]

# Rows of the figures of a chain as kernels read them; entry 0 of a row means nothing for stages.
FORWARD_UNTIL, BACKWARD, VALUE, SAVED, GRADIENT, FORWARD_EXTRA, SAVING_EXTRA, BACKWARD_EXTRA = range(8)
VALUE_SLOTS, SAVED_SLOTS = 8, 9
SAFE = 2**62  # what products of bytes and slots stay under


@dataclass(frozen=True)
class Slots:
    """A slot is `bytes_` / `count` bytes, and `most` slots is what the largest budget gives.

    `is_exact`: every size is a whole number of slots.
    """

    count: int
    bytes_: int
    most: int
    is_exact: bool

    def needed(self, bytes_: int) -> int:
        """The fewest slots that hold so many bytes."""
        return -(-bytes_ * self.count // self.bytes_)

    def given(self, bytes_: int) -> int:
        """How many whole slots fit into so many bytes."""
        return min(self.most, bytes_ * self.count // self.bytes_)

    def first_bytes(self, slots: int) -> int:
        """The fewest bytes that give so many slots."""
        return -(-slots * self.bytes_ // self.count)


def make_slots(chain: Chain, most_bytes: int, budget_bytes: int, slots: int) -> Slots:
    """Slots of the greatest common divisor of all sizes where that many suffice, otherwise the budget in `slots` parts.

    `most_bytes` is the largest budget that will be asked for; `slots` is how many the `budget_bytes` may have.
    """
    unit = max(1, math.gcd(*_sizes(chain)))
    if budget_bytes // unit <= slots:
        return Slots(1, unit, max(0, most_bytes // unit), is_exact=True)
    count, bytes_ = slots, budget_bytes
    if max(most_bytes, 4 * sum(_sizes(chain))) * slots >= SAFE:
        count, bytes_ = 1, -(-budget_bytes // slots)
    return Slots(count, bytes_, max(0, most_bytes * count // bytes_), is_exact=False)


def chain_figures(chain: Chain, slots: Slots) -> Ints:
    """A row per kind of figure, a column per stage; forward times are summed up to each stage."""
    forward = np.cumsum(np.array(chain.forward_ns, dtype=np.int64))
    forward -= forward[0]
    return np.array(
        [
            forward,
            chain.backward_ns,
            chain.value_bytes,
            chain.saved_bytes,
            chain.gradient_bytes,
            chain.forward_extra_bytes,
            chain.saving_extra_bytes,
            chain.backward_extra_bytes,
            [slots.needed(size) for size in chain.value_bytes],
            [slots.needed(size) for size in chain.saved_bytes],
        ],
        dtype=np.int64,
    )


def forward_bytes(chain: Chain) -> Ints:
    """For stages s <= j: the most that any forward from s to j takes, besides the input of s and a gradient."""
    value, extra = (np.array(row, dtype=np.int64) for row in (chain.value_bytes, chain.forward_extra_bytes))
    later = value[:-1] + value[1:] + extra[1:]
    most = np.zeros((chain.stages + 1, chain.stages + 1), dtype=np.int64)
    for s in range(1, chain.stages + 1):
        most[s, s:] = np.maximum.accumulate(np.append(value[s] + extra[s], later[s:]))
    return most


def _sizes(chain: Chain) -> tuple[int, ...]:
    """Every size that means something: what kernels subtract or compare."""
    return (
        *chain.value_bytes,
        *chain.gradient_bytes,
        *chain.saved_bytes[1:],
        *chain.forward_extra_bytes[1:],
        *chain.saving_extra_bytes[1:],
        *chain.backward_extra_bytes[1:],
    )
