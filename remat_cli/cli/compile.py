"""`remat compile`: a model and a budget in, a model that fits and its plan out."""

from pathlib import Path
from typing import Any

import click

from remat_cli.cli import options
from remat_cli.cli.session import run, settings


@click.command(
    "compile",
    cls=options.VerifyCommand,
    short_help="Rewrite a model to fit a memory budget, and prove it.",
    epilog=options.examples(
        "remat compile unet.onnx --budget 80%",
        "remat compile unet.onnx --budget min --max-overhead 10% --split max -o unet-least.onnx",
        "remat compile bert.onnx --budget 512MiB --dim batch=8 -o bert-small.onnx",
        "remat compile unet.onnx --budget 80% --target here,arm64,wasm --force",
    ),
)
@click.argument("model", type=options.INPUT_FILE)
@options.budget_options
@options.max_overhead_option
@options.split_options
@click.option("-o", "--output", type=options.MODEL_FILE, metavar="OUT.onnx", help="The new model. [MODEL.remat.onnx]")
@click.option("--plan", type=options.FILE, metavar="PLAN.json", help="The plan. [beside the new model]")
@options.writing_options
@options.force_option
@options.placement_options
@options.compile_solver_options
@options.model_options
@options.compile_verify_options
@options.common_options
def compile_command(model: Path, **flags: Any) -> int:
    """Rewrite MODEL so that it runs within a memory budget, at the least extra time, and prove it by running both.

    While it searches, `incumbent` is what the best plan so far costs in time, `bound` what is proved of any other.
    """
    from remat_cli.settings.settings import require_budget
    from remat_cli.settings.targets import settings_by_target

    config, printing = settings(flags)
    require_budget(config)
    settings_by_target(model, config)
    from remat_cli.commands import compile as story

    work = story.compile_model if len(config.targets) == 1 else story.compile_targets
    return run(printing, lambda progress: work(model, config, progress))
