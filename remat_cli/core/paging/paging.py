"""Paging: tensors that leave a device's memory for a larger one and come back in time, steps in a given order.

All times but durations are in ticks, whole numbers of which every duration and every transfer takes (`Link.ticks`).
"""

import math
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from typing import Literal, TypeAlias

import msgspec

from remat_cli.base.errors import ModelError

Direction: TypeAlias = Literal["write", "read"]
DIRECTIONS: tuple[Direction, ...] = ("write", "read")


class Link(msgspec.Struct, frozen=True):
    """What joins a device's memory to a larger one: so many bytes go out, or come in, in `per_ns` nanoseconds.

    One transfer at a time; with `is_duplex` one in each direction.

    Raises:
        ModelError: a figure is not positive; a measured one is not, or is not finite.
    """

    write_bytes: int
    read_bytes: int
    per_ns: int = 1
    is_duplex: bool = False

    def __post_init__(self) -> None:
        """Nothing can be divided by no bandwidth."""
        if min(self.write_bytes, self.read_bytes, self.per_ns) < 1:
            raise ModelError(f"a link of {self.write_bytes} and {self.read_bytes} bytes in {self.per_ns} ns: none is 0")

    @classmethod
    def of(cls, bandwidth: Fraction, is_duplex: bool = False) -> "Link":
        """The same bandwidth (bytes per nanosecond) both ways: the beta of Shilova 2021, ch. 3."""
        return cls(bandwidth.numerator, bandwidth.numerator, bandwidth.denominator, is_duplex)

    @classmethod
    def measured(cls, write_bytes_per_second: float, read_bytes_per_second: float, is_duplex: bool = False) -> "Link":
        """Measured bandwidths, rounded down to three digits of the slower: more would only make ticks small."""
        write, read, per_ns = write_bytes_per_second / 1e9, read_bytes_per_second / 1e9, 1
        if not (0 < write < math.inf and 0 < read < math.inf):
            raise ModelError(f"a link of {write_bytes_per_second} and {read_bytes_per_second} bytes/s moves nothing")
        while min(write, read) * per_ns < 100:
            per_ns *= 10
        return cls(int(write * per_ns), int(read * per_ns), per_ns, is_duplex)

    @property
    def ticks(self) -> int:
        """Ticks per nanosecond."""
        return math.lcm(self.write_bytes, self.read_bytes)

    @property
    def write_ticks(self) -> int:
        """Ticks that a byte takes on its way out."""
        return self.per_ns * self.ticks // self.write_bytes

    @property
    def read_ticks(self) -> int:
        """Ticks that a byte takes on its way in."""
        return self.per_ns * self.ticks // self.read_bytes


class PagedTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """One instance of a tensor; `uses` are steps in order, the first the one that makes it (-1: there from the start).

    Gap g of a tensor lies between uses g and g + 1; the bytes may be away meanwhile if g is among `gaps` (none: any
    gap). A hosted tensor lies in the larger memory too, so that it needs no write, and may be absent at the start. A
    kept one stays to the end and is never paged; any other is gone after its last use. Use `final` is the last that
    changes the bytes, in place: they are not written before it is over, and no gap before it may be paged.
    """

    size_bytes: int
    uses: tuple[int, ...]
    is_hosted: bool = False
    is_kept: bool = False
    gaps: tuple[int, ...] | None = None
    final: int = 0

    @property
    def open_gaps(self) -> tuple[int, ...]:
        """The gaps in which it may be away."""
        if self.is_kept or not self.size_bytes:
            return ()
        return tuple(range(self.final, len(self.uses) - 1)) if self.gaps is None else self.gaps


