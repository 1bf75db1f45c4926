"""A judged schedule: what lives when, in bytes; the rewriter builds the model from this and nothing else."""

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


class Instance(msgspec.Struct, frozen=True, omit_defaults=True):
    """One production of a tensor.

    `birth` and `death` are step numbers, both inclusive: it exists from the start of `birth` to the end of `death`.
    `storage` numbers the buffer it lives in; views and in-place results share it.
    """

    tensor: int
    memory: int
    birth: int
    death: int
    storage: int


class Plan(msgspec.Struct, frozen=True):
    """What the judge says of a schedule.

    `reads[s]` are the instances that step s reads, in the order of the op's inputs; `makes[s]` those it makes, in the
    order of its outputs. `memory_bytes[m][s]` is the total of memory m during step s (fixed, live storages and
    workspace); `live_bytes[m][s]` the same without workspace. `peak_bytes[m]` is the largest of `memory_bytes[m]`.
    `energy_nj[d]` is what device d takes in nanojoules, as far as it is known.
    """

    schedule: Schedule
    instances: tuple[Instance, ...]
    reads: tuple[tuple[int, ...], ...]
    makes: tuple[tuple[int, ...], ...]
    memory_bytes: tuple[tuple[int, ...], ...]
    live_bytes: tuple[tuple[int, ...], ...]
    peak_bytes: tuple[int, ...]
    time_ns: int
    energy_nj: tuple[int, ...] = ()

    @property
    def peak(self) -> int:
        """Peak of the first memory, in bytes."""
        return self.peak_bytes[0]

    @property
    def live_peak(self) -> int:
        """Peak of the first memory without workspace, in bytes."""
        return max(self.live_bytes[0], default=self.peak)

    @property
    def recomputed_ops(self) -> int:
        """How many Compute steps run an op that ran before."""
        ops = self.schedule.op_ids()
        return len(ops) - len(set(ops))
