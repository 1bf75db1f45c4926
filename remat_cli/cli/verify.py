"""`remat verify`: does a rewritten model keep its promises?"""

from pathlib import Path
from typing import Any

import click

from remat_cli.cli import options
from remat_cli.cli.session import run, settings


@click.command(
    "verify",
    cls=options.VerifyCommand,
    short_help="Check that a rewritten model keeps its promises.",
    epilog=options.examples(
        "remat verify unet.plan.json",
        "remat verify unet.plan.json --svg process.svg",
        "remat verify unet.remat.onnx --original unet.onnx",
    ),
)
@click.argument("file", type=options.INPUT_FILE, metavar="PLAN.json|FILE.onnx")
@click.option(
    "--original",
    type=options.INPUT_FILE,
    metavar="MODEL",
    help="The model that FILE.onnx was made from, to verify the file without its plan.",
)
@click.option("--svg", type=options.SVG_FILE, metavar="FILE", help="Write a picture of both processes over time here.")
@options.force_option
@options.model_options
@options.verify_options
@options.common_options
def verify_command(file: Path, original: Path | None, **flags: Any) -> int:
    """Run the original and the rewritten model in fresh processes; compare outputs, order and memory.

    Of a PLAN.json with what the plan promises. Of a FILE.onnx that was compiled, with what it says of itself and with
    the --original, as they are here: on another version of ONNX Runtime, or another machine.
    """
    config, printing = settings(flags)
    from remat_cli.commands import verify as story

    return run(printing, lambda progress: story.verify(file, original, config, progress))
