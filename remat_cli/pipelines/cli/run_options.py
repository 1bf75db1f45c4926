"""Options of `remat run` for a schedule of stages, by the word that each sets; None or empty where it is not given."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from remat_cli.cli.options import FILE

OPTIONS: Mapping[str, Callable[[Any], Any]] = {
    "local": click.option(
        "--local", is_flag=True, default=None, help="Run a schedule's stages one after another in this process."
    ),
    "address": click.option(
        "--address", metavar="HOST:PORT", help="The Ray cluster to run a schedule on. [one of this machine]"
    ),
    "resource": click.option(
        "--resource", multiple=True, metavar="NAME=N", help="What each actor takes of the cluster: gpu=1."
    ),
    "steps": click.option(
        "--steps", type=int, metavar="N", help="Updates of a training step, or rounds of micro-batches. [1]"
    ),
    "micro_batches": click.option(
        "--micro-batches", type=int, metavar="N", help="Micro-batches per update. [as planned]"
    ),
    "flush": click.option(
        "--flush/--no-flush",
        default=None,
        help="Let a pipeline run empty before each update; without it updates come one late. [yes]",
    ),
    "learning_rate": click.option("--learning-rate", type=float, metavar="X", help="How far updates go. [0.001]"),
    "state": click.option(
        "--state", type=FILE, metavar="DIR", help="Save a pipeline's state here. [only if a stage is lost]"
    ),
    "resume": click.option("--resume", is_flag=True, default=None, help="Go on from the state that was saved."),
    "intra_op_threads": click.option(
        "--intra-op-threads", type=int, metavar="N", help="Threads of each stage's sessions; 0: the runtime's. [0]"
    ),
}
