"""A model with the plan that was found for it, and what the plan became: one model, or sessions on several devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.solve import BudgetAnswer
from remat_cli.core.paging.paged_plan import PagedPlan
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.segments import Cut
from remat_cli.core.schedule.solver_run import cut_short
from remat_cli.core.schedule.splits import Splitting
from remat_cli.core.values.profile import Profile, Reference, Way
from remat_cli.core.values.sizes import Dim
from remat_cli.onnx_io.write.rewrite import Rewritten
from remat_cli.ort_rules.forecast import SessionForecast
from remat_cli.ort_rules.steady import SteadyForm


@dataclass(frozen=True)
class WrittenModel:
    """A rewritten model as the judge sees it, gates included.

    `on_top_bytes` are bytes of its form that the budget does not have to hold: fixed ones, where it is a share of the
    rest, and outputs made beforehand, where the process has a budget.
    `unexplained_bytes` is by how much its live peak was measured to be more, for a reason that no rule of the judge
    has.
    """

    rewritten: Rewritten
    sessions: SessionForecast
    unexplained_bytes: int = 0
    on_top_bytes: int = 0

    @property
    def graph(self) -> Graph:
        """The graph of the file."""
        return self.sessions.judged.graph

    @property
    def plan(self) -> Plan:
        """Every op of the file once, in order."""
        return self.sessions.judged.plan

    @property
    def fixed_bytes(self) -> int:
        """Weights and inputs, with the small constants of gates."""
        return self.sessions.judged.fixed_bytes

    @property
    def default_peak_bytes(self) -> int:
        """The peak in a session with default options, which keeps some dead buffers for later tensors."""
        return self.sessions.default_session.peak_bytes

    @property
    def form(self) -> SteadyForm | None:
        """The steady form in which it is written, if it is."""
        return None if self.sessions.judged.steady is None else self.sessions.judged.steady.form

    @property
    def promised_bytes(self) -> int:
        """The peak under exact options."""
        return self.plan.peak + self.unexplained_bytes

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """What the file needs of its memory under exact options."""
        return (self.promised_bytes,)

    @property
    def least_budget_bytes(self) -> int:
        """A budget that it keeps in either kind of session, by prediction."""
        return max(self.promised_bytes, self.default_peak_bytes)

    @property
    def needed_bytes(self) -> tuple[int, ...]:
        """What the file needs of its memory in either kind of session, without what the budget has on top."""
        return (self.least_budget_bytes - self.on_top_bytes,)

    @property
    def order(self) -> tuple[str, ...]:
        """Op names in the order in which the runtime must run them, gates included."""
        return tuple(op.name for op in self.graph.ops)


@dataclass(frozen=True)
class SearchSpan:
    """When a search began and ended, and when it found its plan (None: it has none), by `time.monotonic()`."""

    began: float
    ended: float
    found: float | None = None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began

    @property
    def seconds_to_best(self) -> float | None:
        """How long until the plan was found."""
        return None if self.found is None else self.found - self.began


@dataclass(frozen=True)
class PlannedModel:
    """A model, whole or split, and the answer for it; both forms are None where no plan fits.

    `written` is the plan as one model, `cut` as sessions with copies between them. `whole` is the model before
    splitting. `obstacle` says in one line why splitting cannot help; `tighter` plans again for what holds less.
    `single` are the best plans on each device alone, best first, and `best_single` the best of them. `paged` says how a
    cut plan is paged, and `without_paging_ns` what the best plan takes that pages nothing, where one was looked for;
    `weight_obstacle` says in one line which weight is too large to page. `way` is how a cut plan is run. `dims` are the
    dimensions of tensors for all sizes, where there are many. `span` is
    when it was searched for, splits included.
    """

    prepared: Prepared
    platform: Platform
    answer: BudgetAnswer
    whole: Prepared
    written: WrittenModel | None = None
    cut: Cut | None = None
    way: Way = "sessions"
    splitting: Splitting | None = None
    obstacle: str | None = None
    tighter: Callable[[], PlannedModel | None] | None = None
    single: tuple[Reference, ...] = ()
    best_single: Plan | None = None
    paged: PagedPlan | None = None
    without_paging_ns: int | None = None
    weight_obstacle: str | None = None
    dims: Mapping[str, tuple[Dim, ...]] | None = None
    span: SearchSpan | None = None

    def searched_since(self, began: float) -> PlannedModel:
        """The same of a search that began then and has just ended, by default with what its solver found."""
        found = self if self.span is not None else self.solved_since(began)
        assert found.span is not None
        return replace(found, span=replace(found.span, began=began, ended=time.monotonic()))

    def solved_since(self, began: float) -> PlannedModel:
        """The same, whose solver began then."""
        found_after = self.answer.run.seconds_to_best
        found = None if found_after is None else began + found_after
        return replace(self, span=SearchSpan(began, time.monotonic(), found))

    def cut_short(self) -> PlannedModel:
        """The same of a search that was told to end: what there was by then, which proves nothing."""
        run = cut_short(self.answer.run, is_split=self.splitting is not None)
        return replace(self, answer=replace(self.answer, run=run), obstacle=None)

    @property
    def plan(self) -> Plan:
        """The plan of a model that has one."""
        assert self.answer.plan is not None
        return self.answer.plan

    @property
    def time_ns(self) -> int:
        """How long its plan takes, stalls included."""
        return self.plan.time_ns if self.paged is None else self.paged.paging.time_ns

    @property
    def profile(self) -> Profile:
        """The costs of the model that was planned, on the first device."""
        return self.platform.profile

    @property
    def is_steady(self) -> bool:
        """Whether it is written in the steady form."""
        return self.written is not None and self.written.form is not None

    @property
    def has_plan(self) -> bool:
        """Whether a plan was found that fits in the form in which it runs."""
        return self.written is not None or self.cut is not None
