"""`remat partition`: a model in stages for several devices."""

from pathlib import Path
from typing import Any

import click

from remat_cli.cli import options
from remat_cli.cli.grouped import GroupedCommand
from remat_cli.cli.session import run, settings


@click.command(
    "partition",
    cls=GroupedCommand,
    short_help="Cut a model into stages for several devices.",
    epilog=options.examples(
        "remat partition unet.onnx --devices 2 --memory 64MiB",
        "remat partition gpt.train.onnx --devices 4 --memory 2GiB --micro-batches 8 --link 12GB/s",
    ),
)
@click.argument("model", type=options.INPUT_FILE)
@click.option("--devices", "count", required=True, metavar="N", help="How many devices, all alike.")
@click.option("--memory", required=True, metavar="B", help="Memory of each: 2GiB, 512MiB.")
@click.option("--micro-batches", type=int, default=8, metavar="N", help="Micro-batches per update. [8]")
@click.option("--link", default="12GB/s", metavar="R", help="What a link moves: 12GB/s, 10Gbit/s. [12GB/s]")
@click.option(
    "--method",
    type=click.Choice(["auto", "1f1b-star", "madpipe", "pipeline-ilp", "pipedream", "joint"]),
    default="auto",
    help="How to plan. [auto]",
)
@click.option("--time-limit", metavar="T", help="Stop planning after 30s, 2m or 500ms. [30s]")
@click.option("-o", "--output", type=options.FILE, metavar="FOLDER", help="Where stages go. [MODEL.stages]")
@click.option(
    "--svg", type=options.SVG_FILE, metavar="FILE.svg", help="Draw a period and the memory of each device here."
)
@options.force_option
@options.model_options
@options.common_options
def partition_command(model: Path, **flags: Any) -> int:
    """Cut MODEL into stages for several devices, so that each keeps to its memory and the slowest is fast.

    MODEL is a forward model or a training step of `remat train`. Stages are ONNX files, schedule.json says when each
    runs; `remat run FOLDER/schedule.json` runs them.
    """
    from remat_cli.pipelines.commands.asked import partition_request

    asked = [flags.pop(name) for name in ("count", "memory", "link", "micro_batches", "method")]
    request = partition_request(*asked)
    config, printing = settings(flags)
    from remat_cli.pipelines.commands import partition as story

    return run(printing, lambda progress: story.partition_model(model, request, config, progress))
