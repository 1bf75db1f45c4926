"""How near to the bound `placement` comes at hundreds of ops on two devices, and what `xengine` does in the same time.

`python -m bench.placement --write` runs all of it, some 25 minutes; with `--names` and `--budgets` a part is run and
printed. The problems are published training graphs on a GPU as measured, beside a CPU that is 8 to 20 times slower,
each op by a seeded factor of its own, with copies over 12 GB/s and 10 us latency. The graph of random layers has no
bytes or seconds of its own: its unit of size is 2 kB and of time 1 us. The budget is that of the GPU, as a part of
what it needs alone; the CPU has room for everything.
"""

from __future__ import annotations

import json
import math
import platform
import random
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import click
import msgspec

from remat_cli.core.schedule.instance import instance_problem, load_instance
from remat_cli.core.schedule.plan import Copy
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.schedule.solver_run import SolverRun
from remat_cli.solvers import solve
from remat_cli.solvers.base import Limits
from remat_cli.solvers.placing.warmup import warm_up as warm_up_placement
from remat_cli.solvers.search.warmup import warm_up

ROOT = Path(__file__).resolve().parents[1]
INSTANCES = ROOT.parent / "shared" / "instances"
RESULTS = ROOT / "bench" / "results"
BYTES_PER_UNIT = {"rl_g1": 2_000}
NAMES = ("resnet50_bs256_224_train", "unet_vgg_bs32_416x608_train", "rl_g1")
BUDGETS = (1.0, 0.65, 0.5, 0.25)
SOLVERS = ("placement", "xengine")
SLOWER = (8.0, 20.0)
BYTES_PER_NS = 12.0
LATENCY_NS = 10_000
COST_NS = 1_000
SEED = 1


class Row(msgspec.Struct, frozen=True):
    """One run; times are relative to every op once on the GPU. None where not known."""

    name: str
    ops: int
    budget: float
    solver: str
    status: str
    bound_percent: float | None
    plan_percent: float | None
    gap_percent: float | None
    seconds: float
    seconds_to_best: float | None
    recomputed: int | None
    copies: int | None
    on_cpu: int | None


def two_devices(name: str, budget: float) -> Problem:
    """A published graph on a GPU with this part of the memory that it needs alone, beside a roomy CPU."""
    one = instance_problem(load_instance(INSTANCES / f"{name}.json"))
    rng, unit = random.Random(SEED), BYTES_PER_UNIT.get(name, 1)
    tensors = tuple(TensorSpec(tensor.size_bytes * unit, tensor.producer) for tensor in one.tensors)
    copy = tuple(round(LATENCY_NS + tensor.size_bytes / BYTES_PER_NS) for tensor in tensors)
    never: tuple[int | None, ...] = (None,) * len(copy)
    return Problem(
        ops=tuple(_op(op, rng.uniform(*SLOWER)) for op in one.ops),
        tensors=tensors,
        memories=(Memory("gpu", math.ceil(baseline(one).peak * unit * budget)), Memory("cpu", 2**62)),
        devices=(Device("gpu", 0), Device("cpu", 1)),
        copy_ns=((never, copy), (copy, never)),
    )


def _op(op: OpSpec, slower: float) -> OpSpec:
    time = (op.time_ns[0] or 0) * COST_NS
    return msgspec.structs.replace(op, time_ns=(time, round(time * slower)), workspace_bytes=(0, 0))


def run(name: str, budget: float, solver: str, limits: Limits) -> Row:
    """Solve one problem with one solver."""
    problem = two_devices(name, budget)
    return _row(name, budget, problem, solve(problem, solver, limits))


