"""The inside of a bench run: a process that loads everything, starts the clock, solves, and says what it cost."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from remat_cli import __version__
from remat_cli.base.errors import RematError
from remat_cli.base.progress import silent
from remat_cli.core.budget import parse_budget, resolve
from remat_cli.core.graph import Phase
from remat_cli.core.instance import instance_problem, load_instance
from remat_cli.core.plan import Plan
from remat_cli.core.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import baseline
from remat_cli.core.timeline import time_of
from remat_cli.report.bench_run import BenchCase, BenchRun, TracePoint
from remat_cli.report.report import overhead_percent, solution_report
from remat_cli.settings.config import available_cores
from remat_cli.solvers import solve
from remat_cli.solvers.base import Limits, Result
from remat_cli.stages.solve import prepare_kernels, solver_run

MIB = 2**20
WARM_UP_SECONDS = 5.0
AFTER_PLAN_SECONDS = 0.3  # of the warm-up, so that code behind the first plan is loaded too
REPORTED = (
    "status", "space", "budget_bytes", "baseline_peak_bytes", "baseline_time", "floor_bytes", "peak_bytes", "time",
    "overhead_percent", "lower_bound_percent", "gap_percent", "recomputed_ops", "seconds", "seconds_to_best",
)  # fmt: skip


class Job(msgspec.Struct, frozen=True):
    """A case and the file of its instance, or of its problem as JSON."""

    case: BenchCase
    path: str
    kind: Literal["instance", "problem"] = "instance"


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line from the worker: the clock has started, a better plan or bound, or the end with all figures."""

    started: bool = False
    point: TracePoint | None = None
    run: BenchRun | None = None


Tell: TypeAlias = Callable[[Message], None]


def main() -> None:
    """Do the job on standard input; messages go to what was standard output, and anything printed to stderr."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    threading.Thread(target=_exit_when_orphaned, daemon=True).start()

    def tell(message: Message) -> None:
        out.write(msgspec.json.encode(message, enc_hook=str) + b"\n")

    try:
        tell(Message(run=_do(job, tell)))
    except RematError as error:
        text = str(error).replace(job.path, job.case.instance_path)
        tell(Message(run=_run(job.case, {"status": "error", "message": text})))


def _exit_when_orphaned() -> None:
    """Standard input closes when the parent is gone, even if it was killed."""
    while os.read(0, 1):
        pass
    os._exit(1)


def _do(job: Job, tell: Tell) -> BenchRun:
    """Solve what the job's file holds."""
    path = Path(job.path)
    if job.kind == "instance":
        return measure(job.case, path, tell)
    return measure_problem(job.case, msgspec.json.decode(path.read_bytes(), type=Problem), tell)


def measure(case: BenchCase, path: Path, tell: Tell) -> BenchRun:
    """Solve one case of an instance in this process.

    Raises:
        RematError: the instance or the solver's options cannot be used, or the solver broke the judge's rules.
    """
    return measure_problem(case, instance_problem(load_instance(path)), tell)


def measure_problem(case: BenchCase, free: Problem, tell: Tell) -> BenchRun:
    """Solve one case, whose problem has no budget yet, in this process.

    Raises:
        RematError: the solver's options cannot be used, or the solver broke the judge's rules.
    """
    plan = baseline(free)
    fixed_bytes = free.memories[0].fixed_bytes
    problem = free.with_budget(resolve(parse_budget(case.budget), fixed_bytes, plan.peak))
    _warm_up(case)
    before = memory_mib("VmRSS")
    tell(Message(started=True))
    watch = _Watch(problem, tell, is_probe=case.probe)
    cpu = cpu_seconds()
    result = solve(problem, case.solver, _limits(case, watch), case.options)
    cpu = cpu_seconds() - cpu
    figures = _figures(problem, plan, result, case.seed)
    figures |= {
        "edges": sum(len(op.inputs) for op in problem.ops),
        "cpu_seconds": cpu,
        "start_rss_mib": before,
        "peak_rss_mib": memory_mib("VmHWM"),
    }
    return _run(case, figures)


