"""Views and in-place results, taken out of a problem before a search and put back after it.

A view is an op that takes no storage; an op that works in place takes none if it is the last reader. Searches are
simpler and faster without either, so `condense` merges such ops with the op whose storage they share. What cannot be
merged gets storage of its own, which is more than the judge counts, never less.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from remat_cli.base.errors import InvalidSchedule
from remat_cli.core.schedule.graph import Phase
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import simulate
from remat_cli.solvers._precedence import readers_of
from remat_cli.solvers.base import Judge, Reason

Groups: TypeAlias = tuple[tuple[int, ...], ...]

LATE_PHASES: tuple[Phase, ...] = ("backward", "update")


@dataclass(frozen=True)
class Condensed:
    """A one-device problem without views and in-place pairs, and the way back.

    `groups[g]` are the original ops of condensed op g, leader first; `views` are the original ops that only look at
    storage. `exact` says that nothing changed, so that a proof about `problem` is a proof about `original`. Otherwise
    each schedule of `problem` maps to one of `original` with no more memory and no more time, but not conversely.
    `in_place[g]` are the inputs of condensed op g, any one of which its only output overwrites when g reads it last:
    what `problem` leaves out, for those who can follow who reads last.
    """

    original: Problem
    problem: Problem
    groups: Groups
    views: frozenset[int]
    exact: bool
    in_place: tuple[tuple[int, ...], ...] = ()

    def expand(self, schedule: Schedule, limit_bytes: int | None = None, judge: Judge = simulate) -> Schedule:
        """The schedule of the original problem: groups spelled out, dead steps dropped.

        Views run at their place in the baseline order, or where that would take more memory than `limit_bytes` (None:
        than the condensed schedule takes), elsewhere: then it takes no more than the condensed schedule.
        """
        if self.exact:
            return drop_dead(self.original, schedule)
        groups = schedule.op_ids()
        spelled = drop_dead(self.original, _Expansion(self, punctual=self.views).run(groups))
        if not self.views:
            return spelled
        limit = judge(self.problem, schedule).peak if limit_bytes is None else limit_bytes
        if judge(self.original, spelled).peak <= limit:
            return spelled
        return drop_dead(self.original, _Expansion(self, punctual=frozenset()).run(groups))

    def contract(self, schedule: Schedule) -> Schedule:
        """The condensed schedule nearest to an original one; it may need more memory, so judge it before use.

        A group runs as one: where others must come between its members, it is the baseline order.
        """
        group_of_leader = {members[0]: g for g, members in enumerate(self.groups)}
        nearest = Schedule.of_ops([group_of_leader[op] for op in schedule.op_ids() if op in group_of_leader])
        try:
            simulate(self.problem, nearest)
        except InvalidSchedule:
            return Schedule.of_ops(list(range(len(self.groups))))
        return nearest

    def in_original_terms(self, reason: Reason) -> Reason:
        """A reason that speaks of condensed ops in terms of original ones: of the first of each group."""
        return reason.renumbered([group[0] for group in self.groups])


def condense(problem: Problem) -> Condensed:
    """Merge views and in-place ops with the op whose storage they share; one device.

    A view of one runtime input joins the producer of that input, wherever it stands. An in-place op joins when it is
    the only reader of its source and follows the producer's group directly in baseline order, so that merging changes
    no order. A view that is a model output, needs workspace, or whose shape is computed at run time, becomes an op
    with storage of its own.
    """
    if not any(spec.in_place for spec in problem.ops) and all(spec.view_of is None for spec in problem.tensors):
        alone = tuple((op,) for op in range(len(problem.ops)))
        return Condensed(problem, problem, alone, frozenset(), True, ((),) * len(alone))
    merger = _Merger(problem)
    for op in range(len(problem.ops)):
        merger.place(op)
    groups = merger.groups()
    class_of = _storage_classes(problem, groups, merger.views)
    merged = _merged_problem(problem, groups, class_of, merger.views)
    # In place: per group the inputs that its leader may overwrite and that nothing else in the group reads.
    made = [
        root for ops in groups for root in dict.fromkeys(class_of[t] for op in ops for t in problem.ops[op].outputs)
    ]
    new_id = {root: number for number, root in enumerate(made)}
    found = []
    for group, members in zip(merged.ops, groups, strict=True):
        sources = [new_id[class_of[source]] for source, _ in problem.ops[members[0]].in_place]
        reads = [new_id[class_of[t]] for op in members for t in problem.ops[op].inputs]
        result = merged.tensors[group.outputs[0]] if len(group.outputs) == 1 else None
        found.append(
            tuple(
                source
                for source in dict.fromkeys(sources)
                if result is not None
                and not result.kept
                and reads.count(source) == 1
                and merged.tensors[source].size_bytes == result.size_bytes
            )
        )
    return Condensed(problem, merged, groups, frozenset(merger.views), False, tuple(found))


def drop_dead(problem: Problem, schedule: Schedule) -> Schedule:
    """Leave out recomputes whose results nobody reads, nor would after the others have gone; one device.

    One pass from the end: a recompute stays when a later step that stays reads what it makes. A first computation
    stays even when nobody reads it: without it the next one would be first, and first computations would no longer be
    in the order that the space (`first_in_order`, `staged`) asks for.
    """
    ops = schedule.op_ids()
    kept = {tensor for tensor, spec in enumerate(problem.tensors) if spec.kept}
    places = _needed_places(problem, ops, kept, True)
    return schedule if len(places) == len(ops) else Schedule(tuple(schedule.steps[place] for place in places))


def read_later(problem: Problem, ops: Sequence[int]) -> list[int]:
    """Leave out steps whose results nobody reads, nor would after the others have gone; one device.

    Every op stays once, with what it reads. Other than `drop_dead` this may take out a first computation.
    """
    return [ops[place] for place in _needed_places(problem, ops, set(), False)]


def _needed_places(problem: Problem, ops: Sequence[int], wanted: set[int], keeps_first: bool) -> list[int]:
    """Places of the steps that make what is wanted at the end or read by later ones that stay, and of each op one.

    That is its first with `keeps_first`, else its first if no later one stays.
    """
    first = {op: place for place, op in reversed(list(enumerate(ops)))}
    places: list[int] = []
    stayed: set[int] = set()
    for place in range(len(ops) - 1, -1, -1):
        op = ops[place]
        spec = problem.ops[op]
        is_due = first[op] == place and (keeps_first or op not in stayed)
        if is_due or not wanted.isdisjoint(spec.outputs):
            wanted.difference_update(spec.outputs)
            wanted.update(spec.inputs)
            places.append(place)
            stayed.add(op)
    return places[::-1]


@dataclass
class _Merger:
    """Decides, op by op in baseline order, which group an op joins."""

    problem: Problem
    leader_of: dict[int, int] = field(default_factory=dict)
    views: set[int] = field(default_factory=set)
    last_group: int = -1

    def __post_init__(self) -> None:
        self.readers = readers_of(self.problem)

    def place(self, op: int) -> None:
        """Put one op into the group of an earlier op, or let it lead its own."""
        spec, tensors = self.problem.ops[op], self.problem.tensors
        if (
            len(spec.inputs) == 1
            and spec.workspace_bytes[0] <= 0
            and all(tensors[t].view_of is not None and not tensors[t].kept for t in spec.outputs)
        ):
            self.views.add(op)
            self.leader_of[op] = self.leader_of[tensors[spec.inputs[0]].producer]
            return
        overwrites = (
            len(spec.outputs) == 1
            and not tensors[spec.outputs[0]].kept
            and any(
                self._only_reader(op, source) and self.leader_of[tensors[source].producer] == self.last_group
                for source, _ in spec.in_place
            )
        )
        if not overwrites:
            self.last_group = op
        self.leader_of[op] = self.last_group

    def groups(self) -> Groups:
        """Members of each group, leader first, groups in the order of their leaders."""
        members: dict[int, list[int]] = {}
        for op, leader in self.leader_of.items():
            members.setdefault(leader, []).append(op)
        return tuple(tuple(members[leader]) for leader in sorted(members))

    def _only_reader(self, op: int, source: int) -> bool:
        """Whether nothing but `op` reads the storage of `source`, apart from the views between."""
        tensors = self.problem.tensors
        while True:
            if tensors[source].kept or self.readers[source] != [op]:
                return False
            producer = tensors[source].producer
            if producer not in self.views:
                return tensors[source].view_of is None and tensors[source].size_bytes > 0
            op, source = producer, self.problem.ops[producer].inputs[0]


def _merged_problem(problem: Problem, groups: Groups, class_of: list[int], views: set[int]) -> Problem:
    """One op per group, one tensor per storage.

    A group has the phase of its leader, or that of the backward op or update that overwrites the only result of a
    forward leader: nothing forward reads such a result, so the group is there for the backward part alone.
    """
    kept = {class_of[t] for t, spec in enumerate(problem.tensors) if spec.kept}
    ops: list[OpSpec] = []
    tensors: list[TensorSpec] = []
    new_id: dict[int, int] = {}
    for index, members in enumerate(groups):
        made = dict.fromkeys(class_of[t] for op in members for t in problem.ops[op].outputs)
        for root in made:
            new_id[root] = len(tensors)
            tensors.append(TensorSpec(problem.tensors[root].size_bytes, index, kept=root in kept))
        read = dict.fromkeys(class_of[t] for op in members for t in problem.ops[op].inputs)
        leader, *others = (problem.ops[op] for op in members if op not in views)
        late = [spec.phase for spec in others if spec.phase in LATE_PHASES]
        is_late = late and leader.phase not in LATE_PHASES and len(leader.outputs) == 1
        ops.append(
            OpSpec(
                inputs=tuple(new_id[root] for root in read if root not in made),
                outputs=tuple(new_id[root] for root in made),
                time_ns=(sum(problem.ops[op].time_ns[0] or 0 for op in members),),
                workspace_bytes=(max(problem.ops[op].workspace_bytes[0] for op in members),),
                repeatable=all(problem.ops[op].repeatable for op in members),
                phase=late[0] if is_late else leader.phase,
            )
        )
    return msgspec.structs.replace(problem, ops=tuple(ops), tensors=tuple(tensors))


def _storage_classes(problem: Problem, groups: Groups, views: set[int]) -> list[int]:
    """For each tensor, the tensor whose storage it shares inside its group (itself, when it has its own)."""
    class_of = list(range(len(problem.tensors)))
    for leader, *others in groups:
        made = set(problem.ops[leader].outputs)
        for op in others:
            spec = problem.ops[op]
            sources = spec.inputs[:1] if op in views else [source for source, _ in spec.in_place]
            shared = next(class_of[source] for source in sources if class_of[source] in made)
            for output in spec.outputs:
                class_of[output] = shared
    return class_of


class _Expansion:
    """Writes out groups. Views, unlike other ops, may leave their place in the baseline order to save memory.

    A punctual view runs at its own place at the latest; another just before it is read. One that nobody reads runs
    directly behind its group, when it is not punctual.
    """

    def __init__(self, condensed: Condensed, punctual: frozenset[int]) -> None:
        self.condensed = condensed
        self.problem = condensed.original
        self.punctual = punctual
        # Views that some op other than a view reads, directly or through further views.
        problem = condensed.original
        wanted = [t for op, spec in enumerate(problem.ops) if op not in condensed.views for t in spec.inputs]
        found: set[int] = set()
        while wanted:
            producer = problem.tensors[wanted.pop()].producer
            if producer in condensed.views and producer not in found:
                found.add(producer)
                wanted += problem.ops[producer].inputs
        self.read = frozenset(found)
        self.steps: list[int] = []
        self.ran: set[int] = set()
        self.waiting: set[int] = set()
        self.due: list[int] = []

    def run(self, groups: list[int]) -> Schedule:
        """The steps of these condensed ops, one after the other."""
        for group in groups:
            # Emit the ops of a group; its views start waiting anew.
            members = self.condensed.groups[group]
            if members[0] not in self.ran:
                while self.due and self.due[0] < members[0]:
                    self._emit_new({heapq.heappop(self.due)})
            for op in members:
                if op in self.condensed.views:
                    # Hold a view back until it is read, or until its place if it is punctual and has not run before.
                    self.waiting.add(op)
                    if op in self.punctual and op not in self.ran:
                        heapq.heappush(self.due, op)
                else:
                    self._emit(op)
            self._emit_new(self.waiting.intersection(members) - self.read - self.punctual)
        self._emit_new(self.waiting)
        return Schedule.of_ops(self.steps)

    def _emit_new(self, views: set[int]) -> None:
        for view in sorted(views - self.ran):
            if view not in self.ran:
                self._emit(view)

    def _emit(self, op: int) -> None:
        for tensor in self.problem.ops[op].inputs:
            producer = self.problem.tensors[tensor].producer
            if producer in self.waiting:
                self._emit(producer)
        self.waiting.discard(op)
        self.ran.add(op)
        self.steps.append(op)
