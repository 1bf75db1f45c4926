"""Running CP-SAT within Limits: live reports, interruption, deterministic work; nothing raised on the way is lost.

And what its models of schedules share: problems in small integers, intervals of events.
"""

import math
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ortools.sat.python import cp_model

from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers.base import Limits

# Limits.work counts small search steps; CP-SAT counts deterministic seconds of about a second each.
WORK_PER_DETERMINISTIC_SECOND = 10_000
_POLL_SECONDS = 0.05
# CP-SAT refuses a cumulative whose demands times durations leave 64 bits.
_ENERGY_LIMIT = 2**60

Reader: TypeAlias = Callable[[Callable[[Any], int]], list[int]]
"""Turns a solution, given as a function from expressions to values, into ops in order."""


class OutOfTime(Exception):
    """Time was up, or the user asked to stop, before a model was complete."""


@dataclass(frozen=True)
class Effort:
    """How one search is limited and tuned.

    Wall time, deterministic time (None: no limit), absolute gap in objective units, and how much CP-SAT relies on
    linear relaxations (2: fully; good for programs that are linear).
    """

    seconds: float
    deterministic_seconds: float | None
    absolute_gap: float
    linearization_level: int = 1


@dataclass(frozen=True)
class Outcome:
    """What CP-SAT proved; `bound` is a lower bound on the objective, `value` the best found, in objective units."""

    is_infeasible: bool
    value: int | None
    bound: int
    deterministic_seconds: float
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def is_optimal(self) -> bool:
        """Whether the best found is proved best."""
        return self.value is not None and self.value == self.bound


def _ignore(_: list[int] | int) -> None:
    """Report to nobody."""


@dataclass(frozen=True)
class Watch:
    """Whom to tell of every solution, as it was read, and of every better bound, in objective units."""

    found: Callable[[list[int]], None] = _ignore
    bounded: Callable[[int], None] = _ignore


def search(cp: Any, read: Reader, run: Effort, limits: Limits, watch: Watch) -> Outcome:
    """Solve in a thread of its own, so that the caller's thread stays free for reports, signals and `should_stop`.

    `read` turns a solution into ops; it runs in CP-SAT's threads. `watch` is called in the caller's thread only.
    """
    # With `repair_hint` OR-Tools 9.15 aborts now and then.
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = limits.workers
    parameters.interleave_search = limits.workers == 1  # all strategies in turn instead of one; still deterministic
    parameters.random_seed = limits.seed
    parameters.max_time_in_seconds = max(run.seconds, 0.01)
    parameters.absolute_gap_limit = run.absolute_gap
    parameters.linearization_level = run.linearization_level
    parameters.catch_sigint_signal = False
    if run.deterministic_seconds is not None:
        parameters.max_deterministic_time = max(run.deterministic_seconds, 0.001)
    task = _Task(cp, solver, read)
    thread = threading.Thread(target=task.run, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            task.deliver(watch, _POLL_SECONDS)
            if limits.should_stop():
                solver.stop_search()
        task.deliver(watch, 0.0)
    finally:
        while thread.is_alive():
            solver.stop_search()
            thread.join(_POLL_SECONDS)
    return task.outcome()


@dataclass(frozen=True)
class Units:
    """A problem in small integers; a line for each memory.

    `sizes[m][x]`, `weights[m][w]` and `capacities[m]` are in units of `byte_units[m]` bytes, `workspaces[v][d]` in the
    unit of the memory of device d. `time_unit` is in ns. `is_exact` is False when sizes had to be rounded up.
    """

    sizes: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[int, ...], ...]
    workspaces: tuple[tuple[int, ...], ...]
    capacities: tuple[int, ...]
    byte_units: tuple[int, ...]
    time_unit: int
    is_exact: bool