@dataclass
class _Watch:
    """Passes improvements on; a probe ends at the first plan."""

    problem: Problem
    tell: Tell
    is_probe: bool
    has_plan: bool = False
    started: float = field(default_factory=time.monotonic)

    def report(self, schedule: Schedule | None, bound_ns: int | None) -> None:
        """A better plan or bound: told with its time."""
        self.has_plan = self.has_plan or schedule is not None
        time_ns = None if schedule is None else time_of(self.problem, schedule)
        self.tell(Message(point=_point(self.problem, time.monotonic() - self.started, time_ns, bound_ns)))

    def should_stop(self) -> bool:
        """Whether what was asked is known."""
        return self.is_probe and self.has_plan


def _limits(case: BenchCase, watch: _Watch) -> Limits:
    watch.started = time.monotonic()
    return Limits(
        seconds=case.time_limit_seconds,
        workers=case.threads,
        seed=case.seed,
        gap=case.gap_percent_asked / 100,
        order=case.order,
        work=case.work,
        report=watch.report,
        should_stop=watch.should_stop,
        started=watch.started,
    )


def _warm_up(case: BenchCase) -> None:
    """Load all code that the solver needs, by solving a tiny problem with it: the clock is for solving only."""
    prepare_kernels(case.solver, silent())
    found: list[float] = []
    limits = Limits(
        seconds=WARM_UP_SECONDS,
        workers=case.threads,
        order=case.order,
        report=lambda schedule, bound_ns: None if schedule is None else found.append(time.monotonic()),
        should_stop=lambda: bool(found) and time.monotonic() > found[0] + AFTER_PLAN_SECONDS,
    )
    solve(tiny_problem(), case.solver, limits, case.options)


def tiny_problem() -> Problem:
    """A training chain of four layers and a loss, marked as such, whose baseline peak of 6 is above the budget of 5."""
    reads = [(), (0,), (1,), (2,), (3,), (3, 4), (2, 5), (1, 6), (0, 7)]
    phases: tuple[Phase, ...] = ("none",) * 5 + ("backward",) * 4
    ops = tuple(OpSpec(reads[op], (op,), (1,), (0,), phase=phase) for op, phase in enumerate(phases))
    tensors = tuple(TensorSpec(1, op) for op in range(len(reads)))
    return Problem(ops, tensors, (Memory("cpu", 5),), (Device("cpu", 0),))


def _figures(problem: Problem, base: Plan, result: Result, seed: int) -> dict[str, Any]:
    """What the judge and the solver say, in the fields of a run."""
    report = solution_report(solver_run(result, seed), problem, base, result.plan)
    trace = tuple(_point(problem, point.seconds, point.time_ns, point.bound_ns) for point in result.trace)
    return {name: getattr(report, name) for name in REPORTED} | {
        "ops": len(problem.ops),
        "budget_fraction": report.budget_bytes / base.peak if base.peak else None,
        "seconds_to_first": next((point.seconds for point in result.trace if point.time_ns is not None), None),
        "trace": trace,
        "facts": result.facts,
    }


def _point(problem: Problem, seconds: float, time_ns: int | None, bound_ns: int | None) -> TracePoint:
    """A point of the trace in percent; a weaker bound than the baseline time says nothing, so it counts as that."""
    base = problem.baseline_time_ns
    overhead = None if time_ns is None else overhead_percent(time_ns, base)
    bound = None if bound_ns is None else overhead_percent(max(bound_ns, base), base)
    return round(seconds, 4), overhead, bound


def _run(case: BenchCase, figures: dict[str, Any]) -> BenchRun:
    """The case together with what came of it."""
    asked = {item.name: getattr(case, item.name) for item in msgspec.structs.fields(BenchCase)}
    return BenchRun(**asked, **figures, versions=versions())


def versions() -> dict[str, Any]:
    """What the figures depend on, apart from the machine's speed."""
    return {
        "remat": __version__,
        "python": platform.python_version(),
        "ortools": metadata.version("ortools"),
        "numba": metadata.version("numba"),
        "machine": platform.machine(),
        "cores": available_cores(),
    }


def cpu_seconds() -> float:
    """What this process has spent so far, with the processes it has started and seen end."""
    return sum(os.times()[:4])


def memory_mib(key: str) -> float | None:
    """A line of /proc/self/status in MiB; None where there is none.

    The peak that `getrusage` knows would not do: a new process inherits its parent's.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    sizes = [int(line.split()[1]) for line in lines if line.startswith(f"{key}:")]
    return round(sizes[0] * 1024 / MIB, 1) if sizes else None
