"""Processes that fast tests start by the hundred, forked from their own: a new Python loads for a third of a second.

A fork does the same job, with the same messages and the same end; what it has is the memory of its parent. So what
measures the memory of a process still gets a new Python, as do all in slow runs, in commands that tests start, and in
files or tests with the mark `fresh_processes` or one of a GPU, whose driver no fork can use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from remat_cli.base import processes
from remat_cli.base.processes import Start, Worker, forked, fresh

RUNTIME = "remat_cli.runtime."
MEASURE_THEIR_PROCESS = frozenset(
    {
        "measure_resident",
        "measure_and_keep",
        "see_resident_here",
        "see_at_sizes_here",
        "resident_after_here",
        "run_limited",
        "probe_here",
    }
)
"""Functions whose answer depends on what their process held before."""
MOST_SILENCE_SECONDS = 300.0  # a fork that hangs fails its test
MARKS = ("fresh_processes", "webgpu", "gpu")


class QuickProcesses:
    """A plug-in that starts processes so, except within tests that say otherwise, their fixtures included."""

    def __init__(self) -> None:
        self.real: Callable[..., AbstractContextManager[Worker[Any]]] = processes.started
        self.is_on = True

    def pytest_configure(self) -> None:
        processes.started = self.started

    def pytest_unconfigure(self) -> None:
        processes.started = self.real

    @contextmanager
    def on(self) -> Iterator[None]:
        """Start processes so within a block, outside of pytest."""
        self.pytest_configure()
        try:
            yield
        finally:
            self.pytest_unconfigure()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.is_on = not any(map(item.get_closest_marker, MARKS))
        return (yield)

    @contextmanager
    def started(
        self,
        function: Callable[..., Any],
        job: Any,
        start: Start = fresh,
        silence_seconds: float | None = None,
    ) -> Iterator[Worker[Any]]:
        """What `processes.started` does, for functions that run models."""
        runs_models = function.__module__.startswith(RUNTIME) and function.__name__ not in MEASURE_THEIR_PROCESS
        if self.is_on and start is fresh and runs_models:
            start, silence_seconds = forked, min(silence_seconds or math.inf, MOST_SILENCE_SECONDS)
        with self.real(function, job, start, silence_seconds) as worker:
            yield worker
