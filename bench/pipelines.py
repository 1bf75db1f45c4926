"""Pipelines of the networks that MadPipe was judged on: each method beside the bound, and beside PipeDream's cuts.

`python -m bench.pipelines` adds the rows that are missing to pipelines.jsonl; `--write` makes pipelines.md of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

import click
import msgspec

from bench.bench import Bench, Case, Key, Shard, shard_option
from bench.compiling import Row
from bench.pipeline_networks import NETWORKS
from bench.pipelines_report import page
from bench.pipelines_run import BENCH as RUNS
from remat_cli.pipelines.plan.chain import PipelineChain
from remat_cli.pipelines.solve.bounds import period_bound
from remat_cli.pipelines.solve.contiguous import best_contiguous
from remat_cli.pipelines.solve.integer_program import ProgramEffort
from remat_cli.pipelines.solve.joint import best_joint, segment_curve
from remat_cli.pipelines.solve.madpipe import madpipe
from remat_cli.pipelines.solve.pipedream import pipedream_1f1b_star

LINKS, DEVICES, MEMORIES = (12, 24), (2, 4, 8), (3, 6, 10, 16)
SECONDS = 60.0


PipelineCase = tuple[str, int, int, int]
"""Network, GB/s, devices, GB."""


class PipelineRow(msgspec.Struct, frozen=True):
    """Periods of one case in nanoseconds, None where nothing was found, and seconds of planning, by method."""

    network: str
    link: int
    devices: int
    memory: int
    bound: float
    periods: dict[str, int | None]
    seconds: dict[str, float]
    madpipe_bound: int | None


def cases() -> Iterator[PipelineCase]:
    """The whole grid."""
    for network in NETWORKS:
        for link in LINKS:
            for devices in DEVICES:
                for memory in MEMORIES:
                    yield network, link, devices, memory


def measured(case: PipelineCase, limit: float) -> PipelineRow:
    """Every method on one case, one core."""
    network, link, devices, memory = case
    chain = NETWORKS[network]().chain(link)
    size = memory * 10**9
    periods: dict[str, int | None] = {}
    seconds: dict[str, float] = {}
    bound: int | None = None
    for method in ("pipedream", "1f1b-star", "madpipe", "joint"):
        begin = time.monotonic()
        periods[method], proved = _planned(method, chain, (devices, size), limit)
        seconds[method] = time.monotonic() - begin
        bound = proved if method == "madpipe" else bound
    return PipelineRow(network, link, devices, memory, float(period_bound(chain, devices)), periods, seconds, bound)


def _planned(
    method: str, chain: PipelineChain, limits: tuple[int, int], seconds: float
) -> tuple[int | None, int | None]:
    """The period, and a lower bound among schedules of the method's kind."""
    devices, memory = limits
    if method == "pipedream":
        plan = pipedream_1f1b_star(chain, devices, memory)
        return (plan.period if plan else None), None
    if method == "1f1b-star":
        best = best_contiguous(chain, devices, memory)
        return (best.period if best else None), None
    if method == "madpipe":
        found = madpipe(chain, devices, memory, ProgramEffort(seconds=seconds, workers=1))
        return (found.schedule.period if found.schedule else None), found.bound
    joint = best_joint(chain, devices, memory, segment_curve(chain))
    return (joint.period if joint else None), None


@click.command()
@click.option("--seconds", default=SECONDS, show_default=True, help="Limit of MadPipe per case.")
@click.option("--budget", default=math.inf, help="Stop after so many seconds.")
@click.option("--write", is_flag=True, help="Write pipelines.md from the rows that there are.")
@shard_option
def main(seconds: float, budget: float, write: bool, shard: Shard) -> None:
    """Measure what is missing, or write the page."""
    if write:
        BENCH.write()
        return
    end = time.monotonic() + budget
    _planned("madpipe", NETWORKS["ResNet-50"]().chain(12), (2, 10 * 10**9), 1.0)  # compiles the kernels

    def found(case: PipelineCase, keys: Sequence[Key]) -> Iterator[Row]:
        if time.monotonic() < end:
            yield msgspec.to_builtins(measured(case, seconds))

    BENCH.run((Case(case, [case]) for case in cases()), found, shard=shard)


def _told(row: Row) -> str:
    return f"{row['network']} {row['link']} GB/s {row['devices']} devices {row['memory']} GB: {row['periods']}"


BENCH = Bench("pipelines", ("network", "link", "devices", "memory"), lambda rows: page(rows, RUNS.rows()), _told)

if __name__ == "__main__":
    main()
