"""`remat report`: one page for a browser, about a model, a plan, or the rows of a sweep or a bench."""

from collections.abc import Callable, Mapping
from pathlib import Path

from remat_cli.base.files import atomic_write, check_target
from remat_cli.base.named import named
from remat_cli.base.progress import Progress
from remat_cli.commands.inspect import inspect_alone, look_at_model
from remat_cli.core.files.plan_file import is_plan
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.report.page.html import page_html, require_charts
from remat_cli.report.page.pages import model_page, plan_page
from remat_cli.report.page.values import Page
from remat_cli.report.page.written_page import PageReport
from remat_cli.settings.settings import Settings

PAGES: Mapping[str, str] = {".jsonl": "remat_cli.contest.report.rows_page:rows_page"}
"""Pages of files that are neither models nor plans, by how their names end."""


def write_report(path: Path, settings: Settings, progress: Progress) -> PageReport:
    """Write the page of a file.

    Raises:
        ConfigError: the page cannot be written, exists without --force, or is the file.
        ModelError: the file is of no kind that has a page, or cannot be used.
        MissingDependency: what draws the charts is not installed.
    """
    target = settings.output or path.with_name(f"{path.name.removesuffix(path.suffix)}.html")
    check_target(target, sources=(path,), overwrite=settings.force)
    require_charts()
    page = page_of(path, settings, progress)
    data = page_html(page)
    atomic_write(target, data)
    return PageReport(file=str(path), output=str(target), output_bytes=len(data), verdict=page.verdict)


def page_of(path: Path, settings: Settings, progress: Progress) -> Page:
    """What the page shows.

    Raises:
        ModelError: the file is of no kind that has a page, or cannot be used.
    """
    if (row := PAGES.get(path.suffix)) is not None:
        make: Callable[[Path], Page] = named(row)
        return make(path)
    if is_plan(path):
        return plan_page(inspect_alone(path, settings, progress), read_plan(path))
    seen = look_at_model(path, settings, progress)
    return model_page(seen.report, seen.graph, seen.problem)
