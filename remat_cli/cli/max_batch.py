"""`remat max-batch`: the largest batch to train with in a budget."""

from pathlib import Path
from typing import Any

import click

from remat_cli.cli import options
from remat_cli.cli.grouped import GroupedCommand
from remat_cli.cli.session import run, settings


@click.command(
    "max-batch",
    cls=GroupedCommand,
    short_help="The largest batch whose training step fits.",
    epilog=options.examples("remat max-batch resnet.onnx --loss cross-entropy --budget 2GiB --optimizer adam"),
)
@click.argument("model", type=options.INPUT_FILE)
@options.train_options
@options.budget_options
@options.device_option
@options.split_options
@options.solver_options
@options.model_options
@options.common_options
def max_batch_command(model: Path, **flags: Any) -> int:
    """Find the largest batch whose training step fits a budget with at most one forward pass computed again.

    Memory and time are measured for every batch that is tried, and each answer is a judged plan.
    """
    from remat_cli.settings.keywords import with_train
    from remat_cli.settings.settings import require_budget
    from remat_cli.settings.train import check_train

    config, printing = settings(with_train(flags))
    check_train(config.train)
    require_budget(config)
    from remat_cli.commands import max_batch as story

    return run(printing, lambda progress: story.find_max_batch(model, config, progress))
