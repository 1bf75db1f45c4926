"""Cases in processes of their own: one is solved and measured there, and all that are asked for run side by side."""

import os
import platform
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec
import psutil

from remat_cli import __version__
from remat_cli.base import progress as stages
from remat_cli.base.errors import RematError
from remat_cli.base.processes import ProcessDied, Tell, available_cores, family, started
from remat_cli.base.progress import Progress, silent
from remat_cli.compiling.ask import ask_abstract
from remat_cli.compiling.page_answer import abstract_terms
from remat_cli.compiling.solve import prepare_kernels
from remat_cli.contest.report.bench_run import FAILED, BenchCase, BenchRun, BenchStatus, TracePoint, joined
from remat_cli.contest.solving import made, solved
from remat_cli.core.schedule.graph import Phase
from remat_cli.core.schedule.instance import instance_problem, load_instance
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.schedule.timeline import time_of
from remat_cli.core.values.budget import parse_budget
from remat_cli.core.values.spill import HOST, SpillSpec
from remat_cli.report.solution import overhead_percent
from remat_cli.report.style import percent
from remat_cli.solvers.base import Limits
from remat_cli.solvers.paging.question import PagingTerms

MIB = 2**20
WARM_UP_SECONDS = 5.0
AFTER_PLAN_SECONDS = 0.3  # of the warm-up, so that code behind the first plan is loaded too


@dataclass(frozen=True)
class Job:
    """A case, and the file of its instance or its problem under the budget: all that its process must know.

    On these `terms` values may wait in another memory.
    """

    case: BenchCase
    source: Path | Problem
    terms: PagingTerms | None = None


def solve_case(job: Job, tell: Tell) -> BenchRun:
    """What came of a case; where remat refuses, that is what came of it."""
    try:
        return measure(job, tell)
    except RematError as error:
        shown = str(error)
        if isinstance(job.source, Path):
            shown = shown.replace(str(job.source), job.case.instance_path)
        return joined(BenchRun, job.case, status="error", message=shown, versions=versions())


