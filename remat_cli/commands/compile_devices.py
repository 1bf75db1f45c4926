"""The compiler for several devices on one page: profile each, place, cut, write, run and compare."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.base.progress import Progress
from remat_cli.core.budget import Budget, parse_budget
from remat_cli.core.device_verification import DeviceVerification
from remat_cli.core.placement import Placement
from remat_cli.core.plan_file import PlanFile, write_plan
from remat_cli.core.schedule import Schedule
from remat_cli.devices.provider_table import PROVIDERS, is_device_file
from remat_cli.onnx_io.load import save
from remat_cli.report.device_compile import DeviceCompileReport, device_compile_report
from remat_cli.report.placed import Placed
from remat_cli.settings.config import Config, Outputs, output_paths, require_budget
from remat_cli.settings.devices import device_specs, memory_budgets
from remat_cli.stages.place import AUTO, DevicePlan, Platform, judged_again, on_best_single, plan_on_devices
from remat_cli.stages.placed_record import (
    device_plan_file,
    device_snippet,
    noted_model,
    placed_at,
    placement_of,
    unplaced,
)
from remat_cli.stages.prepare import Prepared, prepare, work_folder
from remat_cli.stages.profile import profile_on_devices
from remat_cli.stages.solve import check_solver
from remat_cli.stages.verify import PlannedRun, verify_on_devices

ATTEMPTS = 3  # to count what sessions hold of weights, which shows only when they are open


def spans_devices(config: Config) -> bool:
    """Whether a plan for these settings has to say where its ops run, or cannot be written as one model."""
    if len(config.devices) > 1 or is_device_file(config.device):
        return True
    return any(PROVIDERS[spec.provider].is_opaque for spec in device_specs(config))


def compile_on_devices(model: Path, config: Config, progress: Progress) -> DeviceCompileReport:
    """Plan a model on several devices; files are written only once the plan has been run.

    Raises:
        InputError: the model, the inputs or the settings cannot be used.
        MissingDependency: a device is not here.
        RuntimeFailure: ONNX Runtime refuses the model.
    """
    started = time.monotonic()
    require_budget(config)
    check_solver(config)
    if config.split == "max":
        raise ConfigError("--split max: ops are not split in plans for several devices; leave --split out")
    specs = device_specs(config)
    budgets = memory_budgets(config, specs)
    if least := [budget.text for budget in budgets.values() if budget.kind == "min"]:
        raise ConfigError(f"budget '{least[0]}' is found for --device cpu only: write bytes, or a share such as 70%")
    targets = output_paths(model, config)
    with work_folder(config) as work:
        prepared = prepare(model, config, work, progress)
        platform = Platform(prepared.graph, specs, *profile_on_devices(prepared, config, specs, progress))
        planned = plan_on_devices(platform, budgets, config, progress)
        made, seen = _verified(_Made(prepared, platform, planned), work, config, progress)
        if made.planned.cut is None:
            report = made.report(model, None)
        else:
            report = made.written(made.report(model, seen), targets, seen, config)
    return msgspec.structs.replace(report, seconds=time.monotonic() - started)


def _verified(made: _Made, work: Path, config: Config, progress: Progress) -> tuple[_Made, DeviceVerification | None]:
    """Run the plan; where `auto`'s is not measured to be faster than the best one on one device, take that instead."""
    platform = made.platform
    made, seen = _counted(made, work / "mixed", config, progress)
    if seen is None or seen.is_faster_than_single or config.solver != AUTO:
        return made, seen
    planned = on_best_single(platform, made.planned)
    if planned is None:
        return made, seen
    alone = replace(made, platform=platform, planned=planned)
    alone, seen_alone = _counted(alone, work / "alone", config, progress)
    if seen_alone is None or not seen_alone.passed:
        return made, seen
    took = f"{seen.measured_time_ns / 1e6:.2f} ms"
    note = f"a plan on several devices took {took} and was not faster, so this one is for {made.best_device} alone"
    notes = (*seen_alone.notes, note)
    return alone, msgspec.structs.replace(seen_alone, rejected_time_ns=seen.measured_time_ns, notes=notes)


