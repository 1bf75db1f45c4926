"""Runs of solvers beside each other, each in a process of its own, so many at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from remat_cli.base import progress as stages
from remat_cli.base.errors import RematError
from remat_cli.base.progress import Progress
from remat_cli.contest.case_process import CaseProcess
from remat_cli.contest.family import SAMPLE_SECONDS
from remat_cli.contest.worker import Job
from remat_cli.report.bench_run import FAILED, BenchRun, TracePoint
from remat_cli.report.style import percent

MOST_NAMED = 3

Start: TypeAlias = Callable[[Job, Callable[[TracePoint], None]], CaseProcess]


def run_side_by_side(
    jobs: Sequence[Job], slots: int, progress: Progress, start: Start = CaseProcess
) -> Mapping[int, BenchRun]:
    """What came of each job, by its number; those that had not ended when the user stopped are not there.

    Raises:
        RematError: a run failed; all others are then stopped.
    """
    return _Crew(jobs, slots, progress, start).work()


@dataclass
class _Crew:
    """The processes at work."""

    jobs: Sequence[Job]
    slots: int
    progress: Progress
    start: Start
    running: dict[int, CaseProcess] = field(default_factory=dict)
    ended: dict[int, BenchRun] = field(default_factory=dict)
    last: str = ""

    def work(self) -> dict[int, BenchRun]:
        """Start, listen and end; no process stays behind, whatever happens."""
        waiting = deque(range(len(self.jobs)))
        self.progress.stage(stages.COMPARING)
        try:
            while (waiting or self.running) and not self.progress.should_stop():
                while waiting and len(self.running) < self.slots:
                    number = waiting.popleft()
                    self.running[number] = self.start(self.jobs[number], _ignore)
                self._listen()
            return self.ended
        finally:
            while self.running:
                self.running.popitem()[1].__exit__()

    def _listen(self) -> None:
        """Hear every process once."""
        for number, process in list(self.running.items()):
            run = process.poll(SAMPLE_SECONDS / len(self.running))
            if run is not None:
                self.running.pop(number).__exit__()
                self._take(number, run)

    def _take(self, number: int, run: BenchRun) -> None:
        if run.status in FAILED:
            raise RematError(f"solver {run.solver} at budget {run.label}: {run.status}: {run.message}")
        self.ended[number] = run
        self.progress.detail(f"{len(self.ended)}/{len(self.jobs)}  {_said(run)}{self._names()}")

    def _names(self) -> str:
        """What still runs, if that is not too much."""
        cases = [self.jobs[number].case for number in self.running]
        names = [f"{case.solver} {case.label}" for case in cases[:MOST_NAMED]]
        more = len(cases) - len(names)
        return f"; running {', '.join(names)}{f' and {more} more' if more else ''}" if names else ""


def _ignore(point: TracePoint) -> None:
    """Only the end of a run matters here."""


def _said(run: BenchRun) -> str:
    """`rotor 0.8 +3.20 %`."""
    found = percent(run.overhead_percent) if run.has_plan else run.status.replace("_", " ")
    return f"{run.solver} {run.label} {found}"
