"""Pipelines of the networks that MadPipe was judged on: each method beside the bound, and beside PipeDream's cuts.

`python -m bench.pipelines` adds the rows that are missing to pipelines.jsonl; `--write` makes pipelines.md of them.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bench.pipeline_networks import NETWORKS
from bench.pipelines_report import page
from bench.pipelines_run import rows as run_rows
from remat_cli.pipelines.plan.chain import PipelineChain
from remat_cli.pipelines.solve.bounds import period_bound
from remat_cli.pipelines.solve.contiguous import best_contiguous
from remat_cli.pipelines.solve.integer_program import ProgramEffort
from remat_cli.pipelines.solve.joint import best_joint, segment_curve
from remat_cli.pipelines.solve.madpipe import madpipe
from remat_cli.pipelines.solve.pipedream import pipedream_1f1b_star

RESULTS = Path(__file__).parent / "results"
ROWS, PAGE = RESULTS / "pipelines.jsonl", RESULTS / "pipelines.md"
LINKS, DEVICES, MEMORIES = (12, 24), (2, 4, 8), (3, 6, 10, 16)
SECONDS = 60.0


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


def cases() -> Iterator[tuple[str, int, int, int]]:
    """The whole grid: network, GB/s, devices, GB."""
    for network in NETWORKS:
        for link in LINKS:
            for devices in DEVICES:
                for memory in MEMORIES:
                    yield network, link, devices, memory


def measured(case: tuple[str, int, int, int], limit: float) -> PipelineRow:
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


def read_rows() -> list[PipelineRow]:
    """What was measured."""
    if not ROWS.exists():
        return []
    return [msgspec.json.decode(line, type=PipelineRow) for line in ROWS.read_bytes().splitlines()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write pipelines.md from the rows that there are")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit of MadPipe per case")
    parser.add_argument("--budget", type=float, default=math.inf, help="stop after so many seconds")
    asked = parser.parse_args(arguments)
    if asked.write:
        PAGE.write_text(page([msgspec.structs.asdict(row) for row in read_rows()], run_rows()), encoding="utf-8")
        return
    known = {(row.network, row.link, row.devices, row.memory) for row in read_rows()}
    begin = time.monotonic()
    _planned("madpipe", NETWORKS["ResNet-50"]().chain(12), (2, 10 * 10**9), 1.0)  # compiles the kernels
    for case in cases():
        if case in known or time.monotonic() - begin > asked.budget:
            continue
        row = measured(case, asked.seconds)
        with ROWS.open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")


if __name__ == "__main__":
    main()