def measure(job: Job, tell: Tell) -> BenchRun:
    """Solve one case in this process; `tell` hears nothing when the clock starts, then each point of the trace.

    Raises:
        RematError: the instance or the solver's options cannot be used, or the solver broke the judge's rules.
    """
    case, process, inherited = job.case, psutil.Process(), peak_bytes()
    problem = job.source if isinstance(job.source, Problem) else load_problem(case, job.source)
    plan = baseline(problem)
    _warm_up(job, problem)
    start_bytes = process.memory_info().rss
    tell()
    cpu = sum(os.times()[:4])  # with that of processes it has started and seen end
    watch = _Watch(problem, tell, is_probe=case.probe)
    limits = Limits(
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
    result = solved(problem, case.solver, case.options, limits, job.terms)
    cpu = sum(os.times()[:4]) - cpu
    found = result.solution
    grown = peak_bytes()
    return joined(
        BenchRun,
        found,
        case,
        ops=len(problem.ops),
        edges=sum(len(op.inputs) for op in problem.ops),
        budget_fraction=found.budget_bytes / plan.peak if plan.peak else None,
        cpu_seconds=cpu,
        seconds_to_first=next((point.seconds for point in result.trace if point.time_ns is not None), None),
        trace=tuple(_point(problem, point.seconds, point.time_ns, point.bound_ns) for point in result.trace),
        start_rss_mib=round(start_bytes / MIB, 1),
        peak_rss_mib=round(max(process.memory_info().rss, grown if grown > inherited else 0) / MIB, 1),
        versions=versions(),
    )


def load_problem(case: BenchCase, path: Path) -> Problem:
    """The problem of an instance under the budget of a case.

    Raises:
        RematError: the instance cannot be used.
    """
    free = instance_problem(load_instance(path))
    return ask_abstract(free, parse_budget(case.budget)).problem


def peak_bytes() -> int:
    """The most memory that this process has held, where the system knows; it may have that from its parent."""
    try:
        import resource
    except ImportError:
        return 0  # Windows
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


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
        self.tell(*_point(self.problem, time.monotonic() - self.started, time_ns, bound_ns))

    def should_stop(self) -> bool:
        """Whether what was asked is known."""
        return self.is_probe and self.has_plan


def _warm_up(job: Job, problem: Problem) -> None:
    """Load all code that the solver needs, by solving a tiny problem with it: the clock is for solving only."""
    case, tiny = job.case, tiny_problem()
    for likely in (problem, tiny):
        prepare_kernels(made(case.solver, case.options, may_page=job.terms is not None), likely, silent())
    found: list[float] = []
    limits = Limits(
        seconds=WARM_UP_SECONDS,
        workers=case.threads,
        order=case.order,
        report=lambda schedule, bound_ns: None if schedule is None else found.append(time.monotonic()),
        should_stop=lambda: bool(found) and time.monotonic() > found[0] + AFTER_PLAN_SECONDS,
    )
    solved(tiny, case.solver, case.options, limits, None if job.terms is None else tiny_terms(tiny))


def tiny_problem() -> Problem:
    """A training chain of four layers and a loss, marked as such, whose baseline peak of 6 is above the budget of 5."""
    reads = [(), (0,), (1,), (2,), (3,), (3, 4), (2, 5), (1, 6), (0, 7)]
    phases: tuple[Phase, ...] = ("none",) * 5 + ("backward",) * 4
    ops = tuple(OpSpec(reads[op], (op,), (1,), (0,), phase=phase) for op, phase in enumerate(phases))
    tensors = tuple(TensorSpec(1, op) for op in range(len(reads)))
    return Problem(ops, tensors, (Memory("cpu", 5),), (Device("cpu", 0),))


def tiny_terms(tiny: Problem) -> PagingTerms:
    """A memory that takes a unit of time for a byte."""
    return abstract_terms(tiny, SpillSpec(memory=HOST, write_bytes_per_second=1e9, read_bytes_per_second=1e9))


def _point(problem: Problem, seconds: float, time_ns: int | None, bound_ns: int | None) -> TracePoint:
    """A point of the trace in percent; a weaker bound than the baseline time says nothing, so it counts as that."""
    base = problem.baseline_time_ns
    overhead = None if time_ns is None else overhead_percent(time_ns, base)
    bound = None if bound_ns is None else overhead_percent(max(bound_ns, base), base)
    return round(seconds, 4), overhead, bound


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


SAMPLE_SECONDS = 0.25
LOADING_SECONDS = 900.0  # on a machine where the search kernels must be compiled first
GRACE_SECONDS = 60.0  # beyond twice the time limit, before a run is killed
MOST_NAMED = 3

Watch: TypeAlias = Callable[[TracePoint], None]


class Running(Protocol):
    """A case on its way, wherever that is: a process of this machine, or the future of some executor."""

    def poll(self, seconds: float) -> BenchRun | None:
        """What came of the case; None if it goes on after so many seconds, or after news of it."""
        ...

    def close(self) -> None:
        """Let go of it, and end it if it still runs."""
        ...


Runner: TypeAlias = Callable[[Job, Watch], Running]
"""Takes a job, which is all that a case needs and can be pickled, and somebody to hear of improvements."""


class CaseProcess:
    """One case in a fresh process of this machine; whatever happens to that process becomes a run."""

    def __init__(self, job: Job, watch: Watch) -> None:
        self._case, self._watch = job.case, watch
        self._trace: list[TracePoint] = []
        self._peak_mib, self._sampled = 0.0, 0.0
        self._stack = ExitStack()
        self._worker = self._stack.enter_context(started(solve_case, job))
        self._deadline = time.monotonic() + LOADING_SECONDS

    def close(self) -> None:
        """Kill the process, if it still runs, with what it started."""
        self._stack.close()

    def poll(self, seconds: float) -> BenchRun | None:
        """What came of the case; None if it goes on after the next message, or after so many seconds without one."""
        if time.monotonic() - self._sampled >= SAMPLE_SECONDS:
            self._peak_mib = max(self._peak_mib, resident_mib(family(self._worker.process)))
            self._sampled = time.monotonic()
        if time.monotonic() >= self._deadline:
            return self._failed("overran", f"killed {GRACE_SECONDS:.0f} s after twice its time limit")
        if not self._worker.has_ended(self._hear, seconds):
            return None
        try:
            run = self._worker.result()
        except ProcessDied as died:
            return self._failed("crashed", str(died))
        return msgspec.structs.replace(run, peak_rss_mib=max(run.peak_rss_mib or 0.0, self._peak_mib) or None)

    def _hear(self, *point: Any) -> None:
        """A point of the trace; before the first, nothing: the clock has started."""
        if point:
            self._trace.append(point)
            self._watch(point)
        else:
            self._deadline = time.monotonic() + 2 * self._case.time_limit_seconds + GRACE_SECONDS

    def _failed(self, status: BenchStatus, message: str) -> BenchRun:
        """A run without an answer; what it had reported is kept, but is no result."""
        trace = tuple(self._trace)
        return joined(BenchRun, self._case, status=status, message=message, trace=trace, versions=versions())


def resident_mib(processes: Sequence[psutil.Process]) -> float:
    """Memory that these processes hold together; what they share counts for each."""
    size = 0
    for process in processes:
        with suppress(psutil.Error):  # it may be gone by now
            size += process.memory_info().rss
    return round(size / MIB, 1)


def run_case(case: BenchCase, path: Path, watch: Watch, runner: Runner = CaseProcess) -> BenchRun:
    """Run one case of an instance file to its end; a KeyboardInterrupt ends it and goes on to the caller."""
    with closing(runner(Job(case, path.resolve()), watch)) as running:
        while (run := running.poll(SAMPLE_SECONDS)) is None:
            pass
        return run


def run_side_by_side(
    jobs: Sequence[Job], slots: int, progress: Progress, runner: Runner = CaseProcess
) -> Mapping[int, BenchRun]:
    """What came of each job, by its number; those that had not ended when the user stopped are not there.

    Raises:
        RematError: a run failed; all others are then stopped.
    """
    return _SideBySide(jobs, progress, runner).work(slots)


@dataclass
class _SideBySide:
    """The cases that run, and those that have ended."""

    jobs: Sequence[Job]
    progress: Progress
    runner: Runner
    running: dict[int, Running] = field(default_factory=dict)
    ended: dict[int, BenchRun] = field(default_factory=dict)

    def work(self, slots: int) -> dict[int, BenchRun]:
        """Start, listen and end; nothing stays behind, whatever happens."""
        waiting = deque(range(len(self.jobs)))
        self.progress.stage(stages.COMPARING)
        try:
            while (waiting or self.running) and not self.progress.should_stop():
                while waiting and len(self.running) < slots:
                    number = waiting.popleft()
                    self.running[number] = self.runner(self.jobs[number], lambda point: None)
                # Ask every case that runs, once, what came of it.
                for number, case in list(self.running.items()):
                    run = case.poll(SAMPLE_SECONDS / len(self.running))
                    if run is None:
                        continue
                    self.running.pop(number).close()
                    if run.status in FAILED:
                        raise RematError(f"solver {run.solver} at budget {run.budget}: {run.status}: {run.message}")
                    self.ended[number] = run
                    found = percent(run.overhead_percent) if run.has_plan else run.status.replace("_", " ")
                    cases = [self.jobs[number].case for number in self.running]
                    names = ", ".join(f"{case.solver} {case.budget}" for case in cases[:MOST_NAMED])
                    more = f" and {len(cases) - MOST_NAMED} more" if len(cases) > MOST_NAMED else ""
                    told = f"{run.solver} {run.budget} {found}" + (f"; running {names}{more}" if names else "")
                    self.progress.detail(f"{len(self.ended)}/{len(self.jobs)}  {told}")
            return self.ended
        finally:
            while self.running:
                self.running.popitem()[1].close()
