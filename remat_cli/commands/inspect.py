"""`remat inspect`: where the memory of a model or a plan goes."""

from pathlib import Path

import msgspec

from remat_cli.base.files import atomic_write, check_target
from remat_cli.base.progress import Progress
from remat_cli.commands.asked import request_of
from remat_cli.core.plan_file import is_plan, read_plan
from remat_cli.report.inspection import InspectReport, inspect_model, inspect_plan
from remat_cli.report.regions import estimated_regions
from remat_cli.report.svg_chart import inspect_picture, require_matplotlib
from remat_cli.settings.devices import only_device
from remat_cli.settings.settings import Settings
from remat_cli.stages.ask import ask
from remat_cli.stages.plan import propose_regions
from remat_cli.stages.prepare import prepare, work_folder
from remat_cli.stages.profile import profile_model
from remat_cli.stages.record import elsewhere
from remat_cli.stages.resident import model_forecast


def inspect_file(path: Path, settings: Settings, progress: Progress) -> InspectReport:
    """Where the memory of a model or a plan goes, and its picture in a file, where one is asked for.

    Raises:
        ModelError: the file is neither, or cannot be used.
        MissingDependency: matplotlib is not installed.
    """
    if settings.svg is None:
        return _inspected(path, settings, progress)
    check_target(settings.svg, sources=(path,), overwrite=settings.force)
    require_matplotlib()
    report = _inspected(path, settings, progress)
    atomic_write(settings.svg, inspect_picture(report))
    return report


def _inspected(path: Path, settings: Settings, progress: Progress) -> InspectReport:
    if is_plan(path):
        read = read_plan(path)
        return inspect_plan(path, read, elsewhere(read))
    only_device(settings.devices)
    with work_folder(settings.work_dir) as work:
        prepared = prepare(path, settings.conditions, work, progress)
        platform = profile_model(prepared, settings.conditions, progress)
        process, runs = model_forecast(prepared, platform.profile)
        if settings.budget is None:
            report = inspect_model(path, prepared.graph, platform.profile, platform.problem())
            return msgspec.structs.replace(report, process=process, runs=runs)
        request = request_of(settings)
        question = ask(platform, request)
        judged = (platform.problem(), None) if question.least else (question.problem, question.text)
        report = inspect_model(path, prepared.graph, platform.profile, *judged)
        report = msgspec.structs.replace(report, process=process, runs=runs)
        if settings.split == "off":
            return report
        regions, facts, obstacle = propose_regions(prepared, platform, request, work)
    reports = estimated_regions(regions, facts, prepared.graph)
    return msgspec.structs.replace(report, regions=reports, split_obstacle=obstacle)
