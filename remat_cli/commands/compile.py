"""The compiler on one page: load, optimise, profile, plan, rewrite, verify, write. Values in, reports out."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from remat_cli.base.errors import ConfigError, RematError
from remat_cli.base.progress import Progress
from remat_cli.base.run_count import counting
from remat_cli.base.stage_costs import StageCosts
from remat_cli.commands.asked import request_of
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.asked_for import asked_in_vain
from remat_cli.compiling.learn.settle import AnySettled, Settled, Settling
from remat_cli.compiling.one_model.forms import Forms
from remat_cli.compiling.plan import attempts, may_need_time, plan_model, within_overhead
from remat_cli.compiling.planned import OneModel, PlannedModel, PlanSubject, Refused
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared, work_folder
from remat_cli.compiling.process.as_given import plain_process_bytes
from remat_cli.compiling.process.process import ProcessPlanning
from remat_cli.compiling.record import written_at
from remat_cli.compiling.runs_on import may_be_packed, refuse_late_needs, refuse_unknown_versions
from remat_cli.compiling.search.family_dims import fuller_sizes
from remat_cli.compiling.search.kept_curve import kept_curve
from remat_cli.compiling.verify import settle
from remat_cli.compiling.ways import way, way_asked
from remat_cli.core.files.plan_file import PlanFile, write_with_plan
from remat_cli.core.values.conditions import KINDS_OF
from remat_cli.core.values.family import told
from remat_cli.onnx_io.read.compiled import compiled_before
from remat_cli.onnx_io.read.source_names import told_names
from remat_cli.onnx_io.write.least_imports import asking_least
from remat_cli.onnx_io.write.save import check_room_for, data_path, reads_its_data
from remat_cli.report.compile import CompileReport
from remat_cli.report.targets import Known, TargetReport, TargetsReport
from remat_cli.settings.settings import Outputs, Settings, output_paths
from remat_cli.settings.targets import settings_by_target


def compile_targets(model: Path, settings: Settings, progress: Progress) -> TargetsReport:
    """Compile a model for each of several targets; what becomes of one stops no other.

    Raises:
        RematError: as of `compile_model`, where it is the same for all targets.
    """
    by_target, started = settings_by_target(model, settings), time.monotonic()
    with work_folder(model, settings.work_dir, settings.memory_limit_bytes) as work:
        forms, found, errors = Forms(model, work, settings.verify == "on"), list[TargetReport](), list[RematError]()
        for name, one in by_target.items():
            progress.note(f"target {name}")
            try:
                folder = work / name
                folder.mkdir(exist_ok=True)
                report = compile_form(one, forms, folder, progress)
                here, was_run = forms.found[0][1].runtime.kind, report.verification is not None
                kinds = (here,) if name == "here" else KINDS_OF.get(name, (name,))
                known: dict[str, Known] = {k: "run" if was_run and k == here else "predicted" for k in kinds}
                found.append(TargetReport(name=name, exit_code=report.exit_code, known=known, compiled=report))
            except RematError as error:  # others may have none
                errors.append(error)
                found.append(TargetReport(name=name, exit_code=error.exit_code, error=str(error)))
    if len(errors) == len(found) and len(set(map(str, errors))) == 1:
        raise errors[0]
    return TargetsReport(model=str(model), targets=tuple(found), seconds=time.monotonic() - started)


def compile_model(model: Path, settings: Settings, progress: Progress) -> CompileReport:
    """Rewrite a model so that it runs within a budget; files are written only once the plan was verified.

    For several devices it is a plan of where everything runs, and the model stays as the runtime optimises it.

    Raises:
        InputError: the model, the inputs or the settings cannot be used.
        MissingDependency: a device is not here.
        RuntimeFailure: ONNX Runtime refuses the model.
    """
    with work_folder(model, settings.work_dir, settings.memory_limit_bytes) as work:
        return compile_form(settings, Forms(model, work, settings.verify == "on"), work, progress)


def compile_form(settings: Settings, forms: Forms, work: Path, progress: Progress) -> CompileReport:
    """The same in a folder of its own, of a model that may have been prepared for another target already."""
    with counting() as count:
        costs, left_out = StageCosts(count), list[str]()
        report = _compiled(settings, forms, work, costs.listening(progress).with_left_out(left_out.append))
        warnings = dict.fromkeys((*report.warnings, *left_out))
        return msgspec.structs.replace(report, stages=costs.ended(), warnings=tuple(warnings))


def _compiled(settings: Settings, forms: Forms, work: Path, progress: Progress) -> CompileReport:
    """What all stages come to."""
    started, model = time.monotonic(), forms.model
    request, targets = request_of(settings, settings.compile_scope), output_paths(model, settings)
    asked = way_asked(request.conditions)
    asked.refuse(request)
    refuse_unknown_versions(request.conditions.runtimes)
    reached = _at_fullest(_Task(forms, targets.model, targets.plan, work, progress, settings.verify != "off"), request)
    request, prepared, settled = reached.request, reached.prepared, reached.settled
    planned = within_overhead(settled.planned, request.search)
    settled = replace(settled, planned=planned.cut_short() if progress.should_stop() else planned)
    report: CompileReport = way(settled.planned.kind).report(settled)
    names = told_names(prepared.source.ir, prepared.graph)
    report = msgspec.structs.replace(report, names=names)
    if isinstance(settled.planned, Refused):
        needs_bytes = (
            None if progress.should_stop() else plain_process_bytes(prepared, reached.platform, request, work, progress)
        )
        known = asked_in_vain(request, settled.planned, needs_bytes)
        warnings = (*report.warnings, *asked.told(settled.planned))
        report = msgspec.structs.replace(report, asked=known, warnings=warnings)
    else:
        report = _written(report, settled.planned, settled, request, targets)
        if report.output is not None:
            found = way(settled.planned.kind)
            report = found.save_more(report, settled, targets.gated, work, progress)
    if before := compiled_before(prepared.source):
        report = msgspec.structs.replace(report, warnings=(before, *report.warnings))
    known = msgspec.structs.replace(
        report.asked,
        time_limit_seconds=request.search.granted_seconds,
        search_was_cut=request.search.clock.has_cut and not report.solution.interrupted,
        run_seconds=request.search.clock.run_seconds,
    )
    return msgspec.structs.replace(report, asked=known, seconds=time.monotonic() - started)


@dataclass(frozen=True)
class _Task:
    """A model to plan in a folder, and where it will be written."""

    forms: Forms
    output: Path
    plan: Path
    work: Path
    progress: Progress
    is_verified: bool


@dataclass(frozen=True)
class _Tried:
    """What came of a request as far as the model allows it: of many sizes, planned at the largest that it names."""

    request: CompileRequest
    prepared: Prepared
    platform: Platform
    settled: AnySettled


def _at_fullest(task: _Task, request: CompileRequest) -> _Tried:
    """Plan a model; of many sizes once more for other largest ones, where runs at these held more than was promised.

    At which sizes most is held depends on the plan too: tiles leave other tensors the largest. A share stays one of
    what the model holds at the sizes at which it holds the most.
    """
    found, tried = _tried(task, request), list[dict[str, int]]()
    while True:
        at, planned = found.request.conditions, found.settled.planned
        tried.append(at.dims)
        sizes = fuller_sizes(at, found.settled.seen)
        if sizes is None or sizes in tried or not isinstance(planned, OneModel) or task.progress.should_stop():
            return found
        task.progress.note(f"planned again for {told(sizes)}, where runs held more than at the sizes that were planned")
        asked = found.request.asked.at_most(planned.answer.question.budget_bytes)
        request = replace(request, asked=asked, conditions=msgspec.structs.replace(request.conditions, dims=sizes))
        found = _tried(task, request)


def _tried(task: _Task, request: CompileRequest) -> _Tried:
    work, progress, asked = task.work, task.progress, way_asked(request.conditions)
    # The model in the form that is planned, and the request as far as that form and the versions it is for allow it.
    prepared = task.forms.prepared(request.conditions, progress)
    if prepared.may_stay_as_here:
        request = request.as_here()
        prepared = task.forms.prepared(request.conditions, progress)
    refuse_late_needs(asking_least(prepared.reference), request.conditions.runtimes, prepared.runtime.version)
    request = replace(request, conditions=prepared.conditions)  # at the sizes at which the model holds the most
    if not may_be_packed(prepared):
        request = replace(request, files=msgspec.structs.replace(request.files, packed=False))
    # Its weights must not take the place of the source's.
    data = data_path(task.output).resolve()
    if any(file.resolve() == data for file in prepared.source.data_files):
        raise ConfigError(f"{data} holds the weights of {prepared.source.path}: write the new model elsewhere with -o")
    check_room_for(prepared.reference, task.output)
    request = replace(request, outputs=(task.output, task.plan))
    subject = asked.subject(prepared, request, work, progress)
    for attempt in attempts(request, prepared, subject.platform):
        settled = _settled(task, attempt, prepared, subject)
        if not may_need_time(settled.planned) or progress.should_stop():
            break
    return _Tried(attempt, prepared, subject.platform, settled)


def _settled(task: _Task, request: CompileRequest, prepared: Prepared, subject: PlanSubject) -> AnySettled:
    """The plan for a request, verified if that is asked for."""
    work, progress = task.work, task.progress
    if request.process_budget_bytes is not None:
        planning = ProcessPlanning(prepared, subject.platform, request, work, progress)
        return planning.settled(verified=task.is_verified)
    planned = plan_model(subject.prepared, subject.platform, request, work, progress)
    if subject.splitting is not None:
        planned = replace(planned, whole=prepared, splitting=subject.splitting)
    return settle(planned, Settling(request, work, progress)) if task.is_verified else Settled(planned, None)


def _written(
    report: CompileReport, planned: PlannedModel, settled: AnySettled, asked: CompileRequest, targets: Outputs
) -> CompileReport:
    """Write model and plan; where verification failed only the model, under another name."""
    request, seen, found = settled.files_for(asked), settled.seen, way(planned.kind)
    draft: PlanFile = found.record(planned, request)
    report = msgspec.structs.replace(report, asked=found.asked(draft, kept_curve(planned.whole, asked).curve()))
    if seen is not None and not seen.passed:
        found.save(planned, targets.failed, request)
        return msgspec.structs.replace(report, failed_output=str(targets.failed), warnings=seen.notes)

    def write_model() -> PlanFile:
        runs_on = found.save(planned, targets.model, request)
        return msgspec.structs.replace(written_at(draft, targets.model, targets.plan, seen), runs_on=runs_on)

    plan = write_with_plan(targets.plan, draft, write_model)
    unverified = planned.whole.notes if seen is None else ()  # what is known of its bits; verification says it else
    return msgspec.structs.replace(
        report,
        output=str(targets.model),
        data=str(data_path(targets.model)) if reads_its_data(targets.model) else None,
        plan=str(targets.plan),
        snippet=plan.snippet,
        one_line=found.one_line(plan, targets.model, targets.plan),
        runs_on=plan.runs_on,
        warnings=(*way_asked(request.conditions).told(planned), *unverified, *plan.warnings),
    )
