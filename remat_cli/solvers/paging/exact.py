"""The CP-SAT model of paging with the rules of the judge: whole tensors, any gap, steps in a given order.

A tensor's life is cut at the gaps in which it may be away. Of such a gap either all is held (`kept`), or only its
`leaving`, up to the end of the write, and its `coming`, from the start of the read.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ortools.sat.python import cp_model

from remat_cli.core.paging.paging import DIRECTIONS, Direction, PagedProblem, PagedSchedule, PageTransfer
from remat_cli.solvers.base import Limits
from remat_cli.solvers.milp.cp_sat import WORK_PER_DETERMINISTIC_SECOND, Effort, Outcome, Watch, search
from remat_cli.solvers.paging.hot import hot_gaps

MOST_UNITS = 50_000  # of time in an exact model: what starts later than that propagates slowly
_ENERGY_LIMIT = 2**60


@dataclass(frozen=True)
class Grain:
    """How many ticks and bytes make a unit of the model, and whether all that it counts is a multiple of them.

    What is none is rounded up, so that schedules of the model are schedules, or down (`is_down`), so that every
    schedule is one of the model and its bound holds: what runs at once in units runs at once at the end of each unit.
    """

    ticks: int
    bytes_: int
    is_exact: bool
    is_down: bool = False

    def time(self, ticks: int) -> int:
        """How many units of time so many ticks take."""
        return ticks // self.ticks if self.is_down else -(-ticks // self.ticks)

    def size(self, bytes_: int) -> int:
        """How many units of memory so many bytes take."""
        return bytes_ // self.bytes_ if self.is_down else -(-bytes_ // self.bytes_)

    def room(self, bytes_: int) -> int:
        """How many units of memory a budget gives."""
        return -(-bytes_ // self.bytes_) if self.is_down else bytes_ // self.bytes_


def grain_of(problem: PagedProblem, horizon: int) -> Grain:
    """The greatest common divisors, or bytes in larger units where the model could not add them up."""
    moved = [tensor for tensor, _ in hot_gaps(problem)]
    lengths = [problem.transfer_ticks(tensor, direction) for tensor in moved for direction in DIRECTIONS]
    ticks = math.gcd(*problem.durations, *lengths) or 1
    sizes = [tensor.size_bytes for tensor in problem.tensors] + list(problem.workspace_bytes)
    unit = math.gcd(*sizes) or 1
    coarse = -(-sum(sizes) * -(-horizon // ticks) // (unit * _ENERGY_LIMIT)) or 1
    return Grain(ticks, unit * coarse, coarse == 1)


def coarser(grain: Grain, horizon: int, units: int, is_down: bool) -> Grain:
    """About so many units up to the horizon."""
    return Grain(max(grain.ticks, -(-horizon // units)), grain.bytes_, False, is_down)


@dataclass(frozen=True)
class _Gap:
    """A gap that may be paged: whether it is, when the bytes have left, when the read starts; and the write, if any."""

    tensor: int
    gap: int
    is_paged: Any
    away: Any
    read: Any
    write: Any


@dataclass
class PagingModel:
    """Variables and constraints of one problem, in units of a grain, with makespans up to a horizon."""

    problem: PagedProblem
    grain: Grain
    horizon: int
    cp: Any = field(default_factory=cp_model.CpModel)
    starts: list[Any] = field(default_factory=list)
    writes: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    gaps: list[_Gap] = field(default_factory=list)
    held: list[tuple[Any, int]] = field(default_factory=list)
    lanes: dict[str, list[Any]] = field(default_factory=lambda: {"write": [], "read": []})

    def build(self, least: int) -> "PagingModel":
        """All of it; `least` is a bound on the makespan that is known already, in units."""
        for step, workspace in enumerate(self.problem.workspace_bytes):
            start = self.cp.new_int_var(0, self.horizon - self._length(step), f"s{step}")
            self.starts.append(start)
            self.cp.add(start >= (self._end(step - 1) if step else 0))
            if workspace:
                interval = self.cp.new_fixed_size_interval_var(start, self._length(step), "")
                self.held.append((interval, self.grain.size(workspace)))
        self.cp.add(self._end(len(self.starts) - 1) <= self.horizon)
        open_gaps: dict[int, list[int]] = {}
        for tensor, gap in hot_gaps(self.problem):
            open_gaps.setdefault(tensor, []).append(gap)
        for tensor, spec in enumerate(self.problem.tensors):
            # The stretches of its life that are held whatever is paged, and the gaps between them.
            first = 0
            for gap in open_gaps.get(tensor, ()):
                self._stretch(tensor, spec.uses[first], self._end(spec.uses[gap]))
                self._gap(tensor, gap)
                first = gap + 1
            last = len(self.starts) - 1 if spec.is_kept else spec.uses[-1]
            self._stretch(tensor, spec.uses[first], self._end(last))
        if self.problem.link.is_duplex:
            for lane in self.lanes.values():
                self.cp.add_no_overlap(lane)
        else:
            self.cp.add_no_overlap([interval for lane in self.lanes.values() for interval in lane])
        intervals, demands = zip(*self.held, strict=True) if self.held else ((), ())
        self.cp.add_cumulative(intervals, demands, self.grain.room(self.problem.budget_bytes))
        self.cp.add(self._end(len(self.starts) - 1) >= least)
        self.cp.minimize(self._end(len(self.starts) - 1))
        return self

    def _length(self, step: int) -> int:
        return self.grain.time(self.problem.durations[step])

    def _end(self, step: int) -> Any:
        return self.starts[step] + self._length(step) if step >= 0 else 0

    def _stretch(self, tensor: int, first: int, end: Any) -> None:
        start = self.starts[first] if first >= 0 else 0
        self._hold(tensor, start, end, None)

    def _hold(self, tensor: int, start: Any, end: Any, present: Any) -> None:
        """A tensor is held from `start` to `end`, always or if the literal `present` holds."""
        size = self.grain.size(self.problem.tensors[tensor].size_bytes)
        if not size or (isinstance(end, int) and end == 0):
            return
        length = self.cp.new_int_var(0, self.horizon, "")
        if present is None:
            interval = self.cp.new_interval_var(start, length, end, "")
        else:
            interval = self.cp.new_optional_interval_var(start, length, end, present, "")
        self.held.append((interval, size))

    def _gap(self, tensor: int, gap: int) -> None:
        spec, cp = self.problem.tensors[tensor], self.cp
        used, needed = self._end(spec.uses[gap]), self.starts[spec.uses[gap + 1]]
        is_paged = cp.new_bool_var(f"p{tensor}.{gap}")
        self._hold(tensor, used, needed, ~is_paged)
        away, write = used, None
        if not spec.is_hosted:
            length = self._ticks(tensor, "write")
            if tensor not in self.writes:
                # The one write of a tensor: when it starts, and whether there is one.
                start, is_written = cp.new_int_var(0, self.horizon, ""), cp.new_bool_var("")
                cp.add(start >= self._end(spec.uses[spec.final]))
                self.lanes["write"].append(cp.new_optional_fixed_size_interval_var(start, length, is_written, ""))
                self.writes[tensor] = start, is_written
            write, is_written = self.writes[tensor]
            cp.add_implication(is_paged, is_written)
            away = cp.new_int_var(0, self.horizon, "")
            cp.add(away >= used)
            cp.add(away >= write + length).only_enforce_if(is_paged)
            self._hold(tensor, used, away, is_paged)
        read = cp.new_int_var(0, self.horizon, "")
        length = self._ticks(tensor, "read")
        self.lanes["read"].append(cp.new_optional_fixed_size_interval_var(read, length, is_paged, ""))
        cp.add(read >= away).only_enforce_if(is_paged)
        cp.add(read + length <= needed).only_enforce_if(is_paged)
        self._hold(tensor, read, needed, is_paged)
        self.gaps.append(_Gap(tensor, gap, is_paged, away, read, write))

    def _ticks(self, tensor: int, direction: Direction) -> int:
        return self.grain.time(self.problem.transfer_ticks(tensor, direction))

    def hint(self, schedule: PagedSchedule) -> None:
        """Suggest a schedule; its times are rounded down, which is exact where the grain is."""
        for start, tick in zip(self.starts, schedule.starts, strict=True):
            self.cp.add_hint(start, tick // self.grain.ticks)
        writes = {each.tensor: each.start for each in schedule.transfers if each.direction == "write"}
        reads = {(each.tensor, each.gap): each.start for each in schedule.transfers if each.direction == "read"}
        for tensor, (start, is_written) in self.writes.items():
            self.cp.add_hint(is_written, tensor in writes)
            self.cp.add_hint(start, writes.get(tensor, 0) // self.grain.ticks)
        for each in self.gaps:
            read = reads.get((each.tensor, each.gap))
            self.cp.add_hint(each.is_paged, read is not None)
            self.cp.add_hint(each.read, (read or 0) // self.grain.ticks)

    def read(self, value: Callable[[Any], int]) -> list[int]:
        """A solution in a row: starts of the steps, then of each gap whether it is paged, its read and its write."""
        row = [value(start) for start in self.starts]
        for each in self.gaps:
            row += [value(each.is_paged), value(each.read), -1 if each.write is None else value(each.write)]
        return row

    def schedule(self, row: list[int]) -> PagedSchedule:
        """The schedule that a row tells, in ticks."""
        steps, unit = len(self.starts), self.grain.ticks
        transfers: dict[PageTransfer, None] = {}
        for place, each in zip(range(steps, len(row), 3), self.gaps, strict=True):
            is_paged, read, write = row[place : place + 3]
            if is_paged and write >= 0:
                transfers[PageTransfer(each.tensor, "write", write * unit)] = None
            if is_paged:
                transfers[PageTransfer(each.tensor, "read", read * unit, each.gap)] = None
        return PagedSchedule(tuple(start * unit for start in row[:steps]), tuple(transfers))


def search_exact(model: PagingModel, seconds: float, limits: Limits, found: Callable[[PagedSchedule], None]) -> Outcome:
    """Solve for so long, within the limits; `found` takes every better schedule, in the model's own units of time."""
    work = None if limits.work is None else limits.work / WORK_PER_DETERMINISTIC_SECOND
    effort = Effort(min(seconds, limits.seconds_left), work, 0.0)
    return search(model.cp, model.read, effort, limits, Watch(found=lambda row: found(model.schedule(list(row)))))
