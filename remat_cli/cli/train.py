"""`remat train`: a forward model in, a training step out, within a budget if one is given."""

from pathlib import Path
from typing import Any

import click

from remat_cli.cli import options
from remat_cli.cli.session import run, settings


@click.command(
    "train",
    cls=options.VerifyCommand,
    short_help="Make a training step from a forward model.",
    epilog=options.examples(
        "remat train resnet.onnx --loss cross-entropy --optimizer adam --batch 32",
        "remat train unet.onnx --loss dice --budget 50%",
        "remat train model.onnx --loss-output loss --gradients-only -o gradients.onnx",
    ),
)
@click.argument("model", type=options.INPUT_FILE)
@options.train_options
@options.budget_options
@options.max_overhead_option
@click.option("-o", "--output", type=options.FILE, metavar="STEP.onnx", help="The step. [MODEL.train.onnx]")
@options.force_option
@options.device_option
@options.split_options
@options.solver_options
@options.model_options
@options.compile_verify_options
@options.common_options
def train_command(model: Path, **flags: Any) -> int:
    """Write the training step of MODEL: forward, loss, backward and update in standard ops of stock ONNX Runtime.

    The step's outputs NAME.next are its inputs NAME of the next step; their first values are in STEP.state.npz. With
    --budget the step is also compiled to stay within it.
    """
    from remat_cli.settings.keywords import with_train
    from remat_cli.settings.train import check_train, step_paths

    config, printing = settings(with_train(flags))
    check_train(config.train)
    step_paths(model, config.output, config.force)
    from remat_cli.commands import train as story

    return run(printing, lambda progress: story.train_model(model, config, progress))
