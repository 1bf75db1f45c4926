"""`remat solvers`: the registry."""

from typing import Any

import click

from remat_cli.cli import options
from remat_cli.cli.grouped import GroupedCommand
from remat_cli.cli.session import run, settings


@click.command(
    "solvers",
    cls=GroupedCommand,
    short_help="List the solvers and their options.",
    epilog=options.examples("remat solvers"),
)
@options.common_options
def solvers_command(**flags: Any) -> int:
    """List the solvers: what each takes and proves, and its options with their defaults."""
    _, printing = settings(flags)
    from remat_cli.commands import solvers as story

    return run(printing, lambda progress: story.list_solvers())
