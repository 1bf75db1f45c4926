"""A judged schedule: what lives when, in bytes; the rewriter builds the model from this and nothing else."""

from __future__ import annotations

import msgspec

from remat_cli.core.schedule import Schedule


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
        return max(self.live_bytes[0], default=0)

    @property
    def recomputed_ops(self) -> int:
        """How many Compute steps run an op that ran before."""
        ops = self.schedule.op_ids()
        return len(ops) - len(set(ops))
