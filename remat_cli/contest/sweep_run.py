"""Cases of a sweep, run by processes of this machine or by any executor; one whose worker is lost is run once more."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, Protocol

from remat_cli.base.errors import ConfigError, RematError
from remat_cli.base.processes import ProcessDied, ignore, started
from remat_cli.base.progress import Progress
from remat_cli.contest.executor import AnyFuture
from remat_cli.contest.report.sweep_report import SweepRow
from remat_cli.contest.sweep_cases import SweepCase, solve_sweep_case

POLL_SECONDS, MOST_TRIES = 0.25, 2
LOCAL, RAY = "local", "ray"


class LostWorker(Exception):
    """Whoever ran a case is gone."""


class RunningCase(Protocol):
    """A case on its way."""

    def poll(self, seconds: float) -> SweepRow | None:
        """What came of it; None if it goes on after so many seconds.

        Raises:
            LostWorker: whoever ran it is gone.
        """
        ...

    def close(self) -> None:
        """Let go of it, and end it if it still runs."""
        ...


Begin = Callable[[SweepCase, Progress], RunningCase]
"""Begins a case, and passes on what it tells."""


class LocalCase:
    """A case in a fresh process of this machine."""

    def __init__(self, case: SweepCase, progress: Progress) -> None:
        self._progress, self._stack = progress, ExitStack()
        self._worker = self._stack.enter_context(started(solve_sweep_case, case))

    def poll(self, seconds: float) -> SweepRow | None:
        """Its row, once it has ended."""
        if not self._worker.has_ended(self._progress.detail, seconds):
            return None
        try:
            return self._worker.result()
        except ProcessDied as died:
            raise LostWorker(str(died)) from died

    def close(self) -> None:
        """Kill the process, if it still runs."""
        self._stack.close()


def solve_silently(case: SweepCase) -> SweepRow:
    """Compile a case where nobody hears of it."""
    return solve_sweep_case(case, ignore)


def _lost(error: Exception) -> NoReturn:
    if isinstance(error, RematError):
        raise error
    raise LostWorker(f"{type(error).__name__}: {error}") from error


class FutureCase(AnyFuture[SweepRow]):
    """A case as the future of an executor."""

    def __init__(self, executor: Executor, case: SweepCase, progress: Progress) -> None:
        super().__init__(executor.submit(solve_silently, case), _lost)


@contextlib.contextmanager
def beginner(name: str) -> Iterator[tuple[Begin, int]]:
    """Who begins cases, and how many run at once: `local`, `ray`, or an executor that `module:factory` makes.

    Here they run one after another, since runs of the model are timed.

    Raises:
        ConfigError: there is no such factory, or it makes no executor.
        MissingDependency: Ray is not installed.
    """
    if name == LOCAL:
        yield LocalCase, 1
        return
    if name == RAY:
        from remat_cli.contest.on_ray import RayExecutor

        made: Any = RayExecutor()
    else:
        module, _, factory = name.partition(":")
        try:
            make: Any = getattr(importlib.import_module(module), factory)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"--executor {name}: {error}; write local, ray or module:factory") from error
        made = make()
        if not isinstance(made, Executor):
            kind = type(made).__name__
            raise ConfigError(f"--executor {name}: it makes a {kind}, no concurrent.futures.Executor")
    with made as executor:
        workers = getattr(executor, "_max_workers", None)
        yield partial(FutureCase, executor), workers if isinstance(workers, int) else 1


@dataclass
class SweepRun:
    """The cases of a sweep that run, wait and have ended; `on_row` hears of each row as it comes."""

    begin: Begin
    slots: int
    on_row: Callable[[SweepRow], None]
    progress: Progress
    running: dict[int, RunningCase] = field(default_factory=dict)
    tries: dict[int, int] = field(default_factory=dict)

    def work(self, cases: Sequence[SweepCase]) -> int:
        """Run the cases; how many had not ended when the user asked to stop. Nothing stays behind.

        Raises:
            KeyboardInterrupt: Ctrl-C while nobody could be asked to stop.
        """
        waiting, ended = list(range(len(cases))), 0
        try:
            while (waiting or self.running) and not self.progress.should_stop():
                while waiting and len(self.running) < self.slots:
                    number = waiting.pop(0)
                    self.tries[number] = self.tries.get(number, 0) + 1
                    self.running[number] = self.begin(cases[number], self._told_of(cases[number], ended, len(cases)))
                for number in list(self.running):
                    row, is_lost = self._polled(number, cases[number])
                    if is_lost:
                        waiting.append(number)
                    elif row is not None:
                        ended += 1
                        self.on_row(row)
            return len(cases) - ended
        finally:
            while self.running:
                self.running.popitem()[1].close()

    def _polled(self, number: int, case: SweepCase) -> tuple[SweepRow | None, bool]:
        """What came of a case, and whether it is to be begun again, as its worker was lost for the first time."""
        try:
            row = self.running[number].poll(POLL_SECONDS / len(self.running))
        except LostWorker as lost:
            self.running.pop(number).close()
            if self.tries[number] < MOST_TRIES:
                self.progress.note(f"{case.name}: {lost}; the case is run once more")
                return None, True
            return SweepRow(key=case.key, budget=case.budget, batch=case.batch, found="lost", message=str(lost)), False
        if row is not None:
            self.running.pop(number).close()
        return row, False

    def _told_of(self, case: SweepCase, ended: int, count: int) -> Progress:
        """Progress that says of which case it speaks."""

        def tell(event: object) -> None:
            self.progress.detail(f"{ended}/{count}  {case.name}: {event}")

        return Progress(tell)