def _counted(made: _Made, work: Path, config: Config, progress: Progress) -> tuple[_Made, DeviceVerification | None]:
    """Run the plan; where sessions hold more weights than was thought, count them and, if need be, plan again."""
    work.mkdir()
    seen = None
    for attempt in range(ATTEMPTS):
        if made.planned.cut is None:
            return made, None
        seen = made.verified(work / str(attempt), config, progress)
        if seen is None or not seen.session_bytes:
            break
        platform = made.platform.with_session_bytes(seen.session_bytes)
        counted = judged_again(platform, made.planned)
        if counted is not None:
            made = replace(made, platform=platform, planned=counted)
            return made, seen.with_sessions_counted(made.placement.peak_bytes)
        made = replace(made, platform=platform, planned=plan_on_devices(platform, made.budgets, config, progress))
    return made, seen


@dataclass(frozen=True)
class _Made:
    """A plan that was found and is not yet written."""

    prepared: Prepared
    platform: Platform
    planned: DevicePlan

    def plan_file(self, config: Config) -> PlanFile:
        """The plan in the form in which it is written."""
        return device_plan_file(self.prepared, self.platform, self.planned, config)

    @property
    def placement(self) -> Placement:
        """What is known of the devices, and of the plan where there is one."""
        plan, cut = self.planned.answer.plan, self.planned.cut
        if plan is None or cut is None:
            return unplaced(self.platform, self.planned.answer.question.problem, self.planned.single)
        return placement_of(self.platform, self.planned, plan, cut)

    @property
    def best_device(self) -> str:
        """The device of the best plan on one."""
        return self.planned.single[0].device

    @property
    def budgets(self) -> dict[str, Budget]:
        """The bytes that the user's budgets came to."""
        memories = self.planned.answer.question.problem.memories
        return {memory.name: parse_budget(str(memory.budget_bytes)) for memory in memories}

    def report(self, model: Path, seen: DeviceVerification | None) -> DeviceCompileReport:
        """What is known before anything is written."""
        question, plan = self.planned.answer.question, self.planned.answer.plan
        placed = Placed(self.platform.graph, question.problem, self.placement, plan)
        return device_compile_report(placed, self.planned.answer.run, str(model), question.text, seen)

    def verified(self, work: Path, config: Config, progress: Progress) -> DeviceVerification | None:
        """What running it shows; None where it was not asked for, or cannot be seen because a device is elsewhere."""
        if not config.verify or not all(profile.provenance.measured for profile in self.platform.profiles):
            return None
        work.mkdir()
        noted = work / "noted.onnx"
        save(self._noted(), noted)
        run = PlannedRun(self.plan_file(config), noted, self._other_single())
        feeds = (self.prepared.feeds, *self.prepared.more_feeds)
        return verify_on_devices(run, feeds, work, progress)

    def written(
        self, report: DeviceCompileReport, targets: Outputs, seen: DeviceVerification | None, config: Config
    ) -> DeviceCompileReport:
        """Write model and plan; where verification failed only the model, under another name."""
        warnings = self._warnings(seen)
        if seen is not None and not seen.passed:
            save(self._noted(), targets.failed)
            return msgspec.structs.replace(
                report, failed_output=str(targets.failed), warnings=(*seen.failures, *warnings)
            )
        save(self._noted(), targets.model)
        write_plan(targets.plan, placed_at(self.plan_file(config), targets.model, targets.plan, seen, warnings))
        return msgspec.structs.replace(
            report,
            output=str(targets.model),
            plan=str(targets.plan),
            snippet=device_snippet(targets.plan),
            warnings=warnings,
        )

    def _noted(self) -> Any:
        return noted_model(self.prepared, self.platform, self.planned)

    def _other_single(self) -> Schedule | None:
        """The best plan on one device, where the plan is another one."""
        best, plan = self.planned.best_single, self.planned.answer.plan
        return None if best is None or plan is None or best.schedule == plan.schedule else best.schedule

    def _warnings(self, seen: DeviceVerification | None) -> tuple[str, ...]:
        if seen is not None:
            return seen.notes
        absent = [profile.device for profile in self.platform.profiles if not profile.provenance.measured]
        if absent:
            return (f"not verified: {', '.join(absent)} is not here, its costs are estimated from a description",)
        return ("not verified: run `remat verify` on the plan",)
