"""Memories that no op runs in: what a user says of one, what was measured of it, and a plan that pages to it."""

from typing import Final, Literal, TypeAlias

import msgspec

from remat_cli.base.units import parse_bytes
from remat_cli.core.paging.paging import Link
from remat_cli.core.paging.paging_rules import PagingRules
from remat_cli.core.paging.weight_paging import WeightPaging

DISK: Final = "disk"
HOST: Final = "host"
SpillKind: TypeAlias = Literal["disk", "host"]


def spill_name(memory: SpillKind, folder: str) -> str:
    """What users call a memory to page to."""
    return HOST if memory == HOST else f"{DISK}:{folder}"


class SpillSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where a run may keep what is not needed for a while: at most `budget` (a size; none: what there is).

    A folder of a disk, or, behind a device with memory of its own, the host. Bandwidths in bytes per second are
    measured unless they are given; `is_duplex`: writes and reads go on at once.
    """

    folder: str = ""
    memory: SpillKind = DISK
    budget: str | None = None
    write_bytes_per_second: float | None = None
    read_bytes_per_second: float | None = None
    is_duplex: bool = False

    @property
    def name(self) -> str:
        """What users call it."""
        return spill_name(self.memory, self.folder)

    def budget_bytes(self) -> int | None:
        """The most that may lie there; None: what there is.

        Raises:
            ConfigError: the budget is no size.
        """
        return None if self.budget is None else parse_bytes(self.budget)

    def at(self, write_bytes_per_second: float, read_bytes_per_second: float, fresh_page_ns: int = 0) -> "SpillMemory":
        """The memory that this is, once it is known how fast."""
        return SpillMemory(
            folder=self.folder,
            write_bytes_per_second=write_bytes_per_second,
            read_bytes_per_second=read_bytes_per_second,
            budget_bytes=self.budget_bytes(),
            is_duplex=self.is_duplex,
            fresh_page_ns=fresh_page_ns,
            memory=self.memory,
        )


class SpillMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A memory that no op runs in, with what it takes to write and read it, in bytes per second, in large chunks.

    `budget_bytes` is the most that may lie there (None: what there is). The host has no folder. `fresh_page_ns` is what
    it takes the system to hand out a page of the memory that is paged from, and to take it back, as it does while a run
    pages (0: not known).
    """

    folder: str = ""
    write_bytes_per_second: float
    read_bytes_per_second: float
    budget_bytes: int | None = None
    is_duplex: bool = False
    fresh_page_ns: int = 0
    memory: SpillKind = DISK

    @property
    def name(self) -> str:
        """What users call it."""
        return spill_name(self.memory, self.folder)

    @property
    def link(self) -> Link:
        """The same for the judge."""
        return Link.measured(self.write_bytes_per_second, self.read_bytes_per_second, self.is_duplex)


class Paging(msgspec.Struct, frozen=True, kw_only=True):
    """How a plan pages: sessions begin at the steps `firsts`, and the rules say what waits for what.

    Tensors in the rules are numbered as they are first used, session by session. `time_ns` is the makespan with
    `stall_ns` of it in which nothing is computed, `peak_bytes` the most that is held, fixed part included, and
    `file_bytes` what lies in the other memory. `bound_ns`: no plan with the same steps is faster (0: not known).

    Where `weights` page, the steps are one of a nanosecond to begin with, the sessions in order, each that reads such
    weights behind one in which it is opened, and the end; what is read of weights is numbered after other tensors.

    In `place_order` values get their places in memory: numbers of what is there outside of sessions, as it begins.
    """

    memory: SpillMemory
    firsts: tuple[int, ...]
    rules: PagingRules
    call_ns: int
    time_ns: int
    stall_ns: int
    peak_bytes: int
    file_bytes: int
    written_bytes: int
    read_bytes: int
    place_order: tuple[int, ...] = ()
    best_from: str = ""
    bound_ns: int = 0
    weights: WeightPaging | None = None
