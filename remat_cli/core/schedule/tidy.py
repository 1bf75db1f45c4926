"""What is done to a found plan: what nobody reads is left out, and another order needs fewer gates.

Solvers shuffle what is equal to them. The runtime runs ops in an order of its own, and of two sessions one prefers
the first of several ready ops and the other the last: both run a file as it is written only where every op reads from
the op just before it. Each step that does not is a break, and costs a gate. A calm plan has few breaks: it goes on
with a reader of the step before wherever it can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from remat_cli.core.schedule.orders import chained_order, inverse
from remat_cli.core.schedule.plan import Compute, Plan, Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import simulate


def tidy(problem: Problem, plan: Plan) -> Plan:
    """Leave out computations that nobody reads and whose op runs elsewhere; never slower, never larger.

    A first computation may go too, so first computations may then come in another order than before. Linear in the
    number of steps and reads: what a step read goes on to be looked at when the step goes.
    """
    steps = plan.schedule.steps
    # How many reads each instance has; the newest of a model output has one more, the caller's.
    uses = [0] * len(plan.instances)
    for reads in plan.reads:
        for instance in reads:
            uses[instance] += 1
    newest = {each.tensor: number for number, each in enumerate(plan.instances)}
    for tensor, number in newest.items():
        uses[number] += problem.tensors[tensor].kept
    runs = Counter(plan.schedule.op_ids())
    dropped: set[int] = set()
    unread = [number for number, made in enumerate(plan.makes) if not any(uses[instance] for instance in made)]
    while unread:
        gone = []
        for number in unread:
            step = steps[number]
            if isinstance(step, Compute) and runs[step.op] > 1:
                runs[step.op] -= 1
                gone.append(number)
        dropped.update(gone)
        # Without the reads of these steps, nobody may read what others made.
        touched = set()
        for number in gone:
            for instance in plan.reads[number]:
                uses[instance] -= 1
                touched.add(plan.instances[instance].birth)
        unread = [number for number in sorted(touched) if not any(uses[instance] for instance in plan.makes[number])]
    if not dropped:
        return plan
    return simulate(problem, Schedule(tuple(step for number, step in enumerate(steps) if number not in dropped)))


SHIFTS = (0.0, 0.5, 0.25, 0.75, 0.38, 0.62, 0.12, 0.87)  # where windows meet, so that each border is inside one later
LEAST_STEPS = 8  # smaller windows are not worth a judgement
MOST_HALVINGS = 6  # likewise
PATIENCE = 2  # shifts with hardly a gain before giving up
GAIN_SHARE = 0.01  # of the breaks: what is more than hardly a gain
ROOM_SHARE = 0.02  # of the plan's peak: with less room than this below the budget, the plan's own peak is the limit

Window: TypeAlias = tuple[int, int]
Sort: TypeAlias = Callable[[Sequence[set[int]], Sequence[set[int]]], list[int]]


@dataclass(frozen=True)
class _Ties:
    """By step, the earlier steps that it reads from, and all that must stay before it."""

    reads: Sequence[set[int]]
    sources: Sequence[set[int]]

    def within(self, steps: Sequence[int]) -> _Ties:
        """The ties between some steps only, numbered by their places."""
        place = {step: number for number, step in enumerate(steps)}

        def renumbered(groups: Sequence[set[int]]) -> list[set[int]]:
            return [{place[other] for other in groups[step] if other in place} for step in steps]

        return _Ties(renumbered(self.reads), renumbered(self.sources))

    def breaks(self, order: Sequence[int]) -> int:
        """How many steps do not read from the step just before them."""
        return sum(before not in self.reads[step] for before, step in pairwise(order))


def calm(problem: Problem, plan: Plan, order: Literal["free", "keep"]) -> Plan:
    """Put the plan's steps into an order with fewer breaks, within the budget of `problem`; what they read stays.

    No slower, since the same ops run as often. With `keep`, first computations stay in their order. A plan that spans
    devices is returned as it is. Windows of steps are sorted anew, and halved where the judge finds them too large:
    some dozens of judgements in all. The plan's own peak is the limit first, and only then the budget.
    """
    if len(problem.devices) > 1 or any(not isinstance(step, Compute) for step in plan.schedule.steps):
        return plan
    ties = _ties(plan, order)
    steps = list(range(len(plan.reads)))
    if not ties.breaks(steps):
        return plan
    budget_bytes = problem.memories[0].budget_bytes
    has_room = budget_bytes > plan.peak * (1 + ROOM_SHARE)
    for limit_bytes in (plan.peak, budget_bytes) if has_room else (plan.peak,):
        found = _Calming(problem, plan, ties, limit_bytes).settled(steps)
        if ties.breaks(found) < ties.breaks(steps):
            steps = found
    return _reordered(problem, plan, steps)


def breaks(plan: Plan) -> int:
    """How many steps of a one-device plan do not read from the step just before them."""
    return _ties(plan, "free").breaks(range(len(plan.reads)))


@dataclass(frozen=True)
class _Calming:
    """A plan whose steps are being put in another order, and the bytes that no order may exceed."""

    problem: Problem
    plan: Plan
    ties: _Ties
    limit_bytes: int

    def settled(self, order: list[int]) -> list[int]:
        """Sort forwards, so that readers follow at once, and backwards, so that producers wait for their readers."""
        patience = PATIENCE
        for shift in SHIFTS:
            before = self.ties.breaks(order)
            for sort in (chained_order, _chained_from_end):
                order = self._sorted(order, sort, round(shift * len(order)))
            patience -= before - self.ties.breaks(order) <= GAIN_SHARE * before
            if not patience:
                break
        return order

    def _sorted(self, order: list[int], sort: Sort, middle: int) -> list[int]:
        """Sort what lies on each side of `middle`, and where that is too large or no gain, its halves, and so on.

        What a window needs depends on the order in it alone, as the same values go in and out, so one judgement
        serves all windows. Only storage that is shared or not can differ, which the last judgement sees.
        """
        start = order
        windows = [(0, middle), (middle, len(order))]
        for _ in range(MOST_HALVINGS):
            # Each window sorted in which that adds no break.
            trial = list(order)
            for begin, stop in windows:
                steps = order[begin:stop]
                ties = self.ties.within(steps)
                new = [steps[place] for place in sort(ties.sources, ties.reads)]
                left, right = order[max(begin - 1, 0) : begin], order[stop : stop + 1]
                if self.ties.breaks(left + new + right) <= self.ties.breaks(left + steps + right):
                    trial[begin:stop] = new
            memory = self._memory(trial)
            large = [window for window in windows if max(memory[slice(*window)], default=0) > self.limit_bytes]
            for first, end in large:
                trial[first:end] = order[first:end]
            halves = [half for a, b in large for half in ((a, (a + b) // 2), ((a + b) // 2, b))]
            order, windows = trial, [(first, end) for first, end in halves if end - first >= LEAST_STEPS]
            if not windows:
                break
        return order if max(self._memory(order), default=0) <= self.limit_bytes else start

    def _memory(self, order: Sequence[int]) -> tuple[int, ...]:
        """Bytes in use during each step of an order."""
        return _reordered(self.problem, self.plan, order).memory_bytes[0]


def _chained_from_end(sources: Sequence[set[int]], reads: Sequence[set[int]]) -> list[int]:
    """An order with few breaks, found from its end: each op as late as what follows it allows."""
    last = len(sources) - 1
    return [last - op for op in reversed(chained_order(_mirrored(sources), _mirrored(reads)))]


def _mirrored(groups: Sequence[set[int]]) -> list[list[int]]:
    """By op, who comes after instead of before it, with ops numbered from the end."""
    last = len(groups) - 1
    return [[last - op for op in followers] for followers in reversed(inverse(groups))]


def _ties(plan: Plan, order: Literal["free", "keep"]) -> _Ties:
    """What must stay in place for every step to read the very instances that it reads now."""
    reads = [{plan.instances[instance].birth for instance in group} for group in plan.reads]
    sources = [set(group) for group in reads]
    readers: list[list[int]] = [[] for _ in plan.instances]
    for step, taken in enumerate(plan.reads):
        for value in taken:
            readers[value].append(step)
    newest: dict[int, int] = {}
    for number, instance in enumerate(plan.instances):
        if instance.tensor in newest:
            old = newest[instance.tensor]
            sources[instance.birth].update((plan.instances[old].birth, *readers[old]))
        newest[instance.tensor] = number
    if order == "keep":
        # Each first computation comes behind the one before it.
        first: dict[int, int] = {}
        for step, op in enumerate(plan.schedule.op_ids()):
            first.setdefault(op, step)
        for one, following in pairwise(first.values()):
            sources[following].add(one)
    for step, before in enumerate(sources):
        before.discard(step)
    return _Ties(reads, sources)


def _reordered(problem: Problem, plan: Plan, order: Sequence[int]) -> Plan:
    """The plan's steps in another order, judged."""
    return simulate(problem, Schedule(tuple(plan.schedule.steps[step] for step in order)))
