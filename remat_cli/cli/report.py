"""`remat report`: a page for a browser."""

from pathlib import Path
from typing import Any

import click

from remat_cli.cli import options
from remat_cli.cli.grouped import GroupedCommand
from remat_cli.cli.session import run, settings


@click.command(
    "report",
    cls=GroupedCommand,
    short_help="Write a page with charts about a model, a plan or a sweep.",
    epilog=options.examples("remat report unet.plan.json", "remat report unet.onnx --budget 80% -o unet.html"),
)
@click.argument("file", type=options.INPUT_FILE)
@click.option("-o", "--output", type=options.EndingFile(".html"), metavar="OUT.html", help="The page. [FILE.html]")
@options.force_option
@options.budget_options
@options.device_option
@options.model_options
@options.common_options
def report_command(file: Path, **flags: Any) -> int:
    """Write one page about FILE, a model, a plan, or the rows of a sweep or a bench; it needs no network.

    Memory over time with who is there at each step, the process by phase, tiles, what was promised and measured, where
    the file runs, and the commands to get the same.
    """
    config, printing = settings(flags)
    from remat_cli.commands import report as story

    return run(printing, lambda progress: story.write_report(file, config, progress))
