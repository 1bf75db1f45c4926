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
        "remat verify unet.plan.json --on python3",
    ),
)
@click.argument("file", type=options.INPUT_FILE, required=False, metavar="PLAN.json|FILE.onnx")
@click.option(
    "--original",
    type=options.INPUT_FILE,
    metavar="MODEL",
    help="The model that FILE.onnx was made from, to verify the file without its plan.",
)
@click.option(
    "--on",
    "places",
    multiple=True,
    metavar="COMMAND",
    help="Verify the file where COMMAND starts a Python with numpy and onnxruntime: another environment, 'ssh HOST "
    "python3', an emulator, 'docker exec -i BOX python3'. Files are sent through its standard input, and removed "
    "there. May be repeated.",
)
@click.option("--keep", "keeps_files", is_flag=True, help="With --on: files stay there, and are not sent again.")
@click.option(
    "--script", "is_script", is_flag=True, help="Print a Python program that verifies a file where remat is not."
)
@click.option("--svg", type=options.SVG_FILE, metavar="FILE", help="Write a picture of both processes over time here.")
@click.option("--trace", type=options.FILE, metavar="FILE.json", help="Write a trace for ui.perfetto.dev here.")
@options.force_option
@options.model_options
@options.verify_options
@options.common_options
def verify_command(
    file: Path | None,
    original: Path | None,
    places: tuple[str, ...],
    keeps_files: bool,
    is_script: bool,
    **flags: Any,
) -> int:
    """Run the original and the rewritten model in fresh processes; compare outputs, order and memory.

    Of a PLAN.json with what the plan promises. Of a FILE.onnx that was compiled, with what it says of itself and with
    the --original, as they are here: on another version of ONNX Runtime, or another machine. With --on all that is done
    elsewhere, by a program that needs nothing but numpy and onnxruntime; a plan keeps what was found there.
    """
    config, printing = settings(flags)
    from remat_cli.commands import verify as story

    if is_script:
        if file is not None or original is not None or places:
            raise click.UsageError("--script prints a program, which is told the files when it runs: give it alone")
        click.echo(story.script(), nl=False)
        return 0
    if file is None:
        raise click.UsageError("Missing argument 'PLAN.json|FILE.onnx'.")
    if keeps_files and not places:
        raise click.UsageError("--keep is for files that --on sends somewhere: give --on COMMAND too")
    if places:
        return run(printing, lambda progress: story.verify_on(file, original, (places, keeps_files), config, progress))
    return run(printing, lambda progress: story.verify(file, original, config, progress))
