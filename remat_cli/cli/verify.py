"""`remat verify`: does a rewritten model keep its plan's promises?"""

from pathlib import Path
from typing import Any

import click

from remat_cli.cli import options
from remat_cli.cli.session import run, settings


@click.command(
    "verify",
    cls=options.VerifyCommand,
    short_help="Check that a rewritten model keeps its plan's promises.",
    epilog=options.examples("remat verify unet.plan.json", "remat verify unet.plan.json --svg process.svg"),
)
@click.argument("plan_path", type=options.INPUT_FILE, metavar="PLAN.json")
@click.option("--svg", type=options.FILE, metavar="FILE", help="Write a picture of both processes over time here.")
@options.force_option
@options.model_options
@options.verify_options
@options.common_options
def verify_command(plan_path: Path, **flags: Any) -> int:
    """Run the original and the rewritten model of PLAN.json in fresh processes; compare outputs, order and memory."""
    config, printing = settings(flags)
    from remat_cli.commands import verify as story

    return run(printing, lambda progress: story.verify_plan(plan_path, config, progress))
