"""`remat examples`: what the documentation uses, copied to where you are."""

from pathlib import Path
from typing import Any

import click

from remat_cli.cli import options
from remat_cli.cli.grouped import GroupedCommand
from remat_cli.cli.session import run, settings


@click.command(
    "examples",
    cls=GroupedCommand,
    short_help="Copy sample models and examples to where you are.",
    epilog=options.examples("remat examples", "remat examples elsewhere --force"),
)
@click.argument("folder", type=options.FILE, default=Path())
@options.force_option
@options.common_options
def examples_command(folder: Path, **flags: Any) -> int:
    """Copy the sample models, examples, device and bench files that the documentation uses into FOLDER, or here."""
    config, printing = settings(flags)
    from remat_cli.commands import examples as story

    return run(printing, lambda progress: story.copy_examples(folder, force=config.force))