def _row(name: str, budget: float, problem: Problem, result: SolverRun) -> Row:
    base, plan = problem.baseline_time_ns, result.plan
    bound = None if result.bound_ns is None else 100 * (result.bound_ns / base - 1)
    extra = None if plan is None else 100 * (plan.time_ns / base - 1)
    steps = () if plan is None else plan.schedule.steps
    computes = [step for step in steps if not isinstance(step, Copy)]
    return Row(
        name=name,
        ops=len(problem.ops),
        budget=budget,
        solver=result.solver,
        status=result.status.value,
        bound_percent=bound,
        plan_percent=extra,
        gap_percent=None if bound is None or extra is None else extra - bound,
        seconds=result.seconds,
        seconds_to_best=result.seconds_to_best,
        recomputed=None if plan is None else len(computes) - len(problem.ops),
        copies=None if plan is None else len(steps) - len(computes),
        on_cpu=None if plan is None else sum(step.device == 1 for step in computes),
    )


def table(rows: Sequence[Row], about: Mapping[str, str]) -> str:
    """The rows as Markdown."""
    head = ("graph", "ops", "GPU budget", "solver", "result", "bound +%", "plan +%", "gap %", "s to best", "s")
    counts = ("recomputed", "copies", "ops on CPU")
    lines = [
        "# Two devices: `placement` and `xengine`",
        "",
        "A GPU as measured in the published graphs beside a CPU 8 to 20 times slower (a factor per op), copies over",
        "12 GB/s and 10 us; the CPU has room for everything. The budget is a part of what the GPU needs alone; times",
        "are extra to every op once on the GPU. A bound holds for any schedule (`placement`), or for staged ones",
        "(`xengine`). Made by `python -m bench.placement --write`.",
        "",
        ", ".join(f"{key} {value}" for key, value in about.items()) + ".",
        "",
        "| " + " | ".join((*head, *counts)) + " |",
        "|" + " --- |" * (len(head) + len(counts)),
    ]
    return "\n".join([*lines, *(_line(row) for row in rows)]) + "\n"


def _line(row: Row) -> str:
    cells = [row.name, str(row.ops), f"{100 * row.budget:g} %", row.solver, row.status.replace("_", " ")]
    cells += [_figure(value, 3) for value in (row.bound_percent, row.plan_percent, row.gap_percent)]
    cells += [_figure(value, 1) for value in (row.seconds_to_best, row.seconds)]
    cells += ["-" if value is None else str(value) for value in (row.recomputed, row.copies, row.on_cpu)]
    return "| " + " | ".join(cells) + " |"


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _runs(names: Sequence[str], budgets: Sequence[float], solvers: Sequence[str]) -> Iterator[tuple[str, float, str]]:
    for name in names:
        for budget in budgets:
            for solver in solvers:
                yield name, budget, solver


def _about(seconds: float, workers: int) -> dict[str, str]:
    return {
        "seconds per run:": f"{seconds:g}",
        "workers:": str(workers),
        "seed:": str(SEED),
        "processor:": platform.machine(),
        "Python": platform.python_version(),
        "OR-Tools": version("ortools"),
    }


@click.command()
@click.option("--names", default=",".join(NAMES), show_default=True)
@click.option("--budgets", default=",".join(map(str, BUDGETS)), show_default=True)
@click.option("--solvers", default=",".join(SOLVERS), show_default=True)
@click.option("--seconds", default=60.0, show_default=True)
@click.option("--workers", default=2, show_default=True)
@click.option("--write", is_flag=True, help="Write bench/results/placement.md and placement.jsonl.")
def main(names: str, budgets: str, solvers: str, seconds: float, workers: int, write: bool) -> None:
    """Run, print, and write the table."""
    if not INSTANCES.is_dir():
        click.echo(f"skipped: the published graphs are not there ({INSTANCES})", err=True)
        return
    warm_up()
    warm_up_placement()
    rows = []
    for name, budget, solver in _runs(
        names.split(","), [float(part) for part in budgets.split(",")], solvers.split(",")
    ):
        row = run(name, budget, solver, Limits(seconds=seconds, workers=workers))
        click.echo(_line(row), err=True)
        rows.append(row)
    about = _about(seconds, workers)
    text = table(rows, about)
    click.echo(text)
    if write:
        lines = [json.dumps(about), *(json.dumps(msgspec.to_builtins(row)) for row in rows)]
        (RESULTS / "placement.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (RESULTS / "placement.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
