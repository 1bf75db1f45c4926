"""`remat inspect`: where the memory of a model or a plan goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remat_cli.cli import options
from remat_cli.cli.session import run, settings

if TYPE_CHECKING:
    from remat_cli.base.progress import Progress
    from remat_cli.report.report import InspectReport
    from remat_cli.settings.settings import Settings


@click.command(
    "inspect",
    short_help="Show where the memory of a model or a plan goes.",
    epilog=options.examples("remat inspect unet.onnx --budget 80%", "remat inspect unet.plan.json --svg memory.svg"),
)
@click.argument("file", type=options.INPUT_FILE)
@options.budget_options
@options.max_overhead_option
@options.split_options
@click.option("--svg", type=options.FILE, metavar="FILE", help="Write the picture of memory over time here too.")
@options.force_option
@options.device_option
@options.model_options
@options.common_options
def inspect_command(file: Path, **flags: Any) -> int:
    """Show where the memory of FILE, a model or a plan, goes: peak, what is alive there, memory over time."""
    config = settings(flags)
    if config.svg is not None:
        _check_svg(config.svg, file, config)

    from remat_cli.commands import inspect as story

    def work(config: Settings, progress: Progress) -> InspectReport:
        report = story.inspect_file(file, config, progress)
        if config.svg is not None:
            _write_svg(report, config.svg)
        return report

    return run(config, work)


def _check_svg(svg: Path, file: Path, config: Settings) -> None:
    from remat_cli.base.files import check_target
    from remat_cli.report.svg_chart import require_matplotlib

    check_target(svg, sources=(file,), overwrite=config.force)
    require_matplotlib()


def _write_svg(report: InspectReport, svg: Path) -> None:
    from remat_cli.base.files import atomic_write
    from remat_cli.report.placement_svg import inspect_picture

    atomic_write(svg, inspect_picture(report))
