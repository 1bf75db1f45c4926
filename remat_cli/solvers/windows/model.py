"""The CP-SAT model of a cut: retention intervals for what is free, constants for the rest.

After Bartan et al., "Moccasin: Efficient Tensor Rematerialization for Neural Networks", ICML 2023, section 2, for the
free computations of a cut (large-neighbourhood search).
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ortools.sat.python import cp_model

from remat_cli.solvers.milp.cp_sat import at_event, lasting
from remat_cli.solvers.windows.cut import FreeRun, OpenCut


@dataclass(frozen=True)
class FreeComputation:
    """A free computation in the model; `start` is its event, `place` the variable behind it, `present` a literal."""

    run: FreeRun
    place: Any
    start: Any
    present: Any


@dataclass(frozen=True)
class Source:
    """An instance of a tensor that can be read: made at `start`, last read at `end`, there if `present` (None: yes)."""

    start: Any
    earliest: int
    latest: int
    end: Any
    limit: int
    present: Any


@dataclass(frozen=True)
class WindowModel:
    """A built model: `extra_time` is that of its optional computations in `time_unit` ns."""

    cut: OpenCut
    cp: Any
    computations: tuple[FreeComputation, ...]
    extra_time: Any
    time_unit: int
    peak: Any
    byte_unit: int

    def lower_time(self, extra_ns: int, bound_ns: int) -> None:
        """Ask for less than this extra time, and the least, which a proved bound says is not below `bound_ns`."""
        self.cp.add(self.extra_time <= -(-extra_ns // self.time_unit) - 1)
        self.cp.add(self.extra_time >= -(-bound_ns // self.time_unit))
        self.cp.minimize(self.extra_time)

    def lower_peak(self, below_bytes: int) -> None:
        """Ask for a peak below this, and the lowest down to the budget."""
        self.cp.add(self.peak < -(-below_bytes // self.byte_unit))
        self.cp.minimize(self.peak)


def build_window(cut: OpenCut, capacity_bytes: tuple[int, int]) -> WindowModel | None:
    """Variables and constraints for a peak in this range (fixed part left out); None where it cannot be kept to."""
    builder = _Builder(cut)
    builder.add_computations()
    builder.add_sources()
    builder.separate_instances()
    builder.serve_skeleton()
    builder.serve_computations()
    if not cut.stretch.is_ranked:
        builder.run_one_at_a_time()
    return builder.finish(capacity_bytes)


@dataclass
class _Builder:
    cut: OpenCut
    cp: Any = field(default_factory=cp_model.CpModel)
    families: dict[int, list[FreeComputation]] = field(default_factory=dict)
    sources: dict[int, list[Source]] = field(default_factory=dict)
    intervals: list[Any] = field(default_factory=list)
    demands_bytes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.problem = self.cut.lives.problem

    def add_computations(self) -> None:
        """a[v,i] and s[v,i]; a later copy runs only after an earlier one."""
        for op, runs in self.cut.runs.items():
            family: list[FreeComputation] = []
            for run in runs:
                width = self.cut.width
                if self.cut.stretch.is_ranked:
                    gap = self.cp.new_int_var(run.earliest, run.latest, "")
                    place, start = gap, width * gap + run.rank
                else:
                    gaps = [[gap * width, gap * width + width - 2] for gap in range(run.earliest, run.latest + 1)]
                    event = self.cp.new_int_var_from_domain(cp_model.Domain.from_intervals(gaps), "")
                    place = start = event
                made = FreeComputation(run, place, start, None if run.is_first else self.cp.new_bool_var(""))
                if family:
                    if family[-1].present is not None:
                        self.cp.add_implication(made.present, family[-1].present)
                    self.cp.add(start > family[-1].start).only_enforce_if(made.present)
                family.append(made)
                self._charge(at_event(self.cp, made.start, made.present), self.problem.ops[op].workspace_bytes[0])
            self.families[op] = family

    def _charge(self, interval: Any, size_bytes: int) -> None:
        if size_bytes > 0:
            self.intervals.append(interval)
            self.demands_bytes.append(size_bytes)

    def add_sources(self) -> None:
        """e[x,i] and the interval of each instance that the cut can change."""
        for tensor, held in self.cut.held.items():
            spec, width, found = self.problem.tensors[tensor], self.cut.width, []
            for one in held:
                end = self.cp.new_int_var(max(one.until, one.birth), one.limit, "")
                begin = max(one.birth, 0)
                self._charge(lasting(self.cp, begin, end + 1 - begin, end, None), spec.size_bytes)
                found.append(Source(one.birth, one.birth, one.birth, end, one.limit, None))
            for made in self.families.get(spec.producer, ()):
                earliest, latest = made.run.earliest * width, made.run.latest * width + width - 2
                end = self.cp.new_int_var(earliest, self.cut.boundary, "")
                length = self.cp.new_int_var(1, self.cut.boundary + 1 - earliest, "")
                self._charge(lasting(self.cp, made.start, length, end, made.present), spec.size_bytes)
                found.append(Source(made.start, earliest, latest, end, self.cut.boundary, made.present))
            self.sources[tensor] = found

    def separate_instances(self) -> None:
        """An instance of a free op has ended when its next one starts."""
        for op in self.cut.runs:
            for tensor in self.problem.ops[op].outputs:
                sources = self.sources[tensor]
                for older, newer in itertools.pairwise(sources):
                    constraint = self.cp.add(older.end < newer.start)
                    if newer.present is not None:
                        constraint.only_enforce_if(newer.present)

    def serve_skeleton(self) -> None:
        """What steps that stay, and later steps, read of the free ops' results is there."""
        for tensor, events in self.cut.demands.items():
            for event in events:
                found = [self._pair(one, event, event, event) for one in self.sources[tensor] if one.earliest < event]
                self.cp.add_bool_or(found)

    def serve_computations(self) -> None:
        """What free computations read is there."""
        width = self.cut.width
        for op, family in self.families.items():
            for tensor in self.problem.ops[op].inputs:
                for made in family:
                    early, late = made.run.earliest * width, made.run.latest * width + width - 2
                    found = [
                        self._pair(one, made.start, early, late)
                        for one in self.sources[tensor]
                        if one.earliest < late and one.limit >= early
                    ]
                    absent = [] if made.present is None else [made.present.negated()]
                    self.cp.add_bool_or(found + absent)

    def _pair(self, source: Source, event: Any, earliest: int, latest: int) -> Any:
        """Literal: something at this event reads this instance."""
        literal = self.cp.new_bool_var("")
        if source.present is not None:
            self.cp.add_implication(literal, source.present)
        if source.latest >= earliest:
            self.cp.add(source.start + 1 <= event).only_enforce_if(literal)
        self.cp.add(event <= source.end).only_enforce_if(literal)
        return literal

    def run_one_at_a_time(self) -> None:
        """No two free computations at the same event."""
        self.cp.add_no_overlap(
            [at_event(self.cp, made.start, made.present) for family in self.families.values() for made in family]
        )

    def finish(self, capacity_bytes: tuple[int, int]) -> WindowModel | None:
        """The memory constraint, in the largest unit that loses nothing, and what may be minimised."""
        low, high = capacity_bytes
        unit = math.gcd(*self.demands_bytes) or 1
        peak = self.cp.new_int_var(low // unit, max(low // unit, high // unit), "")
        most = sum(self.demands_bytes)
        for begin, end, held_bytes in self.cut.background:
            if held_bytes > high:
                return None
            if held_bytes + most > low:
                self.intervals.append(self.cp.new_fixed_size_interval_var(begin, end - begin + 1, ""))
                self.demands_bytes.append(-(-held_bytes // unit) * unit)
        self.cp.add_cumulative(self.intervals, [demand // unit for demand in self.demands_bytes], peak)
        computations = tuple(made for family in self.families.values() for made in family)
        # The time of the optional computations is counted in the largest unit that loses nothing.
        optional = [made for made in computations if made.present is not None]
        times = [self.problem.ops[made.run.op].time_ns[0] or 0 for made in optional]
        time_unit = math.gcd(*times) or 1
        terms = [time // time_unit * made.present for made, time in zip(optional, times, strict=True)]
        extra_time = cp_model.LinearExpr.sum(terms)
        return WindowModel(self.cut, self.cp, computations, extra_time, time_unit, peak, unit)


def read_window(model: WindowModel, value: Callable[[Any], int]) -> list[int]:
    """The ops of the stretch in order, skeleton and free computations together."""
    width = model.cut.width
    found = [(number * width + width - 1, op) for number, op in enumerate(model.cut.skeleton)]
    for made in model.computations:
        if made.present is None or value(made.present):
            found.append((value(made.start), made.run.op))
    return [op for _, op in sorted(found)]
