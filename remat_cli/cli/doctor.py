"""`remat doctor`: can remat work here?"""

from typing import Any

import click

from remat_cli.cli import options
from remat_cli.cli.grouped import GroupedCommand
from remat_cli.cli.session import run, settings


@click.command(
    "doctor",
    cls=GroupedCommand,
    short_help="Look at what is installed and at this machine.",
    epilog=options.examples("remat doctor", "remat doctor -v"),
)
@options.common_options
def doctor_command(**flags: Any) -> int:
    """Look at versions, devices, caches, kernels and memory, and say what to do next."""
    config, printing = settings(flags)
    from remat_cli.commands import doctor as story

    return run(printing, lambda progress: story.diagnose(config.cache_dir))
