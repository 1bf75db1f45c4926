"""`remat run`: run a plan on one device or several, or the stages of a pipeline."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from remat_cli.base.named import named
from remat_cli.cli import options
from remat_cli.cli.grouped import GroupedCommand
from remat_cli.cli.session import run, settings

MORE_OPTIONS: Mapping[str, str] = {
    "remat-pipeline": "remat_cli.pipelines.cli.run_options:OPTIONS",
}
"""Formats of files that are no plans -> options for them, by the word that each sets."""
OF_WINGS: Mapping[str, Callable[[Any], Any]] = {
    word: option for row in MORE_OPTIONS.values() for word, option in named(row).items()
}
WORDS = ("repeat", "trace", "enforce_budget")
"""Words of `run` that are no settings; None or empty where they are not given, as those of `OF_WINGS` are."""


@click.command(
    "run",
    cls=GroupedCommand,
    short_help="Run a plan or a pipeline and compare it with what was planned.",
    epilog=options.examples(
        "remat run unet.plan.json",
        "remat run unet.plan.json --input x.npz --output y.npz --trace run.json",
        "remat run gpt.train.stages/schedule.json --local --steps 20 --learning-rate 0.01",
    ),
)
@click.argument("plan_path", type=options.INPUT_FILE, metavar="FILE.json")
@click.option("--input", "inputs", type=options.FILE, metavar="FILE.npz", help="Inputs by name. [seeded random ones]")
@click.option("--output", "output", type=options.FILE, metavar="FILE.npz", help="Write the outputs here.")
@click.option("--repeat", type=int, metavar="N", help="Runs of a plan to time, after one to warm up. [5]")
@click.option("--trace", type=options.FILE, metavar="FILE.json", help="Write a trace for ui.perfetto.dev here.")
@click.option(
    "--enforce-budget",
    is_flag=True,
    default=None,
    help="Let the runtime take no more than each budget while timed.",
)
@options.group(*OF_WINGS.values())
@click.option("--work-dir", type=options.FILE, metavar="DIR", help="Keep intermediate files here while it runs.")
@options.run_limit_option
@options.force_option
@options.common_options
def run_command(plan_path: Path, **flags: Any) -> int:
    """Run FILE.json: a plan of `remat compile`, or the schedule.json of `remat partition`.

    A plan runs on the devices that it names, and on no others: time and peak memory of each, planned beside measured.
    A schedule runs on a Ray cluster, an actor per device, or with --local one stage after another in this process.
    """
    asked = {name: flags.pop(name) for name in (*WORDS, *OF_WINGS)}
    config, printing = settings(flags)
    from remat_cli.commands.run import ready_run

    running = ready_run(plan_path, asked)
    return run(printing, lambda progress: running(config, progress))
