"""`remat profile`: what each op of a model costs on each device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from remat_cli.cli import options
from remat_cli.cli.session import run, settings

if TYPE_CHECKING:
    from remat_cli.base.progress import Progress
    from remat_cli.report.report import CacheReport, ProfileReport
    from remat_cli.settings.settings import Settings


@click.command(
    "profile",
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
    config = settings(flags)
    if clear_cache and model is None:
        return run(config, _clear)
    if model is None:
        raise click.UsageError("Missing argument 'MODEL'.", click.get_current_context())
    from remat_cli.base.files import check_target

    if config.output is not None:
        check_target(config.output, sources=(model,), overwrite=config.force)
    if clear_cache:
        _clear(config)
    return run(config, lambda config, progress: _profile(model, config, progress))


def _clear(config: Settings, progress: Progress | None = None) -> CacheReport:
    """Empty the cache; needs no progress, it is done at once."""
    from remat_cli.commands import profile as story

    return story.clear_profile_cache(config)


def _profile(model: Path, config: Settings, progress: Progress) -> ProfileReport:
    """Measure, and write what JSON output would show to the file that was asked for."""
    from remat_cli.base.files import atomic_write
    from remat_cli.commands import profile as story
    from remat_cli.report import render
    from remat_cli.report.style import Style

    report = story.profile_ops(model, config, progress)
    if config.output is not None:
        report = msgspec.structs.replace(report, output=str(config.output))
        atomic_write(config.output, render(report, "json", Style()).encode())
    return report
