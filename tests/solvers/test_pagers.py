"""Pagers: every plan is legal and within budget, in sessions as they are run; `auto` is no slower than the others."""

from __future__ import annotations

import msgspec
import pytest

from remat_cli.base.errors import ConfigError
from remat_cli.core.paging.paged_plan import read_paging
from remat_cli.core.paging.paged_sessions import END_NS, SessionCosts
from remat_cli.core.paging.paging import PagedSchedule
from remat_cli.core.paging.paging_judge import follow_paging
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.core.values.spill import SpillMemory
from remat_cli.solvers import PAGERS, make_pager, make_solver, run_solver
from remat_cli.solvers._warmup import load_kernels
from remat_cli.solvers.base import Compiled, Limits
from remat_cli.solvers.paging import pager
from remat_cli.solvers.paging.question import PagingFound, PagingQuestion
from remat_cli.solvers.paging.spare import without_idle_moves
from tests.seeds import few
from tests.solvers.random_training import chain_training, random_training

CHAINS_ONLY = {"pofo", "autocapper", "opportunist"}
LONG = pytest.mark.slow  # a search that ends with its time


def question(problem: Problem, percent: int, bytes_per_ns: float = 1.0, call_ns: int = 0) -> PagingQuestion:
    """The problem at a share of what it holds at most; every op takes some time."""
    ops = tuple(msgspec.structs.replace(op, time_ns=(20 * (op.time_ns[0] or 0) + 5,)) for op in problem.ops)
    problem = msgspec.structs.replace(problem, ops=ops)
    budget = baseline(problem).peak * percent // 100
    memory = SpillMemory(
        folder="/x", write_bytes_per_second=bytes_per_ns * 1e9, read_bytes_per_second=bytes_per_ns * 1e9
    )
    sizes = tuple(tensor.size_bytes for tensor in problem.tensors)
    return PagingQuestion(problem.with_budget(budget), memory, SessionCosts(sizes, call_ns))


def page(name: str, asked: PagingQuestion, seconds: float = 2.0) -> PagingFound:
    pager = make_pager(name)
    if isinstance(pager, Compiled):
        load_kernels(pager.kernels(asked.problem), lambda: None)  # before the clock starts, as in a compile
    return pager.page(asked, Limits(seconds=seconds))


def check(asked: PagingQuestion, found: PagingFound) -> None:
    """A plan follows from what is kept of it, and is within the budget."""
    assert found.plan is not None
    assert found.paged is not None
    plan = simulate(asked.problem, found.plan.schedule)
    again = read_paging(asked.problem, plan, found.paged.paging, asked.costs.sizes)
    assert again.run.peak_bytes <= asked.problem.memories[0].free_bytes
    calls_ns = asked.costs.call_ns * len(again.paging.firsts)
    assert again.paging.time_ns == plan.time_ns + calls_ns + again.paging.stall_ns + END_NS
    assert max(again.held_bytes) == again.run.peak_bytes
    assert found.paged.paging.bound_ns <= found.paged.paging.time_ns


@pytest.mark.parametrize("name", PAGERS)
@pytest.mark.parametrize("percent", [100, pytest.param(70, marks=LONG), 50])
def test_plans_of_a_chain_fit_and_follow(name, percent):
    asked = question(chain_training(10, size=6, forward_ns=7), percent)
    found = page(name, asked)
    if found.paged is None:
        assert name == "opportunist"  # which has none where memory is little
        return
    check(asked, found)
    if percent == 100:
        assert not found.paged.run.stall


@pytest.mark.parametrize("name", sorted(set(PAGERS) - CHAINS_ONLY))
@pytest.mark.parametrize("seed", few(range(6), 1))
def test_plans_of_any_graph_fit_and_follow(name, seed):
    """Views, in-place results, kept values, ops that run once only."""
    asked = question(random_training(seed, 14), 80, call_ns=3)
    assert make_pager(name).supports(asked.problem) is None
    found = page(name, asked, 1.0)
    if found.paged is not None:
        check(asked, found)


