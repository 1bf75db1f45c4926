"""What a solver says: steps in order, and only two kinds. There is no Free: a value dies after its last read."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Compute(msgspec.Struct, frozen=True, tag="compute", omit_defaults=True):
    """Run an op on a device; it makes a new instance of each of its outputs there."""

    op: int
    device: int = 0


class Copy(msgspec.Struct, frozen=True, tag="copy"):
    """Copy the newest instance of a tensor from one device to another; makes a new instance there."""

    tensor: int
    source: int
    target: int


Step: TypeAlias = Compute | Copy


class Schedule(msgspec.Struct, frozen=True):
    """Steps in order. A repeated Compute is a recompute; a read takes the newest value on its device."""

    steps: tuple[Step, ...]

    @classmethod
    def of_ops(cls, ops: list[int] | tuple[int, ...]) -> Schedule:
        """A one-device schedule from op ids in order."""
        return cls(tuple(Compute(int(op)) for op in ops))

    def op_ids(self) -> list[int]:
        """Op ids of the Compute steps, in order."""
        return [step.op for step in self.steps if isinstance(step, Compute)]

    @property
    def keeps_order(self) -> bool:
        """Whether first computations come in baseline order."""
        firsts = list(dict.fromkeys(self.op_ids()))
        return firsts == sorted(firsts)
