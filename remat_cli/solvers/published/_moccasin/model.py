"""The CP-SAT model of Moccasin: retention intervals, O(C n) of them.

Bartan et al., "Moccasin: Efficient Tensor Rematerialization for Neural Networks", ICML 2023, section 2. Symbols of the
paper: `a[v,i]` is Computation.present, `s[v,i]` Computation.start, `e[x,i]` Retention.end; C_v is Calendar.copies. Ends
belong to tensors, not to ops, so that results of one op die separately. The reservoir of the paper's precedence is
shifted by one event, without which a reader could not start at the end of an interval although (5) allows it.

At the end: schedules to hints, and solutions to schedules.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from ortools.sat.python import cp_model

from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers._precedence import readers_of
from remat_cli.solvers.milp.cp_sat import OutOfTime, Units, at_event, lasting
from remat_cli.solvers.published._moccasin.clock import Calendar, EventRange

Precedence = Literal["pairing", "reservoir"]


@dataclass(frozen=True)
class Start:
    """s[v,i]: an event of a window, linear in `key`; `key` is None where the window has one event."""

    window: EventRange
    key: Any

    @property
    def event(self) -> Any:
        """The event number as a linear expression."""
        if self.key is None:
            return self.window.earliest
        return self.window.scale * self.key + self.window.offset


@dataclass(frozen=True)
class Computation:
    """One of the C_v computations of an op; `present` is a[v,i], None for the first, which always is."""

    op: int
    start: Start
    present: Any


@dataclass(frozen=True)
class Retention:
    """One interval [start, end] in which a tensor is in memory; `length` is None where the start is constant.

    `kept` is the literal "this one lasts to the horizon", for tensors that are kept.
    """

    end: Any
    length: Any
    interval: Any
    kept: Any


@dataclass(frozen=True)
class Pair:
    """Literal: computation `reader_copy` of op `reader` takes its input `tensor` from instance `copy`."""

    tensor: int
    reader: int
    reader_copy: int
    copy: int
    literal: Any


@dataclass(frozen=True)
class MoccasinModel:
    """A built model with its families of variables: computations[v][i], retentions[x][i], pairs."""

    problem: Problem
    clock: Calendar
    units: Units
    cp: Any
    capacity: Any
    computations: tuple[tuple[Computation, ...], ...]
    retentions: tuple[tuple[Retention, ...], ...]
    pairs: tuple[Pair, ...]


def build_model(
    problem: Problem,
    clock: Calendar,
    units: Units,
    precedence: Precedence,
    capacity: tuple[int, int],
    is_over: Callable[[], bool],
) -> MoccasinModel:
    """All variables and constraints but the objective; `capacity` is the range of the peak in byte units.

    Raises:
        OutOfTime: `is_over` says so before the model is complete.
    """
    builder = _Builder(problem, clock, units, is_over)
    builder.add_computations()
    builder.add_retentions()
    builder.separate_instances()
    builder.limit_memory(capacity)
    if precedence == "pairing":
        builder.pair_readers()
    else:
        builder.level_readers()
    if clock.stage_base is None:
        builder.run_one_at_a_time()
    return builder.model()


def minimise_peak(model: MoccasinModel) -> None:
    """Objective of phase 1: the peak, or the budget where that is larger."""
    model.cp.minimize(model.capacity)


def minimise_time(model: MoccasinModel) -> None:
    """Objective of phase 2: time of all recomputes in time units."""
    times = [(op.time_ns[0] or 0) // model.units.time_unit for op in model.problem.ops]
    extra = [times[c.op] * c.present for copies in model.computations for c in copies[1:]]
    model.cp.minimize(cp_model.LinearExpr.sum(extra))


@dataclass
class _Builder:
    """Collects variables and constraints family by family, in the order of `build_model`."""

    problem: Problem
    clock: Calendar
    units: Units
    is_over: Callable[[], bool]
    cp: Any = field(default_factory=cp_model.CpModel)
    capacity: Any = None
    computations: list[tuple[Computation, ...]] = field(default_factory=list)
    retentions: list[tuple[Retention, ...]] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.readers = readers_of(self.problem)

    def model(self) -> MoccasinModel:
        """The model that was built."""
        families = tuple(self.computations), tuple(self.retentions), tuple(self.pairs)
        return MoccasinModel(self.problem, self.clock, self.units, self.cp, self.capacity, *families)

    def check_time(self) -> None:
        """Stop building when time is up."""
        if self.is_over():
            raise OutOfTime

    def add_computations(self) -> None:
        """a[v,i] and s[v,i]; a later copy is used only after an earlier one."""
        for op, copies in enumerate(self.clock.copies):
            self.check_time()
            family = [Computation(op, self._start(self.clock.first[op]), None)]
            later = self.clock.later[op]
            for _ in range(1, copies):
                assert later is not None
                present = self.cp.new_bool_var("")
                if family[-1].present is not None:
                    self.cp.add_implication(present, family[-1].present)
                family.append(Computation(op, self._start(later), present))
            self.computations.append(tuple(family))

    def _start(self, window: EventRange) -> Start:
        keys = window.keys
        if len(keys) == 1:
            return Start(window, None)
        if isinstance(keys, range):
            return Start(window, self.cp.new_int_var(keys[0], keys[-1], ""))
        return Start(window, self.cp.new_int_var_from_domain(cp_model.Domain.from_values(keys), ""))

    def add_retentions(self) -> None:
        """e[x,i] and the interval [s, e] of each instance; one interval of a kept tensor lasts to the horizon."""
        for tensor, spec in enumerate(self.problem.tensors):
            self.check_time()
            # Last event at which the tensor can be read; without readers, its latest start.
            if self.problem.tensors[tensor].kept:
                latest = self.clock.horizon
            else:
                events = [self._latest_start(op) for op in self.readers[tensor]]
                latest = max([self._latest_start(self.problem.tensors[tensor].producer), *events])
            family = []
            for made in self.computations[spec.producer]:
                window, start = made.start.window, made.start.event
                end = self.cp.new_int_var(window.earliest, latest, "")
                length = None if made.start.key is None else self.cp.new_int_var(1, latest + 1 - window.earliest, "")
                interval = lasting(self.cp, start, end + 1 - start if length is None else length, end, made.present)
                kept = self.cp.new_bool_var("") if spec.kept else None
                if spec.kept:
                    self.cp.add(end == self.clock.horizon).only_enforce_if(kept)
                    if made.present is not None:
                        self.cp.add_implication(kept, made.present)
                family.append(Retention(end, length, interval, kept))
            if spec.kept:
                self.cp.add_exactly_one([retention.kept for retention in family])
            self.retentions.append(tuple(family))

    def _latest_start(self, op: int) -> int:
        later = self.clock.later[op] if self.clock.copies[op] > 1 else None
        return max(self.clock.first[op].latest, later.latest if later else 0)

    def separate_instances(self) -> None:
        """An instance has ended when the next one of the same op starts; reads take the newest, so nothing is lost."""
        for tensor, spec in enumerate(self.problem.tensors):
            copies = self.computations[spec.producer]
            for older, newer in zip(self.retentions[tensor], copies[1:], strict=False):
                self.cp.add(older.end < newer.start.event).only_enforce_if(newer.present)

    def limit_memory(self, capacity: tuple[int, int]) -> None:
        """One cumulative over all retention intervals, and over workspaces at their own event."""
        self.capacity = self.cp.new_int_var(*capacity, "")
        intervals, demands = [], []
        for family, size in zip(self.retentions, self.units.sizes[0], strict=True):
            if size > 0:
                intervals += [retention.interval for retention in family]
                demands += [size] * len(family)
        for copies, (workspace,) in zip(self.computations, self.units.workspaces, strict=True):
            if workspace > 0:
                intervals += [at_event(self.cp, computation.start.event, computation.present) for computation in copies]
                demands += [workspace] * len(copies)
        self.cp.add_cumulative(intervals, demands, self.capacity)

    def pair_readers(self) -> None:
        """Each computation reads each input from one instance that covers its start, named by a literal."""
        for op, spec in enumerate(self.problem.ops):
            self.check_time()
            for tensor in spec.inputs:
                for copy, reader in enumerate(self.computations[op]):
                    found = self._possible_pairs(tensor, copy, reader)
                    self.pairs += found
                    absent = [] if reader.present is None else [reader.present.negated()]
                    self.cp.add_bool_or([pair.literal for pair in found] + absent)

    def _possible_pairs(self, tensor: int, reader_copy: int, reader: Computation) -> list[Pair]:
        sources = self.computations[self.problem.tensors[tensor].producer]
        found = []
        for copy, (source, held) in enumerate(zip(sources, self.retentions[tensor], strict=True)):
            if source.start.window.earliest >= reader.start.window.latest:
                continue
            pair = Pair(tensor, reader.op, reader_copy, copy, self.cp.new_bool_var(""))
            if source.present is not None:
                self.cp.add_implication(pair.literal, source.present)
            if source.start.window.latest >= reader.start.window.earliest:
                self.cp.add(source.start.event + 1 <= reader.start.event).only_enforce_if(pair.literal)
            self.cp.add(reader.start.event <= held.end).only_enforce_if(pair.literal)
            found.append(pair)
        return found

    def level_readers(self) -> None:
        """Each computation finds at least one live instance of each input: a reservoir that never runs below zero."""
        for op, spec in enumerate(self.problem.ops):
            self.check_time()
            for tensor in spec.inputs:
                for reader in self.computations[op]:
                    times: list[Any] = []
                    changes: list[int] = []
                    active: list[Any] = []
                    sources = self.computations[self.problem.tensors[tensor].producer]
                    for source, held in zip(sources, self.retentions[tensor], strict=True):
                        times += [source.start.event + 1, held.end + 1]
                        changes += [1, -1]
                        active += [True if source.present is None else source.present] * 2
                    times += [reader.start.event, reader.start.event + 1]
                    changes += [-1, 1]
                    active += [True if reader.present is None else reader.present] * 2
                    self.cp.add_reservoir_constraint_with_active(times, changes, active, 0, len(sources))

    def run_one_at_a_time(self) -> None:
        """Free order only: no two computations start at the same event."""
        self.cp.add_no_overlap(
            [at_event(self.cp, made.start.event, made.present) for copies in self.computations for made in copies]
        )


def _placed(
    problem: Problem, ops: list[int], events: list[int], horizon: int
) -> tuple[list[list[int]], list[list[int]], dict[tuple[int, int, int], int]]:
    """Follow a sequence of ops at these events; reads take the newest instance, kept tensors end at the horizon.

    `starts[v]` are the events of op v's computations; `ends[x][i]` the last read of instance i of tensor x;
    `sources[v, i, x]` the instance of x that computation i of op v reads.
    """
    starts: list[list[int]] = [[] for _ in problem.ops]
    ends: list[list[int]] = [[] for _ in problem.tensors]
    sources: dict[tuple[int, int, int], int] = {}
    for event, op in sorted(zip(events, ops, strict=True)):
        for tensor in problem.ops[op].inputs:
            sources[op, len(starts[op]), tensor] = len(ends[tensor]) - 1
            if ends[tensor]:
                ends[tensor][-1] = event
        starts[op].append(event)
        for tensor in problem.ops[op].outputs:
            ends[tensor].append(event)
    for tensor, spec in enumerate(problem.tensors):
        if spec.kept and ends[tensor]:
            ends[tensor][-1] = horizon
    return starts, ends, sources


def add_hint(model: MoccasinModel, ops: list[int], events: list[int], capacity: int) -> None:
    """Hint every variable of the model from a schedule whose peak is `capacity` byte units."""
    starts, ends, sources = _placed(model.problem, ops, events, model.clock.horizon)
    model.cp.add_hint(model.capacity, capacity)
    for op, copies in enumerate(model.computations):
        for copy, made in enumerate(copies):
            event = starts[op][copy : copy + 1]
            if made.present is not None:
                model.cp.add_hint(made.present, bool(event))
            window = made.start.window
            if made.start.key is not None:
                model.cp.add_hint(
                    made.start.key, (event[0] - window.offset) // window.scale if event else window.keys[0]
                )
    for tensor, family in enumerate(model.retentions):
        producer = model.problem.tensors[tensor].producer
        lives = list(zip(starts[producer], ends[tensor], strict=True))
        for copy, (made, held) in enumerate(zip(model.computations[producer], family, strict=True)):
            earliest = made.start.window.earliest  # an absent instance may have any life; it gets the shortest
            start, end = lives[copy] if copy < len(lives) else (earliest, earliest)
            model.cp.add_hint(held.end, end)
            if held.length is not None:
                model.cp.add_hint(held.length, end + 1 - start)
            if held.kept is not None:
                model.cp.add_hint(held.kept, copy == len(lives) - 1)
    for pair in model.pairs:
        is_source = sources.get((pair.reader, pair.reader_copy, pair.tensor)) == pair.copy
        model.cp.add_hint(pair.literal, is_source)


def read_ops(model: MoccasinModel, value: Callable[[Any], int]) -> list[int]:
    """Ops of the present computations of a solution, in the order of their events."""
    found = []
    for copies in model.computations:
        for made in copies:
            if made.present is None or value(made.present):
                found.append((value(made.start.event), made.op))
    return [op for _, op in sorted(found)]
