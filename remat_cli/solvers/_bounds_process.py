"""HiGHS in a process of its own, which is killed to stop it; the bounds it logs are heard while it works.

It proves far more than CP-SAT on large models, but ignores interruption and works in floating point: every bound of it
is rounded with a margin.
"""

from __future__ import annotations

import math
import queue
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from remat_cli.core.errors import RuntimeFailure
from remat_cli.solvers.base import Limits

_POLL_SECONDS = 0.05
_WORKER = Path(__file__).with_name("_bounds_highs.py")
# A row of HiGHS's table: source of a solution, nodes, queue, leaves, explored, best bound. Lines of the searches inside
# heuristics are not logged.
_TABLE_ROW = re.compile(r"^ ?[A-Za-z]? +[\d.]+[kM]? +[\d.]+[kM]? +[\d.]+[kM]? +[\d.]+% +(-?[\d.]+(?:e[+-]?\d+)?) ")


class Reply(msgspec.Struct):
    """What HiGHS says at the end; `reduced` costs come with an optimal program without integers."""

    status: str
    bound: float | None
    values: list[float] | None = None
    reduced: list[float] | None = None


def ask_highs(program: dict[str, Any], limits: Limits) -> Iterator[float | Reply]:
    """Rising bounds, as logged, and the reply; no reply if it is stopped, by the limits or by closing the iterator.

    `program` has the fields of a Milp, and `lower` limits of the variables.

    Raises:
        RuntimeFailure: the worker failed.
    """
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as errors:
        source.write(msgspec.json.encode({"milp": program, "seconds": limits.seconds_left}))
        source.seek(0)
        with subprocess.Popen(
            [sys.executable, str(_WORKER)],
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # Ctrl-C is for remat, which then stops the worker
        ) as process:
            try:
                yield from _listen(process, limits)
            finally:
                process.kill()
        errors.seek(0)
        _check(process.returncode, errors.read())


def _listen(process: subprocess.Popen[str], limits: Limits) -> Iterator[float | Reply]:
    """Read in a thread, so that the limits are kept whatever the worker does."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    assert process.stdout is not None
    threading.Thread(target=_forward, args=(process.stdout, lines), daemon=True).start()
    while not (limits.should_stop() or _is_overdue(limits)):
        with suppress(queue.Empty):
            line = lines.get(timeout=_POLL_SECONDS)
            if line is None:
                process.wait()
                return
            found = _understand(line)
            if found is not None:
                yield found


def _forward(output: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    with suppress(ValueError):  # closed when the worker is killed
        for line in output:
            lines.put(line)
    lines.put(None)


def _understand(line: str) -> float | Reply | None:
    if line.startswith("{"):
        return msgspec.json.decode(line, type=Reply)
    row = _TABLE_ROW.match(line)
    return float(row[1]) if row else None


def _check(code: int | None, errors: bytes) -> None:
    killed = -9
    if code not in (0, None, killed):
        raise RuntimeFailure(f"the bound worker {_WORKER.name} failed: {errors.decode(errors='replace').strip()}")


def _is_overdue(limits: Limits) -> bool:
    """HiGHS notices its time limit late at times; the bound it then returns is worth a short wait."""
    late = min(5.0, 0.1 * limits.seconds + 1.0)
    return limits.seconds_left <= 0.0 and Limits(limits.seconds + late, started=limits.started).seconds_left <= 0.0


def safe_units(bound: float | None) -> int:
    """The least integer a bound leaves open, after a margin of 1e-6 of it for the solver's tolerances."""
    if bound is None or not math.isfinite(bound):
        return 0
    return max(0, math.ceil(bound - 1e-6 * max(1.0, abs(bound))))
