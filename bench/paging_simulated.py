"""Networks of Shilova 2021 on a V100 with a link of 12 GB/s, planned and judged, not run: who is faster when.

`python -m bench.paging_simulated` adds the rows that are missing to paging_simulated.jsonl; `--write` makes the page
and pictures of them. Every method has the same time on one core.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import click
import msgspec

from bench.bench import Bench, Key, Shard, shard_option
from bench.bench import Case as Wanted
from bench.compiling import RESULTS, Row
from bench.paging_networks import NETWORKS
from bench.paging_simulated_report import page, pictures
from remat_cli.compiling.page_answer import abstract_terms, answer_paged
from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.spill import HOST, SpillSpec
from remat_cli.solvers import make_pager, make_solver, run_solver
from remat_cli.solvers._warmup import load_kernels
from remat_cli.solvers.base import Limits
from remat_cli.solvers.least_budget import KERNELS
from remat_cli.solvers.paging.fluid import fluid_bounds
from remat_cli.solvers.paging.hot import cut_bound
from remat_cli.solvers.paging.plan_steps import plan_steps
from remat_cli.solvers.paging.question import PagingQuestion
from remat_cli.solvers.published._pofo.pofo_proposals import KERNELS as POFO_KERNELS

PICTURES = RESULTS / "paging"
RATE = 12
DIVISORS = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0)
SWEEP_RATES, SWEEP_DIVISORS, SWEEP_NETWORKS = (6, 12, 24, 48), (2.0, 4.0), ("ResNet-50",)
METHODS = ("recompute", "rotor", "paging", "pofo", "auto")
FEW_OPS = 150  # with so few, the bound is that of a linear program
BOUND_SECONDS = 60.0


class SimulatedRow(msgspec.Struct, frozen=True):
    """One method on one case; times in ns, 0 bytes moved where nothing pages, no time where no plan was found.

    `volume_ns` is the bound of the thesis for paging alone: all ops, or what is too much out and back; `bound_ns` the
    best that is known for it, in rows of paging alone.
    """

    network: str
    divisor: float
    rate: int
    method: str
    budget_bytes: int
    peak_bytes: int
    compute_ns: int
    volume_ns: int
    time_ns: int | None
    moved_bytes: int
    seconds: float
    limit: float
    best_from: str = ""
    bound_ns: int = 0


class Found(msgspec.Struct, frozen=True):
    """What a method came to: nothing, or a makespan, bytes that move one way, and who proposed it."""

    time_ns: int | None = None
    moved_bytes: int = 0
    best_from: str = ""


Case = tuple[str, float, int]
"""A network, by what its memory is divided, and the link in GB/s."""


def cases() -> Iterator[Case]:
    """All budgets that hold the largest op, with the link of the thesis, then other links."""
    for network in NETWORKS:
        problem = _network(network)
        most = baseline(problem).peak / working_set_floor(problem).bytes[0]
        yield from ((network, divisor, RATE) for divisor in DIVISORS if divisor <= most)
    for network in SWEEP_NETWORKS:
        yield from ((network, divisor, rate) for rate in SWEEP_RATES for divisor in SWEEP_DIVISORS if rate != RATE)


@cache
def _network(name: str) -> Problem:
    return NETWORKS[name]()


def _question(case: Case) -> PagingQuestion:
    """The case as solvers take it."""
    problem = _network(case[0])
    budget = int(baseline(problem).peak / case[1])
    rate = case[2] * 1e9
    host = SpillSpec(memory=HOST, write_bytes_per_second=rate, read_bytes_per_second=rate)
    return abstract_terms(problem, host).question(problem.with_budget(budget))


def measured(case: Case, method: str, seconds: float) -> SimulatedRow:
    """One method on one case."""
    question = _question(case)
    begin = time.monotonic()
    found = FINDERS[method](question, seconds)
    plain = baseline(question.problem)
    excess = max(0, plain.peak - question.problem.memories[0].budget_bytes)
    return SimulatedRow(
        network=case[0],
        divisor=case[1],
        rate=case[2],
        method=method,
        budget_bytes=question.problem.memories[0].budget_bytes,
        peak_bytes=plain.peak,
        compute_ns=plain.time_ns,
        volume_ns=max(plain.time_ns, 2 * excess // case[2]),
        time_ns=found.time_ns,
        moved_bytes=found.moved_bytes,
        seconds=round(time.monotonic() - begin, 2),
        limit=seconds,
        best_from=found.best_from,
        bound_ns=_bound_ns(question) if method == "paging" else 0,
    )


def _bound_ns(question: PagingQuestion) -> int:
    """What no paging of every op once, in their order, is faster than: of a linear program, or of each op's own cut."""
    steps = plan_steps(question.problem, baseline(question.problem), question.memory.link)
    is_small = len(question.problem.ops) <= FEW_OPS
    ticks = fluid_bounds([steps], Limits(seconds=BOUND_SECONDS))[0] if is_small else cut_bound(steps)
    return ticks // question.memory.link.ticks


