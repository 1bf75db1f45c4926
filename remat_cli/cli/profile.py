"""`remat profile`: what each op of a model costs on each device."""

from pathlib import Path
from typing import Any

import click

from remat_cli.cli import options
from remat_cli.cli.grouped import GroupedCommand
from remat_cli.cli.session import run, settings


@click.command(
    "profile",
    cls=GroupedCommand,
    short_help="Measure what each op of a model costs.",
    epilog=options.examples("remat profile unet.onnx -o unet.profile.json", "remat profile --clear-cache"),
)
@click.argument("model", type=options.INPUT_FILE, required=False)
@options.devices_options
@click.option("-o", "--output", type=options.FILE, metavar="PROFILE.json", help="Write the figures here too.")
@options.force_option
@options.model_options
@click.option("--clear-cache", is_flag=True, help="Forget all cached measurements first.")
@options.common_options
def profile_command(model: Path | None, clear_cache: bool, **flags: Any) -> int:
    """Measure the time, workspace and tensor sizes of each op of MODEL; results are cached for later commands."""
    config, printing = settings(flags)
    if model is None and not clear_cache:
        raise click.UsageError("Missing argument 'MODEL'.", click.get_current_context())
    from remat_cli.commands import profile as story

    if model is None:
        return run(printing, lambda progress: story.clear_profile_cache(config))
    measure = story.profile_afresh if clear_cache else story.profile_ops
    return run(printing, lambda progress: measure(model, config, progress))
