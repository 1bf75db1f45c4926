"""The way of plans that are one model: any session runs it, remat is not needed any more."""

from pathlib import Path

import msgspec

from remat_cli.base.progress import Progress
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.asked_for import asked_of
from remat_cli.compiling.beyond import extrapolated_profile
from remat_cli.compiling.learn.settle import Settled, Settling
from remat_cli.compiling.one_model.files import save_model
from remat_cli.compiling.one_model.plan import plan_one_model
from remat_cli.compiling.one_model.program import whole_program
from remat_cli.compiling.one_model.record import model_snippet, record_model, session_line
from remat_cli.compiling.one_model.report import model_report
from remat_cli.compiling.one_model.settle import ModelSettled, ModelSettling
from remat_cli.compiling.one_model.verify import ModelRun, verify_model
from remat_cli.compiling.placed.profile_apart import profile_apart
from remat_cli.compiling.planned import OneModel, PlannedModel, PlannedRun, PlanSubject, Refused
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.profile import profile_inside
from remat_cli.compiling.record import find_file
from remat_cli.compiling.search.kept_curve import kept_curve
from remat_cli.compiling.ways import Way
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.schedule.program import Program
from remat_cli.core.schedule.splits import large_tensor_lines
from remat_cli.core.values.conditions import CPU, Conditions
from remat_cli.core.values.curve import TradeOff
from remat_cli.core.values.profile import DeviceSpec, Profile
from remat_cli.core.values.promises import Asked
from remat_cli.core.values.runs_on import RunsOn
from remat_cli.core.values.verification import Checks, OneModelSeen
from remat_cli.devices.provider_table import named_spec
from remat_cli.report.compile import CompileReport, OneModelReport, OneModelVerifyReport, VerifyReport
from remat_cli.report.inspection import InspectReport, inspect_plan


def with_times_of(profile: Profile, apart: Profile) -> Profile:
    """A profile with the times of another one, as far as that has any.

    Inside a model the runtime notes how long it took to start a kernel on a GPU, and not how long that ran.
    """
    times = {cost.name: cost.time_ns for cost in apart.ops}
    ops = tuple(msgspec.structs.replace(cost, time_ns=times.get(cost.name, cost.time_ns)) for cost in profile.ops)
    return msgspec.structs.replace(profile, ops=ops)


class OneModelWay(Way[OneModel, OneModelSeen]):
    """A plan that is one model."""

    def refuse(self, request: CompileRequest) -> None:
        """Nothing."""

    def subject(self, prepared: Prepared, request: CompileRequest, work: Path, progress: Progress) -> PlanSubject:
        """The whole model: it is split while it is planned."""
        return PlanSubject(prepared, self.profile(prepared, request.conditions, progress))

    def profile(self, prepared: Prepared, conditions: Conditions, progress: Progress) -> Platform:
        """Costs as they are seen inside the model; on another device than the CPU those of each op by itself."""
        specs = conditions.devices
        if prepared.runnable is None:
            profile = profile_inside(prepared, conditions, specs[0], progress)
            if specs[0].provider != CPU:
                profile = with_times_of(profile, profile_apart(prepared, conditions, specs[0], progress))
            return Platform(prepared.graph, specs, (profile,))
        profile = extrapolated_profile(prepared, prepared.runnable, specs[0], progress)
        return Platform(prepared.graph, specs, (profile,))

    def plan(
        self, prepared: Prepared, platform: Platform, request: CompileRequest, work: Path, progress: Progress
    ) -> OneModel | Refused:
        """Whole ops, then splits."""
        return plan_one_model(prepared, platform, request, work, progress)

    def settle(self, planned: OneModel, how: Settling) -> ModelSettled:
        """Verify, learn, plan again."""
        return ModelSettling(how).settle(planned)

    def record(self, planned: OneModel, request: CompileRequest) -> PlanFile:
        """With what the written model promises, and the plans of other budgets that are known by then."""
        known = kept_curve(planned.whole, request).curve().points
        return msgspec.structs.replace(record_model(planned, request), curve=known)

    def save(self, planned: OneModel, path: Path, request: CompileRequest) -> RunsOn:
        """The model that was planned, with its copies and primers."""
        return save_model(planned, path, request)

    def save_more(
        self,
        report: CompileReport,
        settled: Settled[OneModel, OneModelSeen | None],
        path: Path,
        work: Path,
        progress: Progress,
    ) -> CompileReport:
        """Nothing: the model is what users run."""
        return report

    def report(self, settled: Settled[OneModel | Refused, OneModelSeen | None]) -> OneModelReport:
        """What was split and recomputed, or what stands in the way."""
        return model_report(settled)

    def told(self, planned: PlannedModel) -> tuple[str, ...]:
        """Nothing besides."""
        return ()

    def run(self, read: PlanFile, model: Path, folder: Path) -> Program:
        """One session under exact options."""
        return whole_program(read, model)

    def snippet(self, read: PlanFile, output: Path, path: Path) -> str:
        """A session of the user's own."""
        return model_snippet(read, output)

    def one_line(self, read: PlanFile, output: Path, path: Path) -> str:
        """A session of the user's own."""
        return session_line(read, output)

    def refuse_cap(self, plan: Path) -> None:
        """Nothing."""

    def devices(self, read: PlanFile) -> tuple[DeviceSpec, ...]:
        """The one that it was made for."""
        return (named_spec(read.device),)

    def refuse_budget(self) -> None:
        """Nothing."""

    def asked(self, read: PlanFile, curve: TradeOff | None) -> Asked:
        """With the next cheaper budget."""
        return asked_of(read, curve)

    def large_lines(self, read: PlanFile) -> tuple[str, ...]:
        """Tensors above the cap."""
        return large_tensor_lines(read.graph, read.request.max_tensor_bytes)

    def verify(self, run: PlannedRun, whole: Prepared, work: Path, checks: Checks, progress: Progress) -> OneModelSeen:
        """Both models apart and in turn."""
        return verify_model(ModelRun(run.plan, run.model), whole, work, checks, progress)[0]

    def verified(self, report: VerifyReport) -> OneModelVerifyReport:
        """By what one session needs."""
        return OneModelVerifyReport(**msgspec.structs.asdict(report))

    def only_file(self, read: PlanFile, plan: Path) -> Path:
        """The model."""
        return find_file(read.output, plan, "model")

    def inspect(self, path: Path, read: PlanFile, warnings: tuple[str, ...]) -> InspectReport:
        """Of the written model, gates included."""
        return inspect_plan(path, read, warnings)
