"""`remat sweep`: one model at many budgets and batches."""

from pathlib import Path
from typing import Any

import click

from remat_cli.cli import options
from remat_cli.cli.session import run, settings

BUDGETS = "20..100%"


@click.command(
    "sweep",
    cls=options.VerifyCommand,
    short_help="Draw what every budget costs: memory against time.",
    epilog=options.examples(
        "remat sweep unet.onnx",
        "remat sweep unet.onnx --budgets 25..90%:5 --svg unet.svg",
        "remat sweep bert.onnx --budgets 80%,50%,min --batch 1..64 --executor ray",
    ),
)
@click.argument("model", type=options.INPUT_FILE)
@click.option(
    "--budgets", default=BUDGETS, metavar="B", help=f"20..100% in steps of 10 %, :5 for others; or a list. [{BUDGETS}]"
)
@click.option("--batch", metavar="N", help="Batches too: 1..64, doubling, or 1,8,24.")
@click.option(
    "--executor",
    default="local",
    metavar="WHO",
    help="local, ray, or module:factory of a concurrent.futures.Executor. [local]",
)
@click.option("--resume", is_flag=True, help="Keep the rows of the results file, and find those that are missing.")
@click.option("-o", "--output", type=options.FILE, metavar="FILE.jsonl", help="The rows. [MODEL.sweep.jsonl]")
@click.option("--svg", type=options.SVG_FILE, metavar="FILE", help="Draw time against memory, a line for each batch.")
@options.force_option
@options.max_overhead_option
@options.split_options
@options.compile_solver_options
@options.model_options
@options.compile_verify_options
@options.common_options
def sweep_command(model: Path, budgets: str, batch: str | None, executor: str, resume: bool, **flags: Any) -> int:
    """Compile MODEL at many budgets, and tabulate the memory and the time of each plan.

    Each case has a process of its own, and rows come as they are found: the first Ctrl-C keeps what there is, and
    --resume goes on. What one case finds helps the next. No model is written: `remat compile` at a budget of the table
    then takes moments.
    """
    from remat_cli.contest.commands import sweep as story

    config, printing = settings(flags, story.DEFAULTS)
    request = story.sweep_request(model, budgets, batch, executor, config, is_resumed=resume)
    return run(printing, lambda progress: story.sweep(request, config, progress))
