"""What every solver in the registry owes its callers, on small problems of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import pytest

from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.core.schedule.solver_run import SolverRun
from remat_cli.solvers import SOLVERS, make_solver, solve, solver_class
from remat_cli.solvers.base import Limits, Status
from tests.solvers.brute_force import optimum


@dataclass(frozen=True)
class Small:
    """A tiny problem as (inputs, bytes of each output, time) per op, and the budget as a part of its span."""

    name: str
    ops: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...]
    budget: int
    kept: tuple[int, ...] = ()
    views: tuple[tuple[int, int], ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()
    once: tuple[int, ...] = ()
    workspace: tuple[int, ...] = ()
    backward: tuple[int, ...] = ()

    def problem(self) -> Problem:
        tensors: list[TensorSpec] = []
        ops: list[OpSpec] = []
        base = dict(self.views)
        for op, (inputs, sizes, cost) in enumerate(self.ops):
            outputs = tuple(range(len(tensors), len(tensors) + len(sizes)))
            tensors += [TensorSpec(s, op, base.get(t), t in self.kept) for s, t in zip(sizes, outputs, strict=True)]
            ops.append(
                OpSpec(
                    inputs=inputs,
                    outputs=outputs,
                    time_ns=(cost,),
                    workspace_bytes=(self.workspace[op] if self.workspace else 0,),
                    repeatable=op not in self.once,
                    in_place=tuple((i, o) for i, o in self.in_place if o in outputs),
                    phase="backward" if op in self.backward else "none",
                )
            )
        return Problem(tuple(ops), tuple(tensors), (Memory("cpu", self.budget),), (Device("cpu", 0),))


SKIP = (((), (4,), 3), ((0,), (4,), 2), ((1,), (4,), 2), ((2,), (4,), 2), ((3, 0), (1,), 1))
UNET = (
    ((), (6,), 2),
    ((0,), (4,), 3),
    ((1,), (2,), 3),
    ((2,), (4,), 3),
    ((3, 1), (4,), 3),
    ((4, 0), (3,), 3),
)

TRAIN = (
    ((), (3,), 2),
    ((0,), (4,), 3),
    ((1,), (5,), 2),
    ((2,), (4,), 2),
    ((3,), (1,), 1),
    ((3, 4), (4,), 3),
    ((2, 5), (5,), 3),
    ((1, 6), (4,), 4),
    ((0, 7), (3,), 2),
)
"""Forward 0 to 3, the loss 4, then the gradient of each in turn."""
BACKWARD = (5, 6, 7, 8)
JOIN = (
    ((), (3,), 2),
    ((), (3,), 2),
    ((0, 1), (1,), 1),
    ((0, 1, 2), (3,), 2),
    ((0, 1, 2), (3,), 2),
    ((0, 3), (2,), 2),
    ((1, 4), (2,), 2),
)
"""Two branches of one op that meet in the loss 2; each has a gradient of its end and of its op."""

UNMARKED = [
    Small("chain", (((), (5,), 1), ((0,), (5,), 2), ((1,), (5,), 3), ((2,), (5,), 4)), budget=10),
    Small("long skip", SKIP, budget=11),
    Small("long skip, budget just too small", SKIP, budget=8, once=(0,)),
    Small("budget below a working set", SKIP, budget=7),
    Small("diamond", (((), (4,), 2), ((0,), (3,), 2), ((0,), (3,), 2), ((1, 2), (1,), 1)), budget=9),
    Small(
        "fork and join",
        (((), (2,), 1), ((0,), (5,), 2), ((0,), (5,), 4), ((1,), (1,), 1), ((2,), (1,), 1), ((3, 4), (1,), 1)),
        budget=8,
    ),
    Small("unet", UNET, budget=13),
    Small("unet with kept outputs", UNET, budget=17, kept=(2, 5)),
    Small("unet, workspace", UNET, budget=14, workspace=(0, 0, 0, 1, 2, 0)),
    Small(
        "several outputs",
        (((), (3, 4), 2), ((0,), (5,), 3), ((2,), (5,), 3), ((3, 1), (2,), 1)),
        budget=12,
    ),
    Small(
        "views",
        (((), (6,), 3), ((0,), (6,), 1), ((0,), (4,), 2), ((2,), (6,), 2), ((3, 1), (2,), 1)),
        budget=12,
        views=((1, 0),),
    ),
    Small(
        "in place",
        (((), (5,), 3), ((0,), (5,), 1), ((1,), (5,), 2), ((2,), (5,), 1), ((3, 1), (5,), 1)),
        budget=14,
        in_place=((0, 1), (2, 3), (3, 4)),
    ),
    Small(
        "kept view",
        (((), (4,), 3), ((0,), (4,), 1), ((0,), (4,), 2), ((2,), (2,), 2)),
        budget=12,
        kept=(1, 3),
        views=((1, 0),),
    ),
    Small("nothing may be repeated", UNET, budget=13, once=(0, 1, 2, 3, 4, 5)),
    Small("zero bytes and zero time", (((), (0,), 0), ((0,), (4,), 0), ((1,), (4,), 1), ((0, 2), (1,), 0)), budget=7),
    Small("one op", (((), (4,), 2),), budget=4, kept=(0,)),
]
MARKED = [
    Small("training", TRAIN, budget=17, backward=BACKWARD),
    Small("training, least budget of any step", TRAIN, budget=14, backward=BACKWARD),
    Small("training with kept results", TRAIN, budget=19, kept=(4, 8), backward=BACKWARD),
    Small("training in place", TRAIN, budget=15, in_place=((6, 7),), backward=BACKWARD),
    Small("training, workspace", TRAIN, budget=18, workspace=(0, 1, 2, 0, 0, 0, 1, 2, 0), backward=BACKWARD),
    Small("training, an op that may not be repeated", TRAIN, budget=18, once=(1,), backward=BACKWARD),
    Small("join", JOIN, budget=11, backward=(3, 4, 5, 6)),
]
PROBLEMS = UNMARKED + MARKED
NEED_MARKS = {"chen-sqrt", "chen-greedy", "revolve", "rotor", "multi-chain"}
NEED_ONE_CHAIN = {"revolve", "rotor"}
ORDERS = ["keep", "free"]


def run(solver: str, problem: Problem, order: str, **changes) -> SolverRun:
    return solve(problem, solver, Limits(**{"seconds": 20.0, "workers": 1, "order": order, "work": 20_000, **changes}))


LONG = {"auto", "checkmate", "checkmate-lp", "moccasin"}
"""Solvers that take long for every problem: their own files hold them to brute force too, so few do here at first."""
FEW = {"budget below a working set", "in place", "several outputs", "training", "unet", "views"}


def held_to_claims() -> Iterator[Any]:
    """Every solver, order and problem; of long ones half of a few problems in each order, the others are slow."""
    for solver, (place, order), (number, small) in product(SOLVERS, enumerate(ORDERS), enumerate(PROBLEMS)):
        is_quick = solver not in LONG or (small.name in FEW and (number + place) % 2 == 0)
        marks = () if is_quick else pytest.mark.slow
        yield pytest.param(solver, order, small, id=f"{solver}-{order}-{small.name}", marks=marks)


@pytest.mark.parametrize(("solver", "order", "small"), list(held_to_claims()))
def test_claims_survive_judge_and_brute_force(solver, order, small):
    problem = small.problem()
    if (reason := make_solver(solver).supports(problem)) is not None:
        check_reason(solver, small, str(reason))
        return
    result = run(solver, problem, order)
    if result.plan is not None:
        assert result.plan == simulate(problem, result.plan.schedule)
        assert result.plan.peak <= problem.memories[0].budget_bytes
    if order == "keep" and result.plan is not None:
        firsts = list(dict.fromkeys(result.plan.schedule.op_ids()))
        assert firsts == sorted(firsts)
    check_proofs(problem, result)


def check_reason(solver: str, small: Small, reason: str) -> None:
    """Only solvers of training graphs refuse any of these: those without marks, and what is no chain."""
    assert reason
    assert "\n" not in reason
    is_unmarked = not small.backward
    assert solver in (NEED_MARKS if is_unmarked else NEED_ONE_CHAIN)
    assert ("marked" in reason) if is_unmarked else (small.name == "join")


def problem_for(solver: str) -> Problem:
    """A problem that needs recomputation and that this solver takes."""
    return (MARKED[0] if solver in NEED_MARKS else UNMARKED[6]).problem()


@cache
def known_optimum(problem: Problem, space: str):
    """By exhaustive search, once for all solvers."""
    return optimum(problem, space)


def check_proofs(problem: Problem, result: SolverRun) -> None:
    best = known_optimum(problem, result.space)
    if result.status is Status.OPTIMAL:
        assert result.plan is not None
        assert best is not None
        assert result.plan.time_ns == result.bound_ns == best[0]
    if result.status is Status.INFEASIBLE:
        assert best is None
        assert result.plan is None
    if result.status is Status.NOT_FOUND:
        assert result.plan is None
    if result.bound_ns is not None and best is not None:
        assert result.bound_ns <= best[0]
    assert result.floor.bytes <= problem.memories[0].budget_bytes or known_optimum(problem, "free") is None


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_fitting_baseline_gives_its_time(solver):
    problem = problem_for(solver)
    problem = problem.with_budget(baseline(problem).peak)
    result = run(solver, problem, "keep")
    assert result.plan is not None
    assert result.plan.time_ns == problem.baseline_time_ns


@pytest.mark.parametrize(
    ("solver", "order"),
    [
        pytest.param(*each, marks=pytest.mark.slow if each[0] in LONG and each[1] == "free" else ())
        for each in product(SOLVERS, ORDERS)
    ],
)
def test_same_seed_same_schedule(solver, order):
    problem = problem_for(solver)
    first, second = (run(solver, problem, order, seed=5) for _ in range(2))
    assert first.plan == second.plan
    assert first.status is second.status


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_time_limit_that_is_over_is_respected(solver):
    result = run(solver, problem_for(solver), "free", seconds=0.0, work=None)
    assert result.seconds < 5


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_start_is_never_lost(solver):
    problem = problem_for(solver)
    start = run("moccasin", problem, "free").plan
    assert start is not None
    result = solve(problem, solver, Limits(seconds=20.0, work=20_000), start=start.schedule)
    if result.plan is not None:
        assert result.plan.time_ns <= start.time_ns


@pytest.mark.parametrize("solver", SOLVERS)
def test_says_what_it_is(solver):
    described = solver_class(solver)
    assert described.name == solver
    assert described.summary
    assert described.takes
    assert described.proves
