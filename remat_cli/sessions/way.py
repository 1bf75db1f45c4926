"""The way of plans for several devices: remat opens their sessions and copies between them."""

from pathlib import Path

import msgspec

from remat_cli.base.progress import Progress
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.learn.settle import Settled, Settling
from remat_cli.compiling.placed.asked import (
    refuse_nothing,
    refuse_what_sessions_lack,
)
from remat_cli.compiling.placed.limits import limited_subject
from remat_cli.compiling.placed.program import placed_program
from remat_cli.compiling.placed.verify import PlacedRun
from remat_cli.compiling.placed.way import PlacedWay
from remat_cli.compiling.planned import PlannedModel, PlannedRun, PlanSubject, Refused, Sessions
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.schedule.program import Program
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.runs_on import RunsOn
from remat_cli.core.values.verification import Checks, SessionsSeen
from remat_cli.report.compile import CompileReport, VerifyReport
from remat_cli.report.devices.placed_inspection import inspect_placed
from remat_cli.report.devices.sessions import SessionsReport, SessionsVerifyReport
from remat_cli.report.inspection import InspectReport
from remat_cli.sessions.gated import with_gated
from remat_cli.sessions.place import plan_on_devices
from remat_cli.sessions.profile import profile_devices
from remat_cli.sessions.record import record_sessions, save_sessions
from remat_cli.sessions.report import devices_report
from remat_cli.sessions.settle import SessionsSettled, SessionsSettling
from remat_cli.sessions.verify import verify_on_devices


class SessionsWay(PlacedWay[Sessions, SessionsSeen]):
    """A plan for several devices, or for one whose sessions only remat can open as planned."""

    def refuse(self, request: CompileRequest) -> None:
        """Refuse splits that are to be made at any price, a budget that is to be found, and many sizes."""
        refuse_what_sessions_lack(request)

    def subject(self, prepared: Prepared, request: CompileRequest, work: Path, progress: Progress) -> PlanSubject:
        """The model, cut up where a device cannot hold its tensors."""
        return limited_subject(self, prepared, request, work, progress)

    def profile(self, prepared: Prepared, conditions: Conditions, progress: Progress) -> Platform:
        """Costs on each device, and of copies."""
        return profile_devices(prepared, conditions, progress)

    def plan(
        self, prepared: Prepared, platform: Platform, request: CompileRequest, work: Path, progress: Progress
    ) -> Sessions | Refused:
        """On each device alone, then on all of them."""
        refuse_nothing(prepared)
        return plan_on_devices(prepared, platform, request, progress)

    def settle(self, planned: Sessions, how: Settling) -> SessionsSettled | Settled[Refused, None]:
        """Count what sessions hold, then take what is measured to be faster."""
        return SessionsSettling(how).settle(planned)

    def record(self, planned: Sessions, request: CompileRequest) -> PlanFile:
        """With the devices, and what the plan needs of each memory."""
        return record_sessions(planned, request)

    def save(self, planned: Sessions, path: Path, request: CompileRequest) -> RunsOn:
        """The optimised model, which says of each op where and when it runs."""
        return save_sessions(planned, path, request)

    def save_more(
        self,
        report: CompileReport,
        settled: Settled[Sessions, SessionsSeen | None],
        path: Path,
        work: Path,
        progress: Progress,
    ) -> CompileReport:
        """A model with gates for sessions of the user's own, where the plan is for one device that has such gates."""
        return with_gated(report, settled, path, work, progress)

    def report(self, settled: Settled[Sessions | Refused, SessionsSeen | None]) -> SessionsReport:
        """What runs where, beside what each device does alone."""
        return devices_report(settled)

    def told(self, planned: PlannedModel) -> tuple[str, ...]:
        """Nothing besides."""
        return ()

    def run(self, read: PlanFile, model: Path, folder: Path) -> Program:
        """A model per session."""
        return placed_program(read, model, folder)

    def refuse_cap(self, plan: Path) -> None:
        """Nothing."""

    def verify(self, run: PlannedRun, whole: Prepared, work: Path, checks: Checks, progress: Progress) -> SessionsSeen:
        """The plan and the original."""
        return verify_on_devices(PlacedRun(run.plan, run.model), whole, work, checks, progress)

    def verified(self, report: VerifyReport) -> SessionsVerifyReport:
        """By what each memory needs."""
        return SessionsVerifyReport(**msgspec.structs.asdict(report))

    def inspect(self, path: Path, read: PlanFile, warnings: tuple[str, ...]) -> InspectReport:
        """Of every memory."""
        return inspect_placed(path, read, warnings)
