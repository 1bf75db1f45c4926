"""What pagers take and give: solvers of plans that page have an interface of their own."""

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from remat_cli.core.paging.paged_plan import PagedPlan
from remat_cli.core.paging.paged_sessions import SessionCosts
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.values.spill import SpillMemory
from remat_cli.solvers.base import Limits, Reason


@dataclass(frozen=True)
class PagingQuestion:
    """A problem of one device, the memory that it may page to, and what sessions cost.

    `beat_ns`: a plan is known that takes so long and pages nothing; one that is no faster need not be searched on.
    """

    problem: Problem
    memory: SpillMemory
    costs: SessionCosts
    beat_ns: int | None = None


@dataclass(frozen=True)
class PagingTerms:
    """The memory that values of a problem may wait in, and what sessions of it cost, whatever the budget."""

    memory: SpillMemory
    costs: SessionCosts

    def question(self, problem: Problem) -> PagingQuestion:
        """The problem under its budget, on these terms."""
        return PagingQuestion(problem, self.memory, self.costs)


class Pager(Protocol):
    """A frozen msgspec Struct whose fields are its options, like a solver."""

    name: ClassVar[str]
    summary: ClassVar[str]
    takes: ClassVar[str]
    proves: ClassVar[str]

    def supports(self, problem: Problem) -> Reason | None:
        """None, or the reason why this pager cannot take the problem."""
        ...

    def page(self, question: PagingQuestion, limits: Limits) -> "PagingFound":
        """The best plan that it finds within the limits."""
        ...


@dataclass(frozen=True)
class PagingFound:
    """A plan of ops and how it is paged; both None where nothing fits. `bound_ns` holds for its order and sessions."""

    plan: Plan | None = None
    paged: PagedPlan | None = None
    seconds_to_best: float | None = None
    facts: dict[str, object] = field(default_factory=dict)

    @property
    def time_ns(self) -> int | None:
        """How long the plan takes, stalls included; None: nothing fits."""
        return self.paged.paging.time_ns if self.paged else None
