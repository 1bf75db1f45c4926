"""Frontier bound for any order: stages between ops that follow one another in every order.

Choose boundaries b_0, ..., b_{K-1}, each an ancestor of the next. In every schedule their first computations come in
this order. Stage k is all steps after the first computation of b_{k-1} (stage 0: from the start) up to and including
that of b_k; stage K is the rest. Of any schedule look only at R[k,v], whether op v runs in stage k; S[k,x], whether
tensor x is in memory right after the first computation of b_{k-1}, to be read later or kept; and H[k,x], whether an
instance of it is in memory at all steps of stage k. They satisfy

    (i)   R[k,v] <= R[k,op(x)] + S[k,x]             x read by v
    (ii)  S[k+1,x] <= S[k,x] + R[k,op(x)]           S[0,x] = 0; S[K+1,x] = 1 for kept tensors, 0 for others
    (iii) working(b_k) + sum m[x] S[k+1,x] <= M     over classes that b_k does not touch
    (iv)  H[k,x] >= S[k+1,x] - R[k,op(x)], and H[k,x] >= 1 - R[k,op(x)] if b_k reads x
    (v)   working(v) R[k,v] + sum m[x] H[k,x] <= M  over classes that v does not touch
    (vi)  R[k,v] = 0 for k < lo(v), and the sum of R[k,v] over lo(v) <= k <= hi(v) is at least 1

where lo(v) is one more than the last boundary that is an ancestor of v, and hi(v) the first that is v or a descendant
(K if there is none). The extra time is at least the sum of time[v] (sum over k of R[k,v] - 1).

(i) When v runs, its input was in memory before the stage, or was made in it. (ii) Likewise at the end of the stage.
(iii) Such a tensor is not made by b_k, so it was there during its step. (iv) An instance not made in the stage that
is there at its end, or at its last step, was there at all of its steps. (v) holds when v runs. (vi) A descendant
of b_j cannot run before b_j ran first; an ancestor of b_j has run when b_j runs first. An op that runs in r stages runs
at least r times, and one run is not extra. No step uses an order beyond that of the boundaries, or how often an op
runs in a stage: ops unrelated to a boundary may run on either side of it, or on both. So the least extra time under
these rows is a lower bound for all schedules, and if the rows contradict each other, there is no schedule at all.
Sums over tensors count storage once, as `_bounds.pressure` explains.

The rows of `_bounds.free` are added, on the same count of runs. They see several recomputes within a stage. If x is
missing at the first computation of t and must be there at that of r, then op(x) runs in a stage from lo(t) to hi(r).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers._precedence import make_events
from remat_cli.solvers.bounds.free import EventGap, Extra, add_cover, forced_loads, worst_of_parts
from remat_cli.solvers.bounds.pressure import Pressure
from remat_cli.solvers.milp.program import Milp

# Chains are chosen among so many ops of greatest load; comparing all pairs of them takes about a second.
_MOST_CANDIDATES = 1_500
# Loads below this share of the greatest are worth nothing in a chain.
_WORTH_SHARE = 0.5

ONE = -1
"""Stands for a variable that is 1 in every schedule."""


def choose_chain(pressure: Pressure, count: int) -> list[int]:
    """At most `count` boundaries, from the chain of greatest total load, the worst of each of as many parts of it."""
    ops = list(range(len(pressure.problem.ops)))
    if len(ops) > _MOST_CANDIDATES:
        live = pressure.live()
        ops = sorted(sorted(ops, key=live.__getitem__)[-_MOST_CANDIDATES:])
    load = dict(zip(ops, forced_loads(pressure, ops), strict=True))
    least = _WORTH_SHARE * min(max(load.values(), default=0), pressure.capacity)
    worth = {op: need - least for op, need in load.items() if need > least}
    # Of all chains of ancestors the one of greatest total worth.
    events = make_events(pressure.problem, sorted(worth))
    best: list[tuple[float, int]] = []
    for op in events.events:
        ancestors = events.before[op]
        total, last = max(((value, i) for i, (value, _) in enumerate(best) if ancestors >> i & 1), default=(0.0, -1))
        best.append((total + worth[op], last))
    chain: list[int] = []
    at = max(range(len(best)), key=lambda i: best[i][0], default=-1)
    while at >= 0:
        chain.append(events.events[at])
        at = best[at][1]
    return worst_of_parts(chain[::-1], load, count)


def chain_windows(problem: Problem, chain: Sequence[int]) -> tuple[list[int], list[int]]:
    """For each op the first stage it can run in, and the one in which it has surely run: lo and hi."""
    events, last = make_events(problem, chain), len(chain)
    low = [ancestors.bit_length() for ancestors in events.before]
    high = [(heirs & -heirs).bit_length() - 1 if heirs else last for heirs in events.after]
    for stage, op in enumerate(chain):
        high[op] = stage
    return low, high


def free_frontier_milp(pressure: Pressure, boundaries: list[int]) -> Milp:
    """Cost in time units; boundaries are a chain, each an ancestor of the next."""
    extra = Extra(pressure)
    builder = FreeFrontier(pressure, boundaries, extra)
    builder.build()
    for gap in add_cover(pressure, extra):
        builder.place(gap)
    return extra.milp


@dataclass
class FreeFrontier:
    """`runs[k]` are the R of stage k, by op; `stays[k]` the S right before it, by tensor. What is absent is 0."""

    pressure: Pressure
    boundaries: list[int]
    extra: Extra
    runs: list[dict[int, int]] = field(default_factory=list)
    stays: list[dict[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.milp = self.extra.milp
        self.low, self.high = chain_windows(self.pressure.problem, self.boundaries)

    def build(self) -> None:
        """Add all rows and costs of the program."""
        stages = range(len(self.boundaries) + 1)
        self.stays.append({})
        for stage in stages:
            self.runs.append(self._runs(stage))
            # Rows (i): what an op reads is held or made in the stage.
            runs, stays = self.runs[stage], self.stays[stage]
            for op, run in runs.items():
                for tensor in self.pressure.problem.ops[op].inputs:
                    self._implies(run, [runs.get(self.pressure.producer(tensor)), stays.get(tensor)])
            self.stays.append(self._survivors(stage))
        for stage in stages:
            self._fit(stage)
        for op in range(len(self.low)):
            # Row (vi) and the extra runs of an op.
            low, high = self.low[op], self.high[op]
            everywhere = [runs[op] for runs in self.runs[low:] if op in runs]
            if low < high:
                self.milp.at_least([(1, run) for run in everywhere[: high - low + 1]], 1)
            ones = everywhere.count(ONE)
            more = [run for run in everywhere if run != ONE]
            if self.pressure.problem.ops[op].repeatable and more:
                self.milp.at_least([(1, self.extra.of(op)), *((-1, run) for run in more)], ones - 1)
            elif more:
                self.milp.at_most([(1, run) for run in more], 1 - ones)

    def _runs(self, stage: int) -> dict[int, int]:
        """R, the ops that run in a stage."""
        runs = {}
        for op, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if low == high == stage:
                runs[op] = ONE
            elif low <= stage and (stage <= high or self.pressure.problem.ops[op].repeatable):
                runs[op] = self.milp.add()
        return runs

    def _survivors(self, stage: int) -> dict[int, int]:
        """S, what is held after a stage, with rows (ii)."""
        kept = self.pressure.problem.tensors
        is_last = stage == len(self.boundaries)
        survivors = {}
        for tensor, readers in enumerate(self.pressure.readers):
            producer = self.pressure.producer(tensor)
            if self.low[producer] > stage or not (kept[tensor].kept or (readers and not is_last)):
                continue
            survivors[tensor] = ONE if is_last else self.milp.add()
            self._implies(survivors[tensor], [self.runs[stage].get(producer), self.stays[stage].get(tensor)])
        return survivors

    def _implies(self, cause: int, needs: Iterable[int | None]) -> None:
        """If `cause` then one of `needs`."""
        found = [need for need in needs if need is not None]
        if ONE in found:
            return
        terms = [(1, need) for need in found]
        self.milp.at_least(terms if cause == ONE else [*terms, (-1, cause)], 1 if cause == ONE else 0)

    def _fit(self, stage: int) -> None:
        """Rows (iii), (iv) and (v): all that is held in a stage fits."""
        weight, capacity = self.pressure.weight, self.pressure.capacity
        # H, what stays all through a stage, with rows (iv), for tensors with weight that were there before it.
        last = self.boundaries[stage] if stage < len(self.boundaries) else None
        read_last = () if last is None else self.pressure.problem.ops[last].inputs
        staying: dict[int, int] = {}
        for tensor in self.stays[stage]:
            made = self.runs[stage].get(self.pressure.producer(tensor))
            survives = ONE if tensor in read_last else self.stays[stage + 1].get(tensor)
            if made != ONE and survives is not None and weight[self.pressure.class_of[tensor]] > 0:
                staying[tensor] = self.milp.add(integral=False)
                self._implies(survives, [staying[tensor], made])
        through = self._by_class(staying)
        total = self.milp.add(upper=capacity, integral=False)
        self.milp.at_most([*((weight[root], held) for root, held in through.items()), (-1, total)], 0)
        for op, run in self.runs[stage].items():
            own = [(-weight[root], through[root]) for root in self.pressure.own[op] if root in through]
            need = self.pressure.working[op]
            terms = [(1, total), *own]
            self.milp.at_most(terms if run == ONE else [*terms, (need, run)], capacity - (need if run == ONE else 0))
        if last is not None:
            at_end = self._by_class(self.stays[stage + 1])
            terms = [(weight[root], held) for root, held in at_end.items() if root not in self.pressure.own[last]]
            self.milp.at_most(terms, capacity - self.pressure.working[last])

    def _by_class(self, held: dict[int, int]) -> dict[int, int]:
        """Per class with weight a variable that is at least that of each of its tensors."""
        members = self.pressure.by_class((tensor, variable) for tensor, variable in held.items() if variable != ONE)
        return {root: self.milp.any_of(variables) for root, variables in members.items()}

    def place(self, gap: EventGap) -> None:
        """A recompute after an event and before a reader lies in their stages, or one between."""
        op = self.pressure.producer(gap.tensor)
        first = min(self.low[event] for event in gap.events)
        last = min((self.high[reader] for reader in gap.heirs), default=len(self.boundaries))
        runs = [stage[op] for stage in self.runs[first : last + 1] if op in stage]
        if ONE not in runs:
            self.milp.at_least([*((1, run) for run in runs), (-1, gap.missing)], 0)
