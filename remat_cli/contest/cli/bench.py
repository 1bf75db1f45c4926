"""`remat bench`: solvers on instances, one line per run in a file, tables and pictures from that file."""

from pathlib import Path
from typing import Any

import click

from remat_cli.cli import options
from remat_cli.cli.grouped import GroupedCommand
from remat_cli.cli.session import run, settings

OWN = frozenset({"output", "resume", "only", "time_limit", "markdown", "svg"})  # flags that are no settings


@click.command(
    "bench",
    cls=GroupedCommand,
    short_help="Compare solvers on benchmark instances.",
    epilog=options.examples(
        "remat bench configs/bench/quick.yaml -o quick.jsonl",
        "remat bench configs/bench/solvers.yaml -o solvers.jsonl --resume --only tight",
        "remat bench solvers.jsonl --markdown solvers.md --svg plots",
    ),
)
@click.argument("file", type=options.INPUT_FILE, metavar="BENCH.yaml|RESULTS.jsonl")
@click.option("-o", "--output", type=options.FILE, metavar="RESULTS.jsonl", help="Where runs go. [BENCH.jsonl here]")
@click.option("--resume", is_flag=True, help="Go on with RESULTS.jsonl: runs that it holds are not run again.")
@click.option("--only", multiple=True, metavar="SUITE", help="Only this suite; may be repeated.")
@click.option("--time-limit", metavar="T", help="Time limit of every run, whatever the file says.")
@click.option("--markdown", type=options.FILE, metavar="FILE", help="Write the tables here too.")
@click.option("--svg", type=options.FILE, metavar="DIR", help="Draw overhead and bound against time in this folder.")
@options.force_option
@options.common_options
def bench_command(file: Path, **flags: Any) -> int:
    """Run the solvers that BENCH.yaml names and tabulate the runs; with RESULTS.jsonl, tabulate what was run before.

    Each run has a process of its own, and is in the results file as soon as it ends. Ctrl-C keeps the file; --resume
    goes on with it. --seed and --threads hold for all suites.
    """
    from remat_cli.contest.bench_request import bench_request

    request = bench_request(file, flags)
    _, printing = settings({name: value for name, value in flags.items() if name not in OWN})
    from remat_cli.contest.commands import bench as story

    return run(printing, lambda progress: story.bench(request, progress))
