"""`remat inspect`: where the memory of a model or a plan goes."""

from __future__ import annotations

from pathlib import Path

import msgspec

from remat_cli.base.files import atomic_write, check_target
from remat_cli.base.progress import Progress
from remat_cli.core.plan_file import is_plan, read_plan
from remat_cli.core.problem import make_problem
from remat_cli.report.inspection import InspectReport, inspect_model, inspect_plan
from remat_cli.report.placement_svg import inspect_picture
from remat_cli.report.regions import estimated_regions
from remat_cli.report.svg_chart import require_matplotlib
from remat_cli.settings.config import Config
from remat_cli.stages.plan import propose_regions
from remat_cli.stages.prepare import only_device, prepare, profile_prepared, work_folder
from remat_cli.stages.record import elsewhere
from remat_cli.stages.solve import ask


def inspect_and_draw(path: Path, config: Config, progress: Progress) -> InspectReport:
    """Where the memory goes, and its picture in the file of `--svg`, where one is asked for.

    Raises:
        InputError: the model or the settings cannot be used.
        MissingDependency: matplotlib is not installed.
    """
    if config.svg is None:
        return inspect_file(path, config, progress)
    check_target(config.svg, sources=(path,), overwrite=config.force)
    require_matplotlib()
    report = inspect_file(path, config, progress)
    atomic_write(config.svg, inspect_picture(report))
    return report


def inspect_file(path: Path, config: Config, progress: Progress) -> InspectReport:
    """Where the memory of a model or a plan goes.

    Raises:
        ModelError: the file is neither, or cannot be used.
    """
    if is_plan(path):
        read = read_plan(path)
        return inspect_plan(path, read, elsewhere(read))
    device = only_device(config)
    with work_folder(config) as work:
        prepared = prepare(path, config, work, progress)
        profile = profile_prepared(prepared, config, device, progress)
        problem = make_problem(prepared.graph, profile, 0)
        if config.budget is None:
            return inspect_model(path, prepared.graph, profile, problem, None)
        question = ask(problem, config)
        text = None if question.least else question.text
        report = inspect_model(path, prepared.graph, profile, problem if question.least else question.problem, text)
        if config.split == "off":
            return report
        regions, facts, obstacle = propose_regions(prepared, profile, config, work)
    reports = estimated_regions(regions, facts, prepared.graph)
    return msgspec.structs.replace(report, regions=reports, split_obstacle=obstacle)
