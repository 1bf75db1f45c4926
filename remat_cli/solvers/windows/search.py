"""Large-neighbourhood search with CP-SAT: cut the schedule open, solve the cut exactly, put it back.

Neighbourhoods: a stretch of steps with all that is computed or read there, and a set of related ops freed all over the
schedule. Sizes adapt: what is solved to its end grows, what runs out of time shrinks.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import simulate
from remat_cli.solvers._sharing import Condensed
from remat_cli.solvers.base import Limits
from remat_cli.solvers.milp.cp_sat import WORK_PER_DETERMINISTIC_SECOND, Effort, Watch, search
from remat_cli.solvers.windows.cut import Lives, Stretch, cut_open, make_lives
from remat_cli.solvers.windows.model import build_window, read_window

_CUT_SECONDS = 1.5  # for one cut: most that can be solved at all are solved sooner
_GROWTH = 1.25
_FAR_STEPS = 1500  # before and behind a step: as far as related ops are freed
_TIGHT = 0.95  # of the budget, above which a step counts as critical


@dataclass
class Neighbourhood:
    """One way to choose what to free, with the size that lately could be solved, and how often it paid off."""

    choose: Callable[[Lives, Sequence[int], int, random.Random], Stretch]
    size: float
    least: int
    tried: int = 0
    solved: int = 0
    paid: int = 0

    def learn(self, is_solved: bool, is_better: bool) -> None:
        """Adapt the size of windows after a try."""
        self.tried += 1
        self.solved += is_solved
        self.paid += is_better
        self.size = max(self.least, self.size * (_GROWTH if is_solved else 1 / _GROWTH))

    @property
    def weight(self) -> float:
        """How readily this kind of window is chosen."""
        return (1 + 5 * self.paid) / (1 + self.tried) + 0.1


@dataclass
class Windows:
    """The search over one condensed problem, from `ops`; `found` hears of each better sequence of ops.

    While the peak is above the budget, cuts lower the peak of the steps they cover; from then on the time.
    """

    condensed: Condensed
    limits: Limits
    ops: list[int]
    found: Callable[[list[int]], None]
    work: int = 0
    kinds: dict[str, Neighbourhood] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.problem = self.condensed.problem
        self.free_bytes = self.problem.memories[0].free_bytes
        self.times_ns = [op.time_ns[0] or 0 for op in self.problem.ops]
        self.random = random.Random(self.limits.seed)
        self.kinds = {name: Neighbourhood(*kind) for name, kind in _kinds(self.limits.order).items()}
        self.begin(self.ops)

    @property
    def is_over(self) -> bool:
        """Whether time or work is used up, or somebody asked to stop."""
        return self.limits.is_over or (self.limits.work is not None and self.work >= self.limits.work)

    @property
    def peak_bytes(self) -> int:
        """Peak of the present schedule, fixed part left out."""
        return max(self.memory)

    @property
    def is_above_budget(self) -> bool:
        """Whether the present schedule takes too much memory, as the condensed problem counts it."""
        return self.peak_bytes > self.free_bytes

    @property
    def facts(self) -> dict[str, Any]:
        """How often each neighbourhood was tried, solved to its end, and gave a better schedule."""
        return {name: {"tried": k.tried, "solved": k.solved, "paid": k.paid} for name, k in self.kinds.items()}

    def run(self, limits: Limits) -> None:
        """Search until these limits are reached; a limit on work counts from now."""
        self.limits, self.work = limits, 0
        while not self.is_over:
            self.step()

    def solve_whole(self, limits: Limits, bound_ns: int) -> bool:
        """Free all there is, given a proved bound on the total time; whether that was searched to its end.

        In order `keep` at most three computations of an op, in order `free` two (or as many as run now).
        """
        self.limits, self.work = limits, 0
        every = frozenset(range(len(self.problem.ops)))
        if limits.order == "keep":
            stretch = Stretch(0, len(self.ops), every, copies=3)
        else:
            stretch = Stretch(0, len(self.ops), every, movable=every, is_ranked=False, copies=2)
        run = Effort(limits.seconds_left, self._work_left(), 0.0)
        is_solved, ops = self._solve(stretch, limits, run, bound_ns)
        self._take(ops)
        return is_solved

    def step(self) -> bool:
        """Solve one cut; whether it gave a better schedule."""
        weights = [kind.weight for kind in self.kinds.values()]
        kind = self.random.choices(list(self.kinds.values()), weights)[0]
        over = [step for step, held in enumerate(self.memory) if held > self.free_bytes]
        critical = over or [step for step, held in enumerate(self.memory) if held > _TIGHT * self.free_bytes] or [0]
        stretch = kind.choose(self.lives, critical, round(kind.size), self.random)
        limits = replace(self.limits, workers=1, seed=self.random.randrange(2**31))
        # For one cut: by the clock, or, where the result must be the same everywhere, by deterministic time.
        seconds, work_left = self.limits.seconds_left, self._work_left()
        if work_left is None:
            effort = Effort(min(_CUT_SECONDS, seconds), None, 0.0)
        else:
            effort = Effort(seconds, min(_CUT_SECONDS, work_left), 0.0)
        is_solved, ops = self._solve(stretch, limits, effort, 0)
        self._take(ops)
        kind.learn(is_solved, ops is not None)
        return ops is not None

    def _take(self, ops: list[int] | None) -> None:
        if ops is not None:
            self.begin(ops)
            self.found(ops)

    def begin(self, ops: list[int]) -> None:
        """Search on from another schedule."""
        self.ops = ops
        self.time_ns = sum(self.times_ns[op] for op in ops)
        self.lives = make_lives(self.problem, ops)
        held_bytes = simulate(self.problem, Schedule.of_ops(ops)).memory_bytes[0]
        self.memory = [held - self.problem.memories[0].fixed_bytes for held in held_bytes]

    def _solve(self, stretch: Stretch, limits: Limits, run: Effort, bound_ns: int) -> tuple[bool, list[int] | None]:
        """Whether the cut was solved to its end, and the better schedule if there is one."""
        inside = max(self.memory[stretch.start : stretch.end])
        is_over_budget = inside > self.free_bytes
        model = build_window(cut_open(self.lives, stretch), (self.free_bytes, max(inside, self.free_bytes)))
        if model is None:
            return True, None
        if is_over_budget:
            model.lower_peak(below_bytes=inside)
        else:
            # Time of what must run in the stretch.
            fixed = [made.run.op for made in model.computations if made.present is None]
            needed = sum(self.times_ns[op] for op in (*model.cut.skeleton, *fixed))
            outside = self.time_ns - sum(self.times_ns[op] for op in self.ops[stretch.start : stretch.end])
            model.lower_time(self.time_ns - outside - needed, bound_ns - outside - needed)
        best: list[list[int]] = []
        outcome = search(model.cp, partial(read_window, model), run, limits, Watch(best.append))
        # What presolve takes is hardly in CP-SAT's deterministic time; it grows with the model.
        self.work += len(model.cp.proto.variables) + len(model.cp.proto.constraints)
        self.work += round(outcome.deterministic_seconds * WORK_PER_DETERMINISTIC_SECOND)
        ops = [*self.ops[: stretch.start], *best[-1], *self.ops[stretch.end :]] if best else None
        return outcome.is_infeasible or outcome.is_optimal, ops

    def _work_left(self) -> float | None:
        """In deterministic seconds; None where work is not limited."""
        if self.limits.work is None:
            return None
        return max(0.0, self.limits.work - self.work) / WORK_PER_DETERMINISTIC_SECOND


def _kinds(order: str) -> dict[str, tuple[Any, float, int]]:
    """Neighbourhoods of an order, each with its first and least size."""
    if order == "keep":
        return {"stretch": (_stretch, 40.0, 6), "related": (_related, 12.0, 4)}
    return {
        "stretch": (_stretch, 40.0, 6),
        "related": (_related, 12.0, 4),
        "moving": (_moving, 12.0, 4),
        "permuted": (_permuted, 8.0, 4),
    }


def _around(lives: Lives, critical: Sequence[int], size: int, rng: random.Random) -> tuple[int, int]:
    """A range of so many steps that contains a critical one."""
    count = len(lives.ops)
    start = max(0, min(rng.choice(critical) - rng.randrange(size), count - size))
    return start, min(count, start + size)


def _stretch(lives: Lives, critical: Sequence[int], size: int, rng: random.Random) -> Stretch:
    """All recomputes of what a range of steps computes or reads."""
    start, end = _around(lives, critical, size, rng)
    return Stretch(start, end, _touched(lives, start, end), copies=rng.choice((2, 3)))


def _permuted(lives: Lives, critical: Sequence[int], size: int, rng: random.Random) -> Stretch:
    """A range of steps in any order, recomputes included."""
    start, end = _around(lives, critical, size, rng)
    free = _touched(lives, start, end)
    return Stretch(start, end, free, movable=free, is_ranked=False, copies=2)


def _related(lives: Lives, critical: Sequence[int], size: int, rng: random.Random) -> Stretch:
    """Recomputed ops and ops whose results live across a critical step, far around it."""
    step = rng.choice(critical)
    return Stretch(*_far_around(lives, step), _chosen(lives, step, size, rng))


def _moving(lives: Lives, critical: Sequence[int], size: int, rng: random.Random) -> Stretch:
    """Such ops with their first computations, between all the others."""
    step = rng.choice(critical)
    free = _chosen(lives, step, size, rng)
    return Stretch(*_far_around(lives, step), free, movable=free)


def _far_around(lives: Lives, step: int) -> tuple[int, int]:
    return max(0, step - _FAR_STEPS), min(len(lives.ops), step + _FAR_STEPS + 1)


def _touched(lives: Lives, start: int, end: int) -> frozenset[int]:
    """Ops that run in a range of steps, and those that make what these read."""
    problem = lives.problem
    inside = set(lives.ops[start:end])
    return frozenset(inside | {problem.tensors[x].producer for op in inside for x in problem.ops[op].inputs})


def _chosen(lives: Lives, step: int, size: int, rng: random.Random) -> frozenset[int]:
    """Half recomputed ops near a step, half ops whose results live across it."""
    repeated = {op: abs(at - step) for at, op in enumerate(lives.ops) if lives.first[op] != at}
    near = sorted(repeated, key=lambda op: repeated[op] * rng.uniform(0.5, 1.0))[: size // 2]
    # Ops whose results live before and after a step, with the ops that make what they read.
    problem, found = lives.problem, dict[int, None]()
    for tensor, spec in enumerate(problem.tensors):
        spans = zip(lives.births[tensor], lives.deaths(tensor), strict=True)
        if spec.size_bytes > 0 and any(birth < step < death for birth, death in spans):
            found[spec.producer] = None
    for op in list(found):
        found.update(dict.fromkeys(problem.tensors[x].producer for x in problem.ops[op].inputs))
    across = [op for op in found if op not in near]
    rng.shuffle(across)
    return frozenset([*near, *across[: max(1, size - len(near))]])
