"""`remat run`: run a plan, on one device or several."""

from pathlib import Path
from typing import Any

import click

from remat_cli.cli import options
from remat_cli.cli.session import run, settings


@click.command(
    "run",
    short_help="Run a plan and compare it with what was planned.",
    epilog=options.examples(
        "remat run unet.plan.json", "remat run unet.plan.json --input x.npz --output y.npz --trace run.json"
    ),
)
@click.argument("plan_path", type=options.INPUT_FILE, metavar="PLAN.json")
@click.option("--input", "inputs", type=options.FILE, metavar="FILE.npz", help="Inputs by name. [seeded random ones]")
@click.option("--output", "output", type=options.FILE, metavar="FILE.npz", help="Write the outputs here.")
@click.option("--repeat", type=int, default=5, metavar="N", help="Runs to time, after one to warm up. [5]")
@click.option("--trace", type=options.FILE, metavar="FILE.json", help="Write a trace for ui.perfetto.dev here.")
@click.option(
    "--enforce-budget", "is_capped", is_flag=True, help="Let the runtime take no more than each budget while timed."
)
@click.option("--work-dir", type=options.FILE, metavar="DIR", help="Keep intermediate files here while it runs.")
@options.run_limit_option
@options.force_option
@options.common_options
def run_command(plan_path: Path, repeat: int, trace: Path | None, is_capped: bool, **flags: Any) -> int:
    """Run PLAN.json: time and peak memory of every device, planned beside measured.

    The plan runs on the devices that it names, and on no others. Memory is seen in one run of its own.
    """
    config, printing = settings(flags)
    from remat_cli.commands import run as story

    asked = story.RunOptions(repeat, trace, is_capped)
    return run(printing, lambda progress: story.run_plan(plan_path, asked, config, progress))