class PagedProblem(msgspec.Struct, frozen=True):
    """Steps in a given order (recomputations are steps of their own), the tensors they use, a budget and a link.

    What a step uses or makes, and its workspace, is held from its start to its end. Durations are at least 1 ns: a step
    of no time would need its memory at no time.

    Raises:
        ModelError: a figure is negative, a duration 0, a list of uses out of order, or a gap is none.
    """

    durations_ns: tuple[int, ...]
    workspace_bytes: tuple[int, ...]
    tensors: tuple[PagedTensor, ...]
    budget_bytes: int
    link: Link

    def __post_init__(self) -> None:
        """Check figures once; solvers and the judge trust them."""
        steps = len(self.durations_ns)
        if len(self.workspace_bytes) != steps:
            raise ModelError(f"paging: {steps} steps but {len(self.workspace_bytes)} workspaces; give one for each")
        if any(duration < 1 for duration in self.durations_ns):
            raise ModelError("paging: a step takes less than 1 ns; round its duration up")
        if any(figure < 0 for figure in (*self.workspace_bytes, *(tensor.size_bytes for tensor in self.tensors))):
            raise ModelError("paging: a size or a workspace is negative")
        for number, tensor in enumerate(self.tensors):
            uses = tensor.uses
            if not uses or uses[0] < -1 or uses[-1] >= steps or any(a >= b for a, b in pairwise(uses)):
                raise ModelError(f"paging: tensor {number} has uses {uses}: they must be steps below {steps}, in order")
            if tensor.is_hosted and uses[0] != -1:
                raise ModelError(
                    f"paging: tensor {number} is hosted but made by step {uses[0]}; only given ones can be"
                )
            if any(not tensor.final <= gap < len(uses) - 1 for gap in tensor.gaps or ()):
                raise ModelError(f"paging: tensor {number} has gaps {tensor.gaps} but {len(uses)} uses")
            if not 0 <= tensor.final < len(uses) or (tensor.final and tensor.is_hosted):
                raise ModelError(f"paging: tensor {number} cannot be final at use {tensor.final}")

    @property
    def durations(self) -> tuple[int, ...]:
        """Ticks that each step takes."""
        return tuple(duration * self.link.ticks for duration in self.durations_ns)

    @property
    def compute_ticks(self) -> int:
        """The time of all steps without any stall."""
        return sum(self.durations)

    def transfer_ticks(self, tensor: int, direction: Direction) -> int:
        """How long it takes to move a tensor."""
        per_byte = self.link.write_ticks if direction == "write" else self.link.read_ticks
        return self.tensors[tensor].size_bytes * per_byte

    def held_bytes(self, away: Iterable[tuple[PagedTensor, int]] = ()) -> tuple[int, ...]:
        """What each step holds, its workspace included, when of all tensors only these are away, each in a gap."""
        change = [0] * (len(self.durations_ns) + 1)
        for tensor in self.tensors:
            change[max(0, tensor.uses[0])] += tensor.size_bytes
            if not tensor.is_kept:
                change[tensor.uses[-1] + 1] -= tensor.size_bytes
        for tensor, gap in away:
            change[tensor.uses[gap] + 1] -= tensor.size_bytes
            change[tensor.uses[gap + 1]] += tensor.size_bytes
        held, total = [], 0
        for more, workspace in zip(change, self.workspace_bytes, strict=False):
            total += more
            held.append(total + workspace)
        return tuple(held)

    def working_bytes(self) -> tuple[int, ...]:
        """What each step holds when all is away that may be: no budget below the largest of these is met."""
        return self.held_bytes((tensor, gap) for tensor in self.tensors for gap in tensor.open_gaps)


class PageTransfer(msgspec.Struct, frozen=True):
    """A write of a tensor, or a read of it at the end of gap `gap`; `start` in ticks. A write has gap -1."""

    tensor: int
    direction: Direction
    start: int
    gap: int = -1


class PagedSchedule(msgspec.Struct, frozen=True):
    """When each step starts, and each transfer, in ticks.

    A gap is paged where a read ends it: the bytes leave as soon as the use before it and the write are over.
    """

    starts: tuple[int, ...]
    transfers: tuple[PageTransfer, ...] = ()


class PagedRun(msgspec.Struct, frozen=True):
    """What the judge says of a schedule; `curve` has the bytes held from each tick at which they change."""

    makespan: int
    peak_bytes: int
    stall: int
    curve: tuple[tuple[int, int], ...]