def _recomputed(name: str) -> Callable[[PagingQuestion, float], Found]:
    def find(question: PagingQuestion, seconds: float) -> Found:
        plan = run_solver(question.problem, make_solver(name), Limits(seconds=seconds)).plan
        return Found() if plan is None else Found(plan.time_ns, 0, name)

    return find


def _paged(name: str) -> Callable[[PagingQuestion, float], Found]:
    def find(question: PagingQuestion, seconds: float) -> Found:
        found = make_pager(name).page(question, Limits(seconds=seconds)).paged
        if found is None:
            return Found()
        return Found(found.paging.time_ns, found.paging.written_bytes, found.paging.best_from)

    return find


def _best(question: PagingQuestion, seconds: float) -> Found:
    """The best of recomputing, paging and both, as `remat compile --spill` has it."""
    found = answer_paged(question, make_pager("auto"), Limits(seconds=seconds))
    if found.paged is None:
        return Found(found.time_ns, 0, "recompute") if found.time_ns is not None else Found()
    paging = found.paged.paging
    return Found(paging.time_ns, paging.written_bytes, paging.best_from)


FINDERS: dict[str, Callable[[PagingQuestion, float], Found]] = {
    "recompute": _recomputed("auto"),
    "rotor": _recomputed("rotor"),
    "paging": _paged("paging"),
    "pofo": _paged("pofo"),
    "auto": _best,
}


@click.command()
@click.option("--seconds", default=10.0, show_default=True, help="Limit of each method on each case.")
@click.option("--budget", default=math.inf, help="Stop after so many seconds.")
@click.option("--methods", default=",".join(METHODS), show_default=True, help="Some of these.")
@click.option("--write", is_flag=True, help="Make the page and pictures of the rows that there are.")
@shard_option
def main(seconds: float, budget: float, methods: str, write: bool, shard: Shard) -> None:
    """Measure what is missing, or write the page."""
    if write:
        BENCH.write()
        PICTURES.mkdir(exist_ok=True)
        for name, picture in pictures(_whole(BENCH.rows())):
            (PICTURES / name).write_bytes(picture)
        return
    load_kernels((*KERNELS, *POFO_KERNELS), lambda: click.echo("compiling kernels", err=True))
    end = time.monotonic() + budget

    def found(case: Case, keys: Sequence[Key]) -> Iterator[Row]:
        for *_, method in keys:
            if time.monotonic() < end:
                yield msgspec.to_builtins(measured(case, method, seconds))

    wanted = (Wanted(case, [(*case, method) for method in methods.split(",")]) for case in cases())
    BENCH.run(wanted, found, shard=shard)


def _whole(rows: list[Row]) -> list[Row]:
    """Rows with what older ones do not say."""
    return [msgspec.structs.asdict(msgspec.convert(row, SimulatedRow)) for row in rows]


BENCH = Bench("paging_simulated", ("network", "divisor", "rate", "method"), lambda rows: page(_whole(rows)), str)

if __name__ == "__main__":
    main()
