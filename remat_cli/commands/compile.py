"""The compiler on one page: load, optimise, profile, plan, rewrite, verify, write. Values in, reports out."""

import time
from dataclasses import replace
from pathlib import Path

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.errors import ConfigError
from remat_cli.base.progress import Progress
from remat_cli.commands.asked import refuse_ranges, request_of
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.asked_for import asked_in_vain, asked_of
from remat_cli.compiling.files import save_written
from remat_cli.compiling.gated import GatedModel, gating_of, save_gated
from remat_cli.compiling.learn.settle import Settled, Settling
from remat_cli.compiling.plan import plan_model, within_overhead
from remat_cli.compiling.planned import PlannedModel
from remat_cli.compiling.prepare import prepare, work_folder
from remat_cli.compiling.process.as_given import plain_process_bytes
from remat_cli.compiling.process.process import ProcessPlanning
from remat_cli.compiling.profile import is_cut_into_sessions, profile_model
from remat_cli.compiling.record import plan_file, written_at
from remat_cli.compiling.search.limits import cut_to_limits, limits_of, within_limits
from remat_cli.compiling.tell import compile_report
from remat_cli.core.files.plan_file import PlanFile, write_with_plan
from remat_cli.onnx_io.read.load import SourceModel
from remat_cli.onnx_io.write.save import data_path
from remat_cli.report.compile import CompileReport
from remat_cli.settings.settings import Outputs, Settings, output_paths

NOTHING_PAGES = "nothing pages: within this budget no plan that does is faster than recomputing, so this is one model"


def compile_model(model: Path, settings: Settings, progress: Progress) -> CompileReport:
    """Rewrite a model so that it runs within a budget; files are written only once the plan was verified.

    For several devices it is a plan of where everything runs, and the model stays as the runtime optimises it.

    Raises:
        InputError: the model, the inputs or the settings cannot be used.
        MissingDependency: a device is not here.
        RuntimeFailure: ONNX Runtime refuses the model.
    """
    started = time.monotonic()
    request = request_of(settings, settings.compile_scope)
    _refuse_what_sessions_lack(request)
    if is_cut_into_sessions(request.conditions.devices):
        refuse_ranges(settings, "plans for several devices are")
    targets = output_paths(model, settings)
    with work_folder(model, settings.work_dir, settings.memory_limit_bytes) as work:
        prepared = prepare(model, request.conditions, work, progress)
        _keep_data_of(prepared.source, targets.model)
        cut = cut_to_limits(prepared, request, work, progress)
        platform = within_limits(profile_model(cut.prepared, request.conditions, progress), limits_of(request))
        if request.process_budget_bytes is not None:
            planning = ProcessPlanning(prepared, platform, request, work, progress)
            settled = planning.settled(verified=settings.verify != "off")
        else:
            planned = plan_model(cut.prepared, platform, request, work, progress)
            settled = Settled(cut.of(planned, prepared), None)
            if settings.verify != "off":
                settled = Settling(request, work, progress).settle(settled.planned)
        settled = replace(settled, planned=within_overhead(settled.planned, request.search))
        settled = settled.cut_short() if progress.should_stop() else settled
        gated = _gated(settled, work, progress, verified=settings.verify != "off")
        report = compile_report(model, settled)
        if not settled.planned.has_plan:
            plain_bytes = (
                None if progress.should_stop() else plain_process_bytes(prepared, platform, request, work, progress)
            )
            asked = asked_in_vain(request, settled.planned.answer.question, plain_bytes)
            report = msgspec.structs.replace(report, asked=asked)
        report = _written(report, settled, settled.files_for(request), targets)
        report = _with_gated(report, gated, targets)
    return msgspec.structs.replace(report, seconds=time.monotonic() - started)


def _refuse_what_sessions_lack(request: CompileRequest) -> None:
    """What plans that are cut into sessions cannot do yet."""
    if not is_cut_into_sessions(request.conditions.devices):
        return
    if request.splits.mode == "max":
        raise ConfigError("--split max: ops are not split in plans for several devices; leave --split out")
    if least := [budget.text for budget in request.asked.parts if budget.kind == "min"]:
        raise ConfigError(f"budget '{least[0]}' is found for --device cpu only: write bytes, or a share such as 70%")


def _keep_data_of(source: SourceModel, output: Path) -> None:
    """Refuse an output whose weights would take the place of the source's.

    Raises:
        ConfigError: they would.
    """
    data = data_path(output).resolve()
    if any(file.resolve() == data for file in source.data_files):
        raise ConfigError(f"{data} holds the weights of {source.path}: write the new model elsewhere with -o")


def _gated(settled: Settled, work: Path, progress: Progress, *, verified: bool) -> GatedModel | None:
    """The plan as a model for sessions of the user's own, where remat's sessions need no gates and these do."""
    is_kept = settled.seen is None or settled.seen.passed
    gating = gating_of(settled.planned)
    if gating is None or not is_kept:
        return None
    progress.stage(stages.REWRITING)
    found = gating.written()
    return gating.checked(found, work) if verified else found


def _with_gated(report: CompileReport, gated: GatedModel | None, targets: Outputs) -> CompileReport:
    """Write it too; else say why there is none."""
    if gated is None or report.output is None:
        return report
    if gated.rewritten is None:
        return msgspec.structs.replace(
            report, warnings=(*report.warnings, f"{targets.gated} not written: {gated.reason}")
        )
    save_gated(gated.rewritten, targets.gated)
    return msgspec.structs.replace(report, gated_output=str(targets.gated))


def _written(report: CompileReport, settled: Settled, request: CompileRequest, targets: Outputs) -> CompileReport:
    """Write model and plan; where verification failed only the model, under another name."""
    planned, seen = settled.planned, settled.seen
    if not planned.has_plan:
        told = () if planned.weight_obstacle is None else (planned.weight_obstacle,)
        return msgspec.structs.replace(report, warnings=(*report.warnings, *told))
    draft = plan_file(planned, request)
    report = msgspec.structs.replace(report, asked=asked_of(draft, planned.whole))
    if seen is not None and not seen.passed:
        save_written(planned, targets.failed, request)
        return msgspec.structs.replace(report, failed_output=str(targets.failed), warnings=seen.notes)

    def write_model() -> PlanFile:
        runs_on = save_written(planned, targets.model, request)
        return msgspec.structs.replace(written_at(draft, targets.model, targets.plan, seen), runs_on=runs_on)

    plan = write_with_plan(targets.plan, draft, write_model)
    return msgspec.structs.replace(
        report,
        output=str(targets.model),
        plan=str(targets.plan),
        snippet=plan.snippet,
        runs_on=plan.runs_on,
        warnings=(*_paging_notes(settled.planned, request), *_unverified_notes(settled), *plan.warnings),
    )


def _unverified_notes(settled: Settled) -> tuple[str, ...]:
    """What is known of the bits of a model that was not verified; verification says it else."""
    return settled.planned.whole.notes if settled.seen is None else ()


def _paging_notes(planned: PlannedModel, request: CompileRequest) -> tuple[str, ...]:
    """What a user is told who asked for a memory to page to and got a model that needs none."""
    is_asked = request.conditions.spill is not None
    return (NOTHING_PAGES,) if is_asked and planned.written is not None else ()
