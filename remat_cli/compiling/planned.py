"""A model with the plan that was found for it, and what the plan became: one model, sessions, pages, or none."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from remat_cli.compiling.kinds import kind_of
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.solve import BudgetAnswer
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.segments import Cut
from remat_cli.core.schedule.solver_run import cut_short
from remat_cli.core.schedule.splits import Splitting
from remat_cli.core.values.profile import Kind, Profile, Reference, SessionForm
from remat_cli.core.values.sizes import Dim
from remat_cli.onnx_io.write.rewrite import Rewritten
from remat_cli.ort_rules.forecast import SessionForecast
from remat_cli.ort_rules.steady import SteadyForm

NEVER_BYTES = 2**50
"""More than any budget: what a file needs that must not be used."""


@dataclass(frozen=True)
class WrittenModel:
    """A rewritten model as the judge sees it, gates included.

    `on_top_bytes` are bytes of its form that the budget does not have to hold: fixed ones, where it is a share of the
    rest, and outputs made beforehand, where the process has a budget.
    `unexplained_bytes` is by how much its live peak was measured to be more, for a reason that no rule of the judge
    has. `is_left`: sessions bring it into a layout of their own. `unlike` are whole ops of which they would make
    something else then, so that it must not be used; `beyond` says by op of the planned graph by how much more
    they hold while it runs than its plan says.
    """

    rewritten: Rewritten
    sessions: SessionForecast
    unexplained_bytes: int = 0
    on_top_bytes: int = 0
    is_left: bool = False
    unlike: frozenset[str] = frozenset()
    beyond: tuple[int, ...] = ()

    @property
    def is_steady(self) -> bool:
        """Whether it is in the steady form."""
        return self.form is not None

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
        """What the file needs of its memory under exact options, or in any session where it is left to those."""
        return self.needed_bytes if self.is_left else (self.promised_bytes,)

    @property
    def least_budget_bytes(self) -> int:
        """A budget that it keeps in either kind of session, by prediction."""
        return max(self.promised_bytes, self.default_peak_bytes)

    @property
    def needed_bytes(self) -> tuple[int, ...]:
        """What the file needs of its memory in either kind of session, without what the budget has on top."""
        return (NEVER_BYTES if self.unlike else self.least_budget_bytes - self.on_top_bytes,)

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


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A model, whole or split, and the answer for it, before that has a form in which it runs.

    `whole` is the model before splitting. `obstacle` says in one line why splitting cannot help; `tighter` plans again
    for what holds less, and `twin` makes a file of the same model in other tiles, to be compared with where this
    machine cannot run the original (None: there is none). `dims` are the dimensions of tensors for all sizes, where
    there are many. `span` is when it was searched for, splits included.
    """

    prepared: Prepared
    platform: Platform
    answer: BudgetAnswer
    whole: Prepared
    splitting: Splitting | None = None
    obstacle: str | None = None
    tighter: Callable[[], OneModel | Refused | None] | None = None
    twin: Callable[[], Path | None] | None = None
    dims: Mapping[str, tuple[Dim, ...]] | None = None
    span: SearchSpan | None = None

    @property
    def known(self) -> dict[str, Any]:
        """All that is known of it whatever becomes of it, by name."""
        return {field.name: getattr(self, field.name) for field in fields(Answered)}

    def as_model(self, written: WrittenModel) -> OneModel:
        """What was planned, with the model that was written."""
        return OneModel(**self.known, written=written)

    def refused(self, answer: BudgetAnswer | None = None) -> Refused:
        """What was planned, told as refused, with another answer if there is one."""
        return Refused(**self.known | ({} if answer is None else {"answer": answer}))

    def searched_since(self, began: float) -> Self:
        """What was planned by a search that began then and has just ended, by default with what its solver found."""
        span = self.span or self._span_since(began)
        return replace(self, span=replace(span, began=began, ended=time.monotonic()))

    def solved_since(self, began: float) -> Self:
        """What was planned, by a solver that began then and has just ended."""
        return replace(self, span=self._span_since(began))

    def _span_since(self, began: float) -> SearchSpan:
        found_after = self.answer.run.seconds_to_best
        return SearchSpan(began, time.monotonic(), None if found_after is None else began + found_after)

    def cut_short(self) -> Self:
        """What was planned until a search was told to end, which proves nothing."""
        run = cut_short(self.answer.run, is_split=self.splitting is not None)
        return replace(self, answer=replace(self.answer, run=run), obstacle=None)

    @property
    def plan(self) -> Plan:
        """The plan of a model that has one."""
        return self.answer.known_plan

    @property
    def time_ns(self) -> int:
        """How long its plan takes, stalls included."""
        return self.plan.time_ns

    @property
    def profile(self) -> Profile:
        """The costs of the model that was planned, on the first device."""
        return self.platform.profile


@dataclass(frozen=True, kw_only=True)
class OneModel(Answered):
    """A plan that is one model."""

    kind: ClassVar[Kind] = "one_model"
    written: WrittenModel

    @property
    def is_steady(self) -> bool:
        """Whether it is written in the steady form."""
        return self.written.is_steady


@dataclass(frozen=True, kw_only=True)
class Sessions(Answered):
    """A plan that is cut into sessions with copies between them, and how it is run (`way`).

    `single` are the best plans on each device alone, best first, and `best_single` the best of them, if there is one.
    """

    kind: ClassVar[Kind] = "sessions"
    cut: Cut
    way: SessionForm = "sessions"
    single: tuple[Reference, ...] = ()
    best_single: Plan | None = None

    def refused(self, answer: BudgetAnswer | None = None) -> Refused:
        """What was planned, told as refused, with another answer if there is one."""
        return replace(super().refused(answer), single=self.single)

    @property
    def peaks(self) -> dict[str, int]:
        """What it needs of each memory as it is cut."""
        names = [memory.name for memory in self.answer.question.problem.memories]
        return dict(zip(names, self.cut.peak_bytes, strict=True))


@dataclass(frozen=True, kw_only=True)
class Refused(Answered):
    """No plan that fits in the form in which it runs.

    `single` are the best plans on each device alone, where they were looked for. `weight_obstacle` says in one line
    which weight is too large to page. `near` is a plan that fits but for a little of what its form needs: the answer
    to a budget that is so much larger. So many bytes are needed by the first plan as sessions run it, if there was one.
    """

    single: tuple[Reference, ...] = ()
    weight_obstacle: str | None = None
    near: OneModel | None = None
    needed_bytes: int | None = None

    @property
    def kind(self) -> Kind:
        """The kind of plan that was asked for."""
        return kind_of(self.platform.specs, is_spilled=self.platform.spill is not None)


PlannedModel = OneModel | Sessions | Refused
"""What a compile found, by its form; a wing may have one of its own, on one of these."""


@dataclass(frozen=True)
class PlanSubject:
    """A model with what it costs; `splitting` None: it is the whole one."""

    prepared: Prepared
    platform: Platform
    splitting: Splitting | None = None


@dataclass(frozen=True)
class PlannedRun:
    """A plan file and the model that it speaks of."""

    plan: PlanFile
    model: Path
