"""`remat inspect`: where the memory of a model or a plan goes."""

from pathlib import Path
from typing import Any

import click

from remat_cli.cli import options
from remat_cli.cli.grouped import GroupedCommand
from remat_cli.cli.session import run, settings


@click.command(
    "inspect",
    cls=GroupedCommand,
    short_help="Show where the memory of a model or a plan goes.",
    epilog=options.examples("remat inspect unet.onnx --budget 80%", "remat inspect unet.plan.json --svg memory.svg"),
)
@click.argument("file", type=options.INPUT_FILE)
@options.budget_options
@options.max_overhead_option
@options.split_options
@click.option("--svg", type=options.SVG_FILE, metavar="FILE", help="Write the picture of memory over time here too.")
@click.option(
    "--overlay",
    type=options.EndingFile(".json"),
    metavar="FILE.json",
    help="Write live memory, time and repeats of each node for model-explorer: FILE.live.json, FILE.time.json, "
    "FILE.repeats.json.",
)
@options.force_option
@options.device_option
@options.model_options
@options.common_options
def inspect_command(file: Path, **flags: Any) -> int:
    """Show where the memory of FILE, a model or a plan, goes: peak, what is alive there, memory over time."""
    config, printing = settings(flags)
    from remat_cli.commands import inspect as story
    from remat_cli.commands.asked import refuse_idle

    refuse_idle(file, flags, config)
    return run(printing, lambda progress: story.inspect_file(file, config, progress))
