"""Frontier bound for several memories: stages between ops that follow one another in every order, and copies.

Choose boundaries b_0, ..., b_{K-1} whose first computations come in this order in every schedule of the space: each an
ancestor of the next, or, where first computations follow the baseline order, any. Stage k is all steps after the first
computation of b_{k-1} (stage 0: from the start) up to and including that of b_k; stage K is the rest. Of any schedule
look only at R[k,v,m], whether op v runs in memory m in stage k; P[k,x,s,m], whether tensor x is copied from s to m in
stage k; S[k,x,m], whether an instance of x that is read later, or is the last of a kept x, is in m right after the
first computation of b_{k-1}; H[k,x,m], whether such an instance is in m at all steps of stage k; and Z[w,m], whether m
ever holds weight w of ops. With A[k,x,m] = S[k,x,m] + R[k,op(x),m], where x may be from, they satisfy

    (i)   R[k,v,m] <= A[k,x,m] + sum over s of P[k,x,s,m]                     x read by v
    (ii)  S[k+1,x,m] <= A[k,x,m] + sum over s of P[k,x,s,m]                   S[0] = 0; for kept x S[K+1] adds up to 1
    (iii) P[k,x,s,m] <= A[k,x,s] + sum over r of P[k,x,r,s], and
          P[k,x,s,m] <= A[k,x,s] + A[k,x,m] + sum over r other than s and m of P[k,x,r,s] + P[k,x,r,m]
    (iv)  working(b_k) R[k,b_k,m] + sum m[x] S[k+1,x,m] <= M                  over classes that b_k does not touch, and
          sum m[x] S[k+1,x,m] <= M                                            over all classes
    (v)   H[k,x,m] >= S[k+1,x,m] - R[k,op(x),m] - sum over s of P[k,x,s,m], and
          H[k,x,m] >= R[k,b_k,m] - R[k,op(x),m] - sum over s of P[k,x,s,m]    x read by b_k
    (vi)  working(v) R[k,v,m] + sum m[x] H[k,x,m] <= M                        over classes that v does not touch
    (vii) R[k,v,m] = 0 for k < lo(v); the sum of R[k,v,m] over m and lo(v) <= k <= hi(v) is at least 1
    (viii) Z[w,m] >= R[k,v,m] for ops v with weight w

where M is the budget of m less what is fixed in it and less the weights that Z says it holds, lo(v) is one more than
the last boundary that comes before v, and hi(v) the first that is v or comes after it (K if there is none). The time is
at least the sum of time[v][m] R[k,v,m] and copy[s][m][x] P[k,x,s,m]. Where copies overlap computes it is at least the
sum over R, and for each link the sum over its P.

(i) When v first runs in m in the stage, x was there before the stage, or was made there or copied there in it. (ii)
Likewise at the end of the stage; the last instance of a kept x is in some memory. (iii) So at the first copy from s to
m. If what made x present in s was a copy from m in the stage, follow it back: m had x from before the stage, made it,
or got it from a third memory, since nothing was copied from s to m before. (iv) These instances are not made by b_k, or
are in its classes, so they are there during its step; after it they are all there together. (v) An instance that is
there at the end of the stage, or is read by its last step, and was neither made nor copied to m in the stage, was there
at all of its steps. (vi) holds when v runs in m. (vii) A descendant of b_j cannot run before b_j ran first; an ancestor
of b_j has run when b_j runs first; b_j itself runs once in stage j. What happens often in a stage costs at least once.
No step uses an order within a stage. So the least cost under these rows is a lower bound, and if they contradict each
other there is no schedule. Sums over tensors count storage once, as `_bounds.devices_rooms` explains. At the end all
kept tensors are in storages of their own; those in m fit into it.

Without boundaries this is the cut of `_bounds.devices` for any number of memories, under the weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from remat_cli.solvers.bounds.devices_rooms import Room, Rooms
from remat_cli.solvers.bounds.free_frontier import chain_windows
from remat_cli.solvers.milp.program import Milp, Terms


@dataclass(frozen=True)
class StageRanges:
    """Boundaries, and for each op the first stage it can run in and the stage in which it has surely run."""

    boundaries: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]


def free_windows(rooms: Rooms, chain: Sequence[int]) -> StageRanges:
    """Of boundaries each an ancestor of the next, in any order of the rest."""
    low, high = chain_windows(rooms.problem, chain)
    return StageRanges(tuple(chain), tuple(low), tuple(high))


def ordered_windows(rooms: Rooms, boundaries: Sequence[int]) -> StageRanges:
    """Of any boundaries in rising order, when first computations follow the baseline order."""
    stages = [sum(boundary < op for boundary in boundaries) for op in range(len(rooms.problem.ops))]
    return StageRanges(tuple(boundaries), tuple(stages), tuple(stages))


def device_frontier_milp(rooms: Rooms, windows: StageRanges) -> Milp:
    """A mixed-integer program whose least cost, in time units, no schedule on several devices is below."""
    builder = DeviceFrontier(rooms, windows)
    builder.build()
    return builder.milp


@dataclass
class DeviceStage:
    """`runs[v, m]` is R, `copied[x, s, m]` is P, `stays[x, m]` is S right before the stage; what is absent is 0."""

    number: int
    stays: dict[tuple[int, int], int]
    runs: dict[tuple[int, int], int] = field(default_factory=dict)
    copied: dict[tuple[int, int, int], int] = field(default_factory=dict)
    arrivals: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    after: dict[tuple[int, int], int] = field(default_factory=dict)


@dataclass
class DeviceFrontier:
    """Writes the rows stage by stage; `held[m]` is the bytes of weights in a limited memory."""

    rooms: Rooms
    windows: StageRanges
    milp: Milp = field(default_factory=Milp)
    stages: list[DeviceStage] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)
    spent: dict[object, Terms] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ops, self.tensors = self.rooms.problem.ops, self.rooms.problem.tensors
        self.last = len(self.windows.boundaries)
        self.limited = [(m, room) for m, room in enumerate(self.rooms.rooms) if room.is_limited]
        self.overlaps = self.rooms.problem.overlap

    def build(self) -> None:
        """Add all rows and costs of the program."""
        for number in range(self.last + 1):
            stage = DeviceStage(number, self.stages[-1].after if self.stages else {})
            self.stages.append(stage)
            self._fill(stage)
            self._supply(stage)
        self._hold_weights()
        for op in range(len(self.ops)):
            self._count(op)
        for stage in self.stages:
            self._fit(stage)
        # Kept tensors are somewhere at the end, and fit there.
        final = self.stages[-1].after
        for tensor, spec in enumerate(self.tensors):
            if spec.kept:
                places = [(1, variable) for (kept, _), variable in final.items() if kept == tensor]
                self.milp.at_least(places, 1)
        for memory, room in self.limited:
            self._within(
                memory, [(room.outputs[x], variable) for (x, where), variable in final.items() if where == memory]
            )
        if self.overlaps:
            # The time of a schedule in which computes, and the copies of each link, run one after the other.
            most = max((sum(time for time, _ in terms) for terms in self.spent.values()), default=0)
            span = self.milp.add(upper=most, cost=1)
            for terms in self.spent.values():
                self.milp.at_least([(1, span), *((-time, variable) for time, variable in terms)], 0)

    def _fill(self, stage: DeviceStage) -> None:
        """The variables of a stage: R, ops that run on a device, and P, tensors that are copied."""
        number = stage.number
        for op, times in enumerate(self.rooms.times):
            repeats = self.ops[op].repeatable and any(self._is_used(tensor) for tensor in self.ops[op].outputs)
            if self.windows.low[op] <= number and (number <= self.windows.high[op] or repeats):
                for memory, time in enumerate(times):
                    if time is not None:
                        stage.runs[op, memory] = self._paid(time, "compute")
        for tensor in range(len(self.tensors)):
            if self.windows.low[self.rooms.producer(tensor)] <= number and self._is_used(tensor):
                for source, target, time in self.rooms.links(tensor):
                    variable = self._paid(time, (source, target))
                    stage.copied[tensor, source, target] = variable
                    stage.arrivals.setdefault((tensor, target), []).append(variable)

    def _is_used(self, tensor: int) -> bool:
        return bool(self.rooms.readers[tensor]) or self.tensors[tensor].kept

    def _paid(self, time: int, where: object) -> int:
        """A variable that costs time; where copies overlap, in one of several sums."""
        variable = self.milp.add(cost=0 if self.overlaps else time)
        if self.overlaps and time:
            self.spent.setdefault(where, []).append((time, variable))
        return variable

    def _origins(self, stage: DeviceStage, tensor: int, memory: int) -> list[int]:
        """A[k,x,m]: what puts a tensor into a memory in or before a stage, other than a copy in it."""
        found = (stage.stays.get((tensor, memory)), stage.runs.get((self.rooms.producer(tensor), memory)))
        return [variable for variable in found if variable is not None]

    def _sources(self, stage: DeviceStage, tensor: int, memory: int) -> list[int]:
        return self._origins(stage, tensor, memory) + stage.arrivals.get((tensor, memory), [])

    def _supply(self, stage: DeviceStage) -> None:
        """Rows (i) to (iii): what an op or a copy reads is there, and so is S, what a memory holds after a stage."""
        for (op, memory), run in stage.runs.items():
            for tensor in self.ops[op].inputs:
                self.milp.implies(run, self._sources(stage, tensor, memory))
        for (tensor, source, target), copied in stage.copied.items():
            self.milp.implies(copied, self._sources(stage, tensor, source))
            third = [m for m in range(len(self.rooms.rooms)) if m not in (source, target)]
            more = [stage.copied.get((tensor, m, end)) for m in third for end in (source, target)]
            origins = self._origins(stage, tensor, source) + self._origins(stage, tensor, target)
            self.milp.implies(copied, [*origins, *(variable for variable in more if variable is not None)])
        is_last = stage.number == self.last
        for tensor, spec in enumerate(self.tensors):
            is_made = self.windows.low[self.rooms.producer(tensor)] <= stage.number
            is_needed = is_made and (spec.kept if is_last else self._is_used(tensor))
            for memory in range(len(self.rooms.rooms)) if is_needed else ():
                sources = self._sources(stage, tensor, memory)
                if sources:
                    stage.after[tensor, memory] = self.milp.add()
                    self.milp.implies(stage.after[tensor, memory], sources)

    def _hold_weights(self) -> None:
        """Rows (viii): weights that a memory holds, and their sum in each limited memory."""
        for memory, room in self.limited:
            holds: dict[int, int] = {}
            for stage in self.stages:
                for (op, where), run in stage.runs.items():
                    for weight in self.ops[op].weights if where == memory else ():
                        if weight not in holds:
                            holds[weight] = self.milp.add()
                        self.milp.implies(run, [holds[weight]])
            terms = [(room.fixed[weight], variable) for weight, variable in holds.items() if room.fixed[weight]]
            if terms:
                self.held[memory] = self.milp.add(upper=max(0, room.capacity), integral=False)
                self.milp.at_most([*terms, (-1, self.held[memory])], 0)

    def _count(self, op: int) -> None:
        """Rows (vii): how often an op runs."""
        low, high = self.windows.low[op], self.windows.high[op]
        keys = [(op, memory) for memory in range(len(self.rooms.rooms))]
        runs = [(stage.number, stage.runs[key]) for stage in self.stages for key in keys if key in stage.runs]
        self.milp.at_least([(1, run) for number, run in runs if low <= number <= high], 1)
        if not self.ops[op].repeatable:
            self.milp.at_most([(1, run) for _, run in runs], 1)
        elif op in self.windows.boundaries:
            stage = self.windows.boundaries.index(op)
            self.milp.at_most([(1, run) for number, run in runs if number == stage], 1)

    def _fit(self, stage: DeviceStage) -> None:
        """Rows (iv), (v) and (vi): all that a memory holds in a stage fits into it."""
        for memory, room in self.limited:
            through = self._by_class(room, self._through(stage, memory))
            total = self.milp.add(upper=max(0, room.capacity), integral=False)
            self.milp.at_most([*((room.weight[root], held) for root, held in through.items()), (-1, total)], 0)
            for (op, where), run in stage.runs.items():
                if where == memory:
                    own = [(-room.weight[root], through[root]) for root in self.rooms.own[op] if root in through]
                    self._within(memory, [(1, total), *own, (room.working[op], run)])
            if stage.number < self.last:
                op = self.windows.boundaries[stage.number]
                stays = {tensor: variable for (tensor, where), variable in stage.after.items() if where == memory}
                held = self._by_class(room, stays)
                self._within(memory, [(room.weight[root], variable) for root, variable in held.items()])
                others = [
                    (room.weight[root], variable) for root, variable in held.items() if root not in self.rooms.own[op]
                ]
                if (op, memory) in stage.runs:
                    others.append((room.working[op], stage.runs[op, memory]))
                self._within(memory, others)

    def _within(self, memory: int, terms: Terms) -> None:
        """What fits into a memory beside the weights in it."""
        held = [(1, self.held[memory])] if memory in self.held else []
        self.milp.at_most([*terms, *held], self.rooms.rooms[memory].capacity)

    def _through(self, stage: DeviceStage, memory: int) -> dict[int, int]:
        """H, what stays all through a stage, with rows (v), for tensors that were there before it."""
        boundary = self.windows.boundaries[stage.number] if stage.number < self.last else None
        last_run = None if boundary is None else stage.runs.get((boundary, memory))
        last_inputs = () if boundary is None else self.ops[boundary].inputs
        through: dict[int, int] = {}
        for tensor in [tensor for tensor, where in stage.stays if where == memory]:
            causes = [stage.after.get((tensor, memory)), last_run if tensor in last_inputs else None]
            run = stage.runs.get((self.rooms.producer(tensor), memory))
            gets = [*([] if run is None else [run]), *stage.arrivals.get((tensor, memory), [])]
            for cause in causes:
                if cause is not None:
                    if tensor not in through:
                        through[tensor] = self.milp.add(integral=False)
                    self.milp.implies(cause, [through[tensor], *gets])
        return through

    def _by_class(self, room: Room, held: dict[int, int]) -> dict[int, int]:
        """Per class with weight a variable that is at least that of each of its tensors."""
        members: dict[int, list[int]] = {}
        for tensor, variable in held.items():
            if room.weight[self.rooms.class_of[tensor]] > 0:
                members.setdefault(self.rooms.class_of[tensor], []).append(variable)
        return {root: self.milp.any_of(variables) for root, variables in members.items()}
