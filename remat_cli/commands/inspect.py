"""`remat inspect`: where the memory of a model or a plan goes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from remat_cli.base.errors import ConfigError, ModelError
from remat_cli.base.files import atomic_write, check_target
from remat_cli.base.progress import Progress
from remat_cli.commands.asked import request_of, with_picture
from remat_cli.compiling.ask import ask, budget_of_plan
from remat_cli.compiling.one_model.plan import propose_regions
from remat_cli.compiling.prepare import work_folder
from remat_cli.compiling.process.as_given import forecast_of_file
from remat_cli.compiling.profile import profile_model
from remat_cli.compiling.record import elsewhere, find_file
from remat_cli.compiling.search.family_dims import prepare_at_fullest
from remat_cli.compiling.search.ladder import ladder
from remat_cli.compiling.ways import way
from remat_cli.core.files.plan_file import is_plan
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.values.budget import WHOLE
from remat_cli.core.values.promises import Asked
from remat_cli.core.values.runs_on import RunsOn
from remat_cli.core.values.sized_plan import plan_at
from remat_cli.onnx_io.read.compiled import compiled_runs_on, runs_on_at
from remat_cli.onnx_io.read.interface import few_bit_kind
from remat_cli.onnx_io.read.load import prepare_optimized
from remat_cli.onnx_io.read.source_names import SourceNames, source_names
from remat_cli.onnx_io.write.as_written import condition_of
from remat_cli.ort_rules.steady import BODY
from remat_cli.report.few_bits import few_bits_at_peak
from remat_cli.report.inspection import InspectReport, inspect_model
from remat_cli.report.pictures.overlay import OverlayRow, model_rows, overlay_files, overlay_paths, plan_rows
from remat_cli.report.pictures.svg_chart import inspect_picture
from remat_cli.report.regions import estimated_regions
from remat_cli.report.runs_on import guard_warnings
from remat_cli.report.sized import inspect_at
from remat_cli.settings.devices import only_device
from remat_cli.settings.settings import Settings

NESTED = f"{BODY}/then_branch/"
"""Before the names of nodes in the body of the steady form, as model-explorer calls them."""


def inspect_file(path: Path, settings: Settings, progress: Progress) -> InspectReport:
    """Where the memory of a model or a plan goes, and its picture in a file, or an overlay, where one is asked for.

    Raises:
        ConfigError: a file cannot be written, or exists without --force, or there is no overlay of such a plan.
        ModelError: the file is neither, or cannot be used.
        MissingDependency: matplotlib is not installed.
    """
    if settings.overlay is None:
        return with_picture(settings, path, lambda: inspect_alone(path, settings, progress), inspect_picture, progress)
    targets = overlay_paths(settings.overlay)
    for target in targets.values():
        check_target(target, sources=(path,), overwrite=settings.force)
    rows: Sequence[OverlayRow]
    if is_plan(path):
        read = read_plan(path)
        if read.parts != "one_model":
            raise ConfigError("--overlay: of a plan that is one model, whose nodes are those of the new file")
        written = prepare_optimized(find_file(read.output, path, "model"))
        report, name = inspect_alone(path, settings, progress), written.graph.name or ""
        rows = plan_rows(read, NESTED)
    else:
        seen = look_at_model(path, settings, progress)
        report, name = seen.report, seen.graph_name
        rows = model_rows(seen.problem, seen.graph, seen.names.source_nodes)
    for what, data in overlay_files(name, rows).items():
        atomic_write(targets[what], data)
        progress.note(f"wrote {targets[what]}: node data for model-explorer")
    return with_picture(settings, path, lambda: report, inspect_picture, progress)


def inspect_alone(path: Path, settings: Settings, progress: Progress) -> InspectReport:
    """Report on a plan, or on a model that is measured now; no picture is drawn.

    Raises:
        ModelError: the file is neither, or cannot be used.
    """
    if not is_plan(path):
        return look_at_model(path, settings, progress).report
    read = read_plan(path)
    found = way(read.kind)
    if settings.conditions.dims:
        report = inspect_at(path, plan_at(read, settings.conditions.dims), elsewhere(read))
    else:
        report = found.inspect(path, read, elsewhere(read))
    asked = found.asked(read, None)
    report = msgspec.structs.replace(report, asked=asked, names=read.names)
    if settings.budget is not None:  # the one that is asked for now, in place of the plan's own
        found.refuse_budget()
        budget = budget_of_plan(read, settings.budget, None if settings.budget_scope is None else settings.scope)
        process_bytes = budget.bytes if budget.bounds == "process" else None
        report = msgspec.structs.replace(
            report,
            budget=settings.budget.text,
            budget_bytes=budget.bytes,
            asked=msgspec.structs.replace(asked, process_budget_bytes=process_bytes),
        )
    try:  # where its model runs says that file itself, where it is there
        return _with_runs_on(report, runs_on_at(find_file(read.output, path, "model")))
    except ModelError:
        return _with_runs_on(report, read.runs_on)


@dataclass(frozen=True)
class ModelSeen:
    """A model that was measured: the report, its graph, what its ops take, and what of the file these are made of."""

    report: InspectReport
    graph: Graph
    problem: Problem
    graph_name: str
    names: SourceNames


def look_at_model(path: Path, settings: Settings, progress: Progress) -> ModelSeen:
    """Report on a model that is measured now.

    Raises:
        ModelError: the file is no model, or cannot be used.
    """
    only_device(settings.devices)
    with work_folder(path, settings.work_dir, settings.memory_limit_bytes) as work:
        prepared = prepare_at_fullest(path, settings.conditions, work, progress)
        platform = profile_model(prepared, settings.conditions, progress)
        forecast = forecast_of_file(prepared, platform.profile, work, progress)
        request = None if settings.budget is None else request_of(settings, settings.compile_scope)
        problem, budget = platform.problem(), None
        if request is not None and not (question := ask(platform, request)).least:
            problem, budget = question.problem, question.text
        report = inspect_model(path, prepared.graph, platform.profile, problem, budget)
        if request is not None and budget is None:
            text = request.asked.text  # `min`, whose bytes only a search finds
            report = msgspec.structs.replace(report, budget=text)
        report = _with_runs_on(report, compiled_runs_on(prepared.source.ir))
        asked = Asked(
            process_budget_bytes=None if request is None else request.process_budget_bytes,
            process_bytes=forecast.process.counted_bytes(with_mapped=settings.count_mapped)
            + prepared.graph.input_bytes,
        )
        source = prepared.source.ir
        names = source_names(source, prepared.graph)
        condition = condition_of(path)  # what became of a compiled file since it was written
        report = msgspec.structs.replace(
            report,
            process=forecast.process,
            runs=forecast.runs,
            asked=asked,
            is_as_written=condition.is_as_written,
            few_bits=few_bits_at_peak(few_bit_kind(source), report.alive, report.workspace_bytes),
            names=names.told,
            warnings=(*condition.warnings, *report.warnings),
        )
        if settings.conditions.may_be_alone and settings.family is None:
            asked_for = request_of(msgspec.structs.replace(settings, budget=WHOLE), "live")
            steps = ladder(prepared, platform, asked_for, work)
            less = tuple(
                step for step in steps if step.budget_bytes < report.peak_bytes
            )  # plans for a process hold more
            report = msgspec.structs.replace(report, ladder=less)
        rest = (prepared.graph, problem, source.graph.name or "", names)
        if request is None or settings.split == "off":
            return ModelSeen(report, *rest)
        regions, facts, obstacle = propose_regions(prepared, platform, request, work)
    reports = estimated_regions(regions, facts, prepared.graph)
    return ModelSeen(msgspec.structs.replace(report, regions=reports, split_obstacle=obstacle), *rest)


def _with_runs_on(report: InspectReport, runs_on: RunsOn | None) -> InspectReport:
    """Add to a report where the file runs, where the file says so."""
    if runs_on is None:
        return report
    return msgspec.structs.replace(report, runs_on=runs_on, warnings=(*guard_warnings(runs_on), *report.warnings))