def make_units(problem: Problem, horizon: int) -> Units:
    """Divide by the greatest common divisors; budgets are rounded down, so that no schedule exceeds one."""
    sizes = [tensor.size_bytes for tensor in problem.tensors]
    weights = list(problem.weight_bytes) if len(problem.memories) > 1 else []
    byte_units, is_exact = [], True
    for memory in range(len(problem.memories)):
        spaces = [
            op.workspace_bytes[d] for op in problem.ops for d, dev in enumerate(problem.devices) if dev.memory == memory
        ]
        common = math.gcd(*sizes, *weights, *spaces) or 1
        coarse = -(-sum(sizes + weights + spaces) * horizon // (common * _ENERGY_LIMIT)) or 1
        byte_units.append(common * coarse)
        is_exact = is_exact and coarse == 1
    times = [time for op in problem.ops for time in op.time_ns if time]
    copies = [time for row in problem.copy_ns for entry in row for time in entry if time]
    calls = [device.call_ns for device in problem.devices] if len(problem.devices) > 1 else []
    time_unit = math.gcd(*times, *copies, *calls) or 1
    return Units(
        sizes=tuple(tuple(-(-size // unit) for size in sizes) for unit in byte_units),
        weights=tuple(tuple(-(-size // unit) for size in weights) for unit in byte_units),
        workspaces=tuple(
            tuple(
                -(-size // byte_units[dev.memory])
                for size, dev in zip(op.workspace_bytes, problem.devices, strict=True)
            )
            for op in problem.ops
        ),
        capacities=tuple(m.free_bytes // unit for m, unit in zip(problem.memories, byte_units, strict=True)),
        byte_units=tuple(byte_units),
        time_unit=time_unit,
        is_exact=is_exact,
    )


def at_event(cp: Any, start: Any, present: Any) -> Any:
    """An interval of one event; `present` is None for what always is."""
    if present is None:
        return cp.new_fixed_size_interval_var(start, 1, "")
    return cp.new_optional_fixed_size_interval_var(start, 1, present, "")


def lasting(cp: Any, start: Any, length: Any, end: Any, present: Any) -> Any:
    """An interval of the events from `start` to `end`; `present` is None for what always is."""
    if present is None:
        return cp.new_interval_var(start, length, end + 1, "")
    return cp.new_optional_interval_var(start, length, end + 1, present, "")


class _Task(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
    """One search with its mailbox; the base class is how OR-Tools hands out solutions."""

    def __init__(self, cp: Any, solver: Any, read: Reader) -> None:
        super().__init__()
        self._cp, self._solver, self._read = cp, solver, read
        self._mail: queue.SimpleQueue[list[int] | int | None] = queue.SimpleQueue()
        self._errors: list[BaseException] = []
        self._status: Any = None

    def run(self) -> None:
        """Solve, and hand on bounds and errors: what the thread runs."""
        self._solver.best_bound_callback = lambda bound: self._mail.put(round_up(bound))
        try:
            self._status = self._solver.solve(self._cp, self)
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._mail.put(None)

    def on_solution_callback(self) -> None:
        """Called by CP-SAT's threads, where an exception would be lost: keep it and stop."""
        try:
            self._mail.put(self._read(self.value))
        except BaseException as error:
            self._errors.append(error)
            self.stop_search()

    def deliver(self, watch: Watch, seconds: float) -> None:
        """Pass on what has arrived, waiting this long for the first."""
        try:
            message = self._mail.get(timeout=seconds) if seconds else self._mail.get_nowait()
            while True:
                if isinstance(message, int):
                    watch.bounded(message)
                elif message is not None:
                    watch.found(message)
                message = self._mail.get_nowait()
        except queue.Empty:
            return

    def outcome(self) -> Outcome:
        """The result, or the first error that happened on the way."""
        if self._errors:
            raise self._errors[0]
        solver, status = self._solver, self._status
        if status == cp_model.MODEL_INVALID:
            raise RuntimeError(f"CP-SAT refuses the model: {self._cp.validate()}")
        has_solution = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        return Outcome(
            is_infeasible=status == cp_model.INFEASIBLE,
            value=round(solver.objective_value) if has_solution else None,
            bound=round_up(solver.best_objective_bound),
            deterministic_seconds=solver.deterministic_time,
            facts={
                "branches": solver.num_branches,
                "conflicts": solver.num_conflicts,
                "seconds": round(solver.wall_time, 3),
            },
        )


def round_up(bound: float) -> int:
    """The least integer objective that a bound in floating point leaves open."""
    return math.ceil(bound - 1e-6 * max(1.0, abs(bound) * 1e-6)) if math.isfinite(bound) else 0
