"""HiGHS in a process of its own, which is killed to stop it; the bounds it logs are heard while it works.

It proves far more than CP-SAT on large models, but ignores interruption and works in floating point: every bound of it
is rounded with a margin.
"""

from __future__ import annotations

import math
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec

from remat_cli.base.errors import RuntimeFailure
from remat_cli.base.present import present
from remat_cli.solvers.base import Limits

_POLL_SECONDS = 0.05
_WORKER = Path(__file__).with_name("worker.py")
# A row of HiGHS's table: source of a solution, nodes, queue, leaves, explored, best bound. Lines of the searches inside
# heuristics are not logged.
_TABLE_ROW = re.compile(r"^ ?[A-Za-z]? +[\d.]+[kM]? +[\d.]+[kM]? +[\d.]+[kM]? +[\d.]+% +(-?[\d.]+(?:e[+-]?\d+)?) ")


class Reply(msgspec.Struct):
    """What HiGHS says at the end; `reduced` costs come with an optimal program without integers, `duals` if asked."""

    status: str
    bound: float | None
    values: list[float] | None = None
    reduced: list[float] | None = None
    duals: list[float] | None = None


def ask_highs(program: dict[str, Any], limits: Limits) -> Iterator[float | Reply]:
    """Rising bounds, as logged, and the reply; no reply if it is stopped, by the limits or by closing the iterator.

    `program` has the fields of a Milp, and `lower` limits of the variables. With `live` there are also replies with
    solutions, as they are found.

    Raises:
        RuntimeFailure: the worker failed, or its request cannot be written.
    """
    if not program.get("live"):
        yield from ask_highs_in_turn([program], limits)
        return
    with tempfile.NamedTemporaryFile("r") as file:
        yield from _ask([program | {"solutions": file.name}], _Solutions(file, len(program["upper"])), limits)


def ask_highs_in_turn(programs: Sequence[dict[str, Any]], limits: Limits) -> Iterator[float | Reply]:
    """The same for several programs, one after the other in one process, none of them live."""
    with tempfile.TemporaryFile("r") as nothing:
        yield from _ask(programs, _Solutions(nothing, 0), limits)


def _ask(programs: Sequence[dict[str, Any]], solutions: _Solutions, limits: Limits) -> Iterator[float | Reply]:
    if limits.is_over:
        return
    request = {"milps": programs, "until": time.time() + limits.seconds_left, "parent": os.getpid()}
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as errors:
        encoded = msgspec.json.encode(request)
        try:
            source.write(encoded)
            source.seek(0)  # which writes what is buffered
        except OSError as error:
            where = f"the bound worker's request of {len(encoded)} bytes into {tempfile.gettempdir()}"
            raise RuntimeFailure(f"cannot write {where}: {error.strerror}; make room or set TMPDIR") from error
        with subprocess.Popen(
            [sys.executable, str(_WORKER)],
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # Ctrl-C is for remat, which then stops the worker
        ) as process:
            try:
                yield from _listen(process, solutions, limits)
            finally:
                process.kill()
        errors.seek(0)
        killed = -9
        if process.returncode not in (0, None, killed):
            said = errors.read().decode(errors="replace").strip()
            raise RuntimeFailure(f"the bound worker {_WORKER.name} failed: {said}")


@dataclass
class _Solutions:
    """The file of solutions, each a line with its objective, one with its size, and a line per variable."""

    file: IO[str]
    size: int
    lines: list[str] = field(default_factory=list)
    rest: str = ""

    def read(self) -> Iterator[Reply]:
        """Those that have been written to their end since the last time."""
        *lines, self.rest = (self.rest + self.file.read()).split("\n")
        self.lines += lines
        length = self.size + 2
        while len(self.lines) >= length:
            solution, self.lines = self.lines[2:length], self.lines[length:]
            with suppress(ValueError):  # a full disk leaves gaps; whoever takes solutions checks them
                yield Reply("unknown", None, list(map(float, solution)))


def _listen(process: subprocess.Popen[str], solutions: _Solutions, limits: Limits) -> Iterator[float | Reply]:
    """Read in a thread, so that the limits are kept whatever the worker does."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    output = present(process.stdout, "the output of a solver's process")

    def forward() -> None:
        with suppress(ValueError):  # closed when the worker is killed
            for line in output:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=forward, daemon=True).start()
    # HiGHS notices its time limit late at times; the bound it then returns is worth a short wait.
    late = Limits(limits.seconds + min(2.0, 0.1 * limits.seconds + 1.0), started=limits.started)
    while not (limits.should_stop() or late.seconds_left <= 0.0):
        yield from solutions.read()
        with suppress(queue.Empty):
            line = lines.get(timeout=_POLL_SECONDS)
            if line is None:
                process.wait()
                return
            if line.startswith("{"):
                yield msgspec.json.decode(line, type=Reply)
            elif row := _TABLE_ROW.match(line):
                yield float(row[1])


def proved_value(program: dict[str, Any], prices: list[float]) -> float:
    """The least cost that these prices of the rows prove, whatever they are: a floating-point optimum need not be one.

    With y >= 0 for rows a x >= b (and y <= 0 for a x <= b) every solution costs c x >= y b + (c - y a) x, of which the
    last part is least with each x at one of its limits. At the prices of an optimum this is its value.
    """
    reduced, total = [float(cost) for cost in program["cost"]], 0.0
    for (terms, least, most), price in zip(program["rows"], prices, strict=True):
        side = least if price > 0.0 else most
        if price and side is not None:
            total += price * side
            for factor, variable in terms:
                reduced[variable] -= price * factor
    return total + math.fsum(min(0.0, cost) * most for cost, most in zip(reduced, program["upper"], strict=True))


def safe_units(bound: float | None) -> int:
    """The least integer a bound leaves open, after a margin of 1e-6 of it for the solver's tolerances."""
    if bound is None or not math.isfinite(bound):
        return 0
    return max(0, math.ceil(bound - 1e-6 * max(1.0, abs(bound))))
