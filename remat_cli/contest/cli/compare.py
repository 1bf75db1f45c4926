"""`remat compare`: every solver on one problem."""

from pathlib import Path
from typing import Any

import click

from remat_cli.cli import options
from remat_cli.cli.grouped import GroupedCommand
from remat_cli.cli.session import run, settings


@click.command(
    "compare",
    cls=GroupedCommand,
    short_help="Compare all solvers on one model or instance.",
    epilog=options.examples(
        "remat compare unet.train.onnx",
        "remat compare graph.json --budgets 90%,70% --solvers auto,rotor,checkmate --time-limit 30s --svg graph.svg",
        "remat compare graph.json --spill host:12GB/s --solvers auto,paging,pofo,rotor",
    ),
)
@click.argument("file", type=options.INPUT_FILE, metavar="MODEL|INSTANCE.json")
@click.option("--budgets", metavar="B,B,...", help="Budgets to compare at, each as --budget takes it. [0.9,0.8,0.7]")
@options.budget_scope_option
@click.option("--solvers", metavar="NAME,...", help="Only these of `remat solvers`. [all that take the problem]")
@click.option("--option", "options", multiple=True, metavar="SOLVER.K=V", help="Option of a solver; may be repeated.")
@options.order_option
@click.option("--time-limit", metavar="T", help="Stop each run after 30s, 2m or 500ms. [4s]")
@options.gap_option
@click.option("--svg", type=options.SVG_FILE, metavar="FILE", help="Draw overhead against budget, one line per solver.")
@options.force_option
@options.device_option
@options.spill_option
@options.model_options
@options.common_options
def compare_command(file: Path, budgets: str | None, solvers: str | None, **flags: Any) -> int:
    """Run every solver on the same problem, at several budgets, and tabulate what each reaches.

    Each run has a process of its own; --threads says how many there are at once. Solvers that do not take the problem
    are listed with their reason. Ops stay whole. With --spill those that page stand beside those that do not. The first
    Ctrl-C prints what had ended.
    """
    from remat_cli.contest.comparison import SECONDS, compare_request, refuse_model_flags

    refuse_model_flags(file, flags)
    config, printing = settings(flags, {"time_limit": SECONDS})
    request = compare_request(file, budgets, solvers, config)

    from remat_cli.contest.commands import compare as story

    return run(printing, lambda progress: story.compare(request, config, progress))
