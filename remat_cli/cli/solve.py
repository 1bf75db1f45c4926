"""`remat solve`: an abstract benchmark instance, without ONNX."""

from pathlib import Path
from typing import Any

import click

from remat_cli.cli import options
from remat_cli.cli.grouped import GroupedCommand
from remat_cli.cli.session import run, settings


@click.command(
    "solve",
    cls=GroupedCommand,
    short_help="Solve an abstract benchmark instance.",
    epilog=options.examples(
        "remat solve graph.json --budget 0.8 --solver moccasin --order keep --time-limit 2m",
        "remat solve graph.json --budget 0.5 --solver pofo --spill host:12GB/s",
    ),
)
@click.argument("instance", type=options.INPUT_FILE, metavar="INSTANCE.json")
@options.budget_options
@options.max_overhead_option
@options.solver_options
@options.spill_option
@options.common_options
def solve_command(instance: Path, **flags: Any) -> int:
    """Solve INSTANCE.json, a graph of nodes with cost and memory and of edges, within a budget.

    With --spill host:RATE values may wait behind a link of that bandwidth; costs then count as nanoseconds.
    """
    from remat_cli.settings.settings import require_budget

    config, printing = settings(flags)
    require_budget(config)
    from remat_cli.commands import solve as story

    return run(printing, lambda progress: story.solve_instance(instance, config, progress))