@pytest.mark.parametrize(
    ("bytes_per_ns", "percent"),
    [
        (1.0, 50),
        *(pytest.param(*each, marks=LONG) for each in ((1.0, 70), (1.0, 35), (0.05, 35))),
        *(pytest.param(0.05, each, marks=LONG) for each in (70, 50)),
    ],
)
def test_auto_is_no_slower_than_paging_pofo_or_recomputing(percent, bytes_per_ns):
    asked = question(chain_training(10, size=6, forward_ns=7), percent, bytes_per_ns)
    best = page("auto", asked, 9.0)
    if best.paged is None:
        assert page("paging", asked).paged is None
        assert page("pofo", asked).paged is None
        return
    check(asked, best)
    others = [found.paging.time_ns for found in (page(name, asked, 3.0).paged for name in ("paging", "pofo")) if found]
    assert best.paged.paging.time_ns <= min(others, default=best.paged.paging.time_ns)
    assert best.paged.paging.time_ns >= asked.problem.baseline_time_ns


@pytest.mark.parametrize(("call_ns", "is_each_alone"), [(0, True), (50, False)])
def test_where_calls_cost_nothing_each_op_is_a_session(call_ns, is_each_alone, monkeypatch):
    asked = question(chain_training(10, size=6, forward_ns=7), 70, call_ns=call_ns)
    monkeypatch.setattr(pager, "COUNTS", (4,))
    found = page("greedy-paging", asked)
    check(asked, found)
    assert (len(found.paged.paging.firsts) == len(found.plan.schedule.steps)) == is_each_alone


@pytest.mark.parametrize("percent", [*(pytest.param(each, marks=LONG) for each in (80, 60)), 45, 35])
@pytest.mark.parametrize("bytes_per_ns", [0.05, 1.0])
def test_pofo_is_no_slower_than_recomputation_of_its_blocks(percent, bytes_per_ns):
    asked = question(chain_training(10, size=6, forward_ns=7), percent, bytes_per_ns)
    alone = run_solver(asked.problem, make_solver("rotor"), Limits(seconds=2.0)).plan
    if alone is None:
        return
    found = page("pofo", asked, 6.0)
    check(asked, found)
    assert found.paged.paging.time_ns <= alone.time_ns + END_NS


def test_a_faster_disk_is_never_worse():
    chain = chain_training(10, size=6, forward_ns=7)
    times = [page("paging", question(chain, 50, rate)).paged.paging.time_ns for rate in (0.05, 0.2, 1.0, 5.0)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_what_has_room_is_not_paged():
    """Without any one of its transfers to and fro a plan would hold too much."""
    asked = question(chain_training(10, size=6, forward_ns=7), 60)
    paged = page("paging", asked).paged
    problem, schedule = paged.sessions.problem, paged.schedule
    reads = [move for move in schedule.transfers if move.direction == "read"]
    assert reads
    slow = PagedSchedule(schedule.starts, (*schedule.transfers,))
    assert without_idle_moves(problem, slow) == slow
    for read in reads:
        rest = tuple(move for move in schedule.transfers if move.tensor != read.tensor)
        assert follow_paging(problem, PagedSchedule(schedule.starts, rest)).peak_bytes > problem.budget_bytes


def test_chains_are_asked_for_by_name():
    plain = question(random_training(3, 14), 80).problem
    forward = msgspec.structs.replace(
        plain, ops=tuple(msgspec.structs.replace(op, phase="forward") for op in plain.ops)
    )
    for name in CHAINS_ONLY:
        assert "no op is marked backward" in str(make_pager(name).supports(forward))


def test_names_and_options_are_told_apart():
    with pytest.raises(ConfigError, match="no solver named 'rotor' plans with --spill"):
        make_pager("rotor")
    with pytest.raises(ConfigError, match="add --spill disk:DIR"):
        make_solver("pofo")
    with pytest.raises(ConfigError, match="solver pofo: "):
        make_pager("pofo", {"slots": 0})
    assert make_pager("pofo", {"slots": "20"}).slots == 20
