"""Memories that no op runs in: what a user says of one, what was measured of it, and a plan that pages to it."""

from typing import Final

import msgspec

from remat_cli.core.paging import Link
from remat_cli.core.paging_rules import PagingRules

DISK: Final = "disk"


class SpillSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A folder in which a run may keep what is not needed for a while: at most `budget` (a size; none: what there is).

    Bandwidths in bytes per second are measured unless they are given; `is_duplex`: writes and reads go on at once.
    """

    folder: str
    budget: str | None = None
    write_bytes_per_second: float | None = None
    read_bytes_per_second: float | None = None
    is_duplex: bool = False

    @property
    def name(self) -> str:
        """What users call it."""
        return f"{DISK}:{self.folder}"


class SpillMemory(msgspec.Struct, frozen=True, kw_only=True):
    """A memory that no op runs in, with what it takes to write and read it, in bytes per second, in large chunks.

    `budget_bytes` is the most that may lie there (None: what there is). `fresh_page_ns` is what it takes the system to
    hand out a page of the memory that is paged from, and to take it back, as it does while a run pages (0: not known).
    """

    folder: str
    write_bytes_per_second: float
    read_bytes_per_second: float
    budget_bytes: int | None = None
    is_duplex: bool = False
    fresh_page_ns: int = 0

    @property
    def name(self) -> str:
        """What users call it."""
        return f"{DISK}:{self.folder}"

    @property
    def link(self) -> Link:
        """The same for the judge."""
        return Link.measured(self.write_bytes_per_second, self.read_bytes_per_second, self.is_duplex)


class Paging(msgspec.Struct, frozen=True, kw_only=True):
    """How a plan pages: sessions begin at the steps `firsts`, and the rules say what waits for what.

    Tensors in the rules are numbered as they are first used, session by session. `time_ns` is the makespan with
    `stall_ns` of it in which nothing is computed, `peak_bytes` the most that is held, fixed part included, and
    `file_bytes` what lies in the other memory. `bound_ns`: no plan with the same steps is faster (0: not known).
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
    best_from: str = ""
    bound_ns: int = 0
