"""A plan that pages, as a compile finds it."""

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.compiling.planned import Sessions
from remat_cli.core.paging.paged_plan import PagedPlan
from remat_cli.core.values.profile import Kind


@dataclass(frozen=True, kw_only=True)
class Paged(Sessions):
    """A plan in sessions on one device, and how they page.

    `without_paging_ns` is what the best plan takes that pages nothing, where one was found.
    """

    kind: ClassVar[Kind] = "paged"
    paged: PagedPlan
    without_paging_ns: int | None = None

    @property
    def time_ns(self) -> int:
        """How long its plan takes, stalls included."""
        return self.paged.paging.time_ns
