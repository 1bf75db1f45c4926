"""What uses ONNX Runtime does it in a process of its own: a clean runtime, whose crash is one line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeAlias, TypeVar

from remat_cli.base import processes
from remat_cli.base.errors import RuntimeFailure
from remat_cli.base.processes import ProcessDied, Start, Worker, fresh, ignore

Job = TypeVar("Job")
Answer = TypeVar("Answer")
Advance: TypeAlias = Callable[[int, int], None]
"""Told how many of how many units of work are done."""
ignore_progress: Advance = ignore


@contextlib.contextmanager
def started(function: Callable[[Job, Advance], Answer], job: Job, start: Start = fresh) -> Iterator[Worker[Answer]]:
    """Start `function(job, advance)` in a process of its own, and end that with the block, however it ends.

    Raises:
        RuntimeFailure: the process crashed, and somebody waited for its answer.
    """
    try:
        with processes.started(function, job, start) as worker:
            yield worker
    except ProcessDied as died:
        how = f"was killed by signal {-died.code} (out of memory?)" if died.code < 0 else f"ended with code {died.code}"
        raise RuntimeFailure(f"the process that runs ONNX Runtime {how}: {died.line or 'no message'}") from None


def run_fresh(function: Callable[[Job, Advance], Answer], job: Job, advance: Advance = ignore_progress) -> Answer:
    """Run `function(job, advance)` in a fresh process and wait for what it returns.

    Raises:
        RematError: what the function raised on purpose.
        RuntimeFailure: the process crashed.
    """
    with started(function, job) as worker:
        return worker.answer(advance)
