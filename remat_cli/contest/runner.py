"""Where cases run: each in a process of its own, one after the other or side by side; one that dies is a run too."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec
import psutil

from remat_cli.base import progress as stages
from remat_cli.base.errors import RematError
from remat_cli.base.processes import ProcessDied, family, started
from remat_cli.base.progress import Progress
from remat_cli.contest.measure import MIB, Job, solve_case, versions
from remat_cli.report.bench_run import FAILED, BenchCase, BenchRun, BenchStatus, TracePoint, joined
from remat_cli.report.style import percent

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
    return _Crew(jobs, progress, runner).work(slots)


@dataclass
class _Crew:
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
                self._listen()
            return self.ended
        finally:
            while self.running:
                self.running.popitem()[1].close()

    def _listen(self) -> None:
        """Hear every case once."""
        for number, case in list(self.running.items()):
            run = case.poll(SAMPLE_SECONDS / len(self.running))
            if run is not None:
                self.running.pop(number).close()
                self._take(number, run)

    def _take(self, number: int, run: BenchRun) -> None:
        if run.status in FAILED:
            raise RematError(f"solver {run.solver} at budget {run.budget}: {run.status}: {run.message}")
        self.ended[number] = run
        found = percent(run.overhead_percent) if run.has_plan else run.status.replace("_", " ")
        told = f"{run.solver} {run.budget} {found}{self._names()}"
        self.progress.detail(f"{len(self.ended)}/{len(self.jobs)}  {told}")

    def _names(self) -> str:
        """What still runs, if that is not too much."""
        cases = [self.jobs[number].case for number in self.running]
        names = ", ".join(f"{case.solver} {case.budget}" for case in cases[:MOST_NAMED])
        more = f" and {len(cases) - MOST_NAMED} more" if len(cases) > MOST_NAMED else ""
        return f"; running {names}{more}" if names else ""
