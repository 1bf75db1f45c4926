"""The way of plans that page: remat opens their sessions, and writes and reads values between them."""

from pathlib import Path

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.base.progress import Progress
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.kinds import are_run_apart
from remat_cli.compiling.learn.settle import AnySettled, Settled, Settling
from remat_cli.compiling.placed.asked import (
    refuse_nothing,
    refuse_what_sessions_lack,
)
from remat_cli.compiling.placed.limits import limited_subject
from remat_cli.compiling.placed.verify import PlacedRun
from remat_cli.compiling.placed.way import PlacedWay
from remat_cli.compiling.planned import OneModel, PlannedModel, PlannedRun, PlanSubject, Refused
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.schedule.program import Program
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.runs_on import RunsOn
from remat_cli.core.values.verification import Checks, PagedSeen
from remat_cli.paging.inspect import inspect_paged
from remat_cli.paging.page import plan_paging
from remat_cli.paging.paged_program import paged_program
from remat_cli.paging.planned import Paged
from remat_cli.paging.profile import profile_paging
from remat_cli.paging.record import record_paged, save_paged
from remat_cli.paging.report import pages_report
from remat_cli.paging.settle import PagedSettling
from remat_cli.paging.values import PagedVerifyReport
from remat_cli.paging.verify import verify_paged
from remat_cli.report.compile import CompileReport, VerifyReport
from remat_cli.report.devices.sessions import SessionsReport
from remat_cli.report.inspection import InspectReport

NOTHING_PAGES = "nothing pages: within this budget no plan that does is faster than recomputing, so this is one model"


class PagedWay(PlacedWay[Paged, PagedSeen]):
    """A plan in sessions on one device, of which values and weights wait in another memory."""

    def refuse(self, request: CompileRequest) -> None:
        """Refuse what sessions on devices of their own lack."""
        if are_run_apart(request.conditions.devices):
            refuse_what_sessions_lack(request)

    def subject(self, prepared: Prepared, request: CompileRequest, work: Path, progress: Progress) -> PlanSubject:
        """The model, cut up where a device cannot hold its tensors."""
        if are_run_apart(request.conditions.devices):
            return limited_subject(self, prepared, request, work, progress)
        return PlanSubject(prepared, self.profile(prepared, request.conditions, progress))

    def profile(self, prepared: Prepared, conditions: Conditions, progress: Progress) -> Platform:
        """Costs of ops, and of what is written and read."""
        return profile_paging(prepared, conditions, progress)

    def plan(
        self, prepared: Prepared, platform: Platform, request: CompileRequest, work: Path, progress: Progress
    ) -> OneModel | Paged | Refused:
        """One that pages, or one that only recomputes where that is no slower."""
        refuse_nothing(prepared)
        return plan_paging(prepared, platform, request, progress)

    def settle(self, planned: Paged, how: Settling) -> AnySettled:
        """Count what sessions and the process hold, and plan for so much less."""
        return PagedSettling(how).settle(planned)

    def record(self, planned: Paged, request: CompileRequest) -> PlanFile:
        """With what moves when."""
        return record_paged(planned, request)

    def save(self, planned: Paged, path: Path, request: CompileRequest) -> RunsOn:
        """The optimised model, which says of each op where and when it runs."""
        return save_paged(planned, path, request)

    def save_more(
        self,
        report: CompileReport,
        settled: Settled[Paged, PagedSeen | None],
        path: Path,
        work: Path,
        progress: Progress,
    ) -> CompileReport:
        """Nothing: no session of a user's own pages."""
        return report

    def report(self, settled: Settled[Paged | Refused, PagedSeen | None]) -> SessionsReport:
        """What pages, or what stands in the way."""
        return pages_report(settled)

    def told(self, planned: PlannedModel) -> tuple[str, ...]:
        """That the best plan needs no other memory, or which weight is too large to page."""
        if isinstance(planned, OneModel):
            return (NOTHING_PAGES,)
        obstacle = planned.weight_obstacle if isinstance(planned, Refused) else None
        return () if obstacle is None else (obstacle,)

    def run(self, read: PlanFile, model: Path, folder: Path) -> Program:
        """A model per session, and transfers between them."""
        return paged_program(read, model, folder)

    def refuse_cap(self, plan: Path) -> None:
        """Sessions that page have no arena."""
        raise ConfigError(f"--enforce-budget: {plan} pages, and its sessions have no arena to cap: leave it out")

    def verify(self, run: PlannedRun, whole: Prepared, work: Path, checks: Checks, progress: Progress) -> PagedSeen:
        """The plan, its process and the original."""
        return verify_paged(PlacedRun(run.plan, run.model), whole, work, checks, progress)

    def verified(self, report: VerifyReport) -> PagedVerifyReport:
        """By what each memory needs."""
        return PagedVerifyReport(**msgspec.structs.asdict(report))

    def inspect(self, path: Path, read: PlanFile, warnings: tuple[str, ...]) -> InspectReport:
        """Of every memory."""
        return inspect_paged(path, read, warnings)
