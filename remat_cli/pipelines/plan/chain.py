"""A training step as a chain of layers over several devices, and periodic schedules of it: plain data, integers only.

Layers are numbered 1..n as in the literature, and so are the tasks of a mini-batch: F_1 .. F_n, B_n .. B_1.
`pipelines/plan/judge.py` judges schedules; planners are in `pipelines/solve`.
"""

from fractions import Fraction
from typing import Literal, TypeAlias

import msgspec

from remat_cli.base.errors import InputError

MemoryModel: TypeAlias = Literal["nca", "buf", "full"]
"""What counts: weights and saved tensors; these and the buffers of transfers; these and what tasks work on."""


class PipelineChain(msgspec.Struct, frozen=True):
    """A chain of n layers; the loss is part of layer n.

    A model that only infers has no gradients: its backwards take no time and save nothing.

    Attributes:
        forward: time of F_l, per layer (uF).
        backward: time of B_l, per layer (uB).
        weights: bytes of one copy of the weights of a layer (W).
        sizes: bytes of the tensor from layer l to l + 1, and of its gradient, l = 0..n (a).
        transfers: one-way time of moving `sizes[l]`, l = 1..n-1 (comm).
        copies: how many copies of the weights a device keeps (C).
        saved: bytes kept from F_l to B_l of a mini-batch (sav); none: the input of the layer.
        forward_work: bytes that live only while F_l runs; none: its output.
        backward_work: bytes that live only while B_l runs; none: the gradients that go in and come out.
        has_gradients: whether gradients come back over the links, and have buffers there.
        drops_at_end: whether a stage of several layers drops what it saved at the end of its backward, all at once,
            as where it is one session; else layer by layer.
    """

    forward: tuple[int, ...] = msgspec.field(name="uF")
    backward: tuple[int, ...] = msgspec.field(name="uB")
    weights: tuple[int, ...] = msgspec.field(name="W")
    sizes: tuple[int, ...] = msgspec.field(name="a")
    transfers: tuple[int, ...] = msgspec.field(name="comm")
    copies: int = msgspec.field(name="C", default=3)
    saved: tuple[int, ...] | None = msgspec.field(name="sav", default=None)
    forward_work: tuple[int, ...] | None = None
    backward_work: tuple[int, ...] | None = None
    has_gradients: bool = True
    drops_at_end: bool = False

    def __post_init__(self) -> None:
        """Raises InputError where rows do not fit together or a figure is negative."""
        layers = len(self.forward)
        if not layers:
            raise InputError("a pipeline needs at least one layer; this chain has none")
        lengths = {"uB": layers, "W": layers, "a": layers + 1, "comm": layers - 1}
        for name, length in lengths.items():
            _check(name, self._rows()[name], length)
        for name in self._rows().keys() - lengths.keys():
            _check(name, self._rows()[name], layers)
        if self.copies < 0:
            raise InputError(f"C must not be negative, but is {self.copies}")

    def _rows(self) -> dict[str, tuple[int, ...]]:
        rows = {"uF": self.forward, "uB": self.backward, "W": self.weights, "a": self.sizes, "comm": self.transfers}
        more = {"sav": self.saved, "forward_work": self.forward_work, "backward_work": self.backward_work}
        return rows | {name: row for name, row in more.items() if row is not None}

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.forward)

    @property
    def ways(self) -> int:
        """How often the tensor of a cut crosses it, as itself and as its gradient."""
        return 2 if self.has_gradients else 1

    @property
    def longest_period(self) -> int:
        """All tasks and all transfers one after another."""
        return sum(self.forward) + sum(self.backward) + self.ways * sum(self.transfers)

    @property
    def saved_bytes(self) -> tuple[int, ...]:
        """What each layer keeps of a mini-batch from its forward to its backward."""
        return self.sizes[:-1] if self.saved is None else self.saved

    @property
    def forward_work_bytes(self) -> tuple[int, ...]:
        """What lives only while each forward runs."""
        return self.sizes[1:] if self.forward_work is None else self.forward_work

    @property
    def backward_work_bytes(self) -> tuple[int, ...]:
        """What lives only while each backward runs."""
        if self.backward_work is not None:
            return self.backward_work
        return tuple(before + after for before, after in zip(self.sizes, self.sizes[1:], strict=False))


def _check(name: str, row: tuple[int, ...], length: int) -> None:
    if len(row) != length:
        raise InputError(f"{name} has {len(row)} figures where this chain needs {length}")
    if min(row, default=0) < 0:
        raise InputError(f"{name} must not be negative, but has {min(row)}")


class PipelineStage(msgspec.Struct, frozen=True, order=True):
    """Layers first..last, one after another on one device; counted from 1, both ends included."""

    first: int
    last: int
    device: int


class PeriodicSchedule(msgspec.Struct, frozen=True):
    """When each task runs: mini-batch m = q * k + r runs task t at `starts[r][t] + q * period`.

    Attributes:
        period: time after which the pattern of k mini-batches begins again.
        devices: per layer, of its forward and backward alike.
        starts: per mini-batch of the pattern, the 2n starts of F_1 .. F_n, B_n .. B_1.
        transfers: per mini-batch, the 2n - 1 starts of the transfer after each task but the last; none where both
            tasks are on one device.
    """

    period: int
    devices: tuple[int, ...]
    starts: tuple[tuple[int, ...], ...]
    transfers: tuple[tuple[int | None, ...], ...]

    @property
    def normalized_period(self) -> Fraction:
        """Time per mini-batch."""
        return Fraction(self.period, len(self.starts))
