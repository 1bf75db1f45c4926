"""chen-sqrt and chen-greedy as solvers: the cheapest of their candidates that fits, on chains, graphs and odd ones."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from remat_cli.base.errors import ConfigError
from remat_cli.base.progress import silent
from remat_cli.commands.train import compile_settings
from remat_cli.compiling.prepare import prepare
from remat_cli.compiling.profile import profile_model
from remat_cli.compiling.step import make_step, write_step
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.core.schedule.tidy import tidy
from remat_cli.core.values.training import StepPaths, TrainOptions
from remat_cli.settings.settings import load_settings
from remat_cli.solvers import make_solver, solve
from remat_cli.solvers._sharing import condense
from remat_cli.solvers.base import Limits, Status
from remat_cli.solvers.chains.checkpoints import by_size, candidate_ops, every_root, passes_of, steps_of
from tests.seeds import few
from tests.solvers.random_graphs import at_fraction, one_device
from tests.solvers.random_training import chain_training, random_training

ROOT = Path(__file__).resolve().parents[2]
BOTH = ["chen-sqrt", "chen-greedy"]


def run(problem: Problem, solver: str, order: str = "free", **options):
    return solve(problem, solver, Limits(seconds=20.0, order=order), options)


def skip_training(stages: int = 12) -> Problem:
    """A chain whose every third op also reads what was made three ops before; gradients as in the chain."""
    chain = chain_training(stages, size=5)
    ops = list(chain.ops)
    for op in range(4, stages + 1, 3):
        ops[op] = msgspec.structs.replace(ops[op], inputs=(*ops[op].inputs, op - 3))
    return msgspec.structs.replace(chain, ops=tuple(ops))


def test_square_root_checkpoints_of_a_chain_by_hand():
    # Ops 0..15, every fourth a checkpoint: each segment but the last runs twice, so 3 * 3 steps more.
    problem = chain_training(15)
    result = run(problem.with_budget(10), "chen-sqrt")
    assert result.status is Status.FEASIBLE
    assert result.plan.time_ns == problem.baseline_time_ns + 9
    assert result.plan.peak <= 10


def test_a_budget_below_every_candidate_gives_nothing():
    result = run(chain_training(15).with_budget(4), "chen-sqrt")
    assert result.status is Status.NOT_FOUND
    assert result.facts["least_peak_bytes"] > 4


def test_the_sweep_finds_the_cheapest_set_of_checkpoints_that_fits():
    problem = skip_training()
    passes = passes_of(problem)
    plans = []
    for candidates in candidate_ops(passes, "both"):
        for size in range(0, 5 * 15):
            steps = steps_of(passes, by_size(passes, candidates, size))
            plans.append(tidy(problem, simulate(problem, Schedule.of_ops(steps))))
    assert len({plan.peak for plan in plans}) > 3
    for budget in sorted({plan.peak for plan in plans}):
        best = min(plan.time_ns for plan in plans if plan.peak <= budget)
        assert run(problem.with_budget(budget), "chen-greedy").plan.time_ns == best


def test_square_roots_take_the_better_kind_of_candidates():
    problem = skip_training()
    passes = passes_of(problem)
    cuts, everything = candidate_ops(passes, "both")
    assert set(cuts) < set(everything)
    budget = max(
        simulate(problem, Schedule.of_ops(steps_of(passes, every_root(ops)))).peak for ops in (cuts, everything)
    )
    times = {
        kind: run(problem.with_budget(budget), "chen-sqrt", candidates=kind).plan.time_ns
        for kind in ("both", "articulation", "linearised")
    }
    assert times["both"] == min(times.values())
    assert len(set(times.values())) > 1


@pytest.mark.parametrize("order", ["free", "keep"])
@pytest.mark.parametrize("solver", BOTH)
@pytest.mark.parametrize("seed", few(range(15), 3))
def test_odd_training_steps_are_solved_legally_or_not_at_all(seed, solver, order):
    problem = random_training(seed)
    if make_solver(solver).supports(problem) is not None:
        assert not passes_of(problem).forward
        return
    for fraction in (0.95, 0.8, 0.6):
        limited = at_fraction(problem, fraction)
        result = run(limited, solver, order, **({"sizes": 40} if solver == "chen-greedy" else {}))
        if result.plan is not None:
            assert result.plan == simulate(limited, result.plan.schedule)
            assert result.plan.peak <= limited.memories[0].budget_bytes
            views = condense(limited).views  # these may wait until they are read
            firsts = [op for op in dict.fromkeys(result.plan.schedule.op_ids()) if op not in views]
            assert order == "free" or firsts == sorted(firsts)


@pytest.mark.parametrize("solver", BOTH)
def test_most_odd_training_steps_are_solved_under_some_budget(solver):
    found = [run(at_fraction(random_training(seed), 0.9), solver).plan is not None for seed in range(30)]
    assert sum(found) > 10


@pytest.mark.parametrize("solver", BOTH)
def test_closing_gaps_is_never_slower_and_sometimes_faster(solver):
    faster = 0
    for seed in range(10):
        problem = at_fraction(random_training(seed, count=16), 0.85)
        plain, closed = run(problem, solver), run(problem, solver, close_gaps=True)
        if plain.plan is not None:
            assert closed.plan.time_ns <= plain.plan.time_ns
            faster += closed.plan.time_ns < plain.plan.time_ns
    assert faster > 0


@pytest.mark.parametrize("solver", BOTH)
def test_a_fitting_baseline_is_the_answer(solver):
    problem = chain_training(9)
    result = run(problem.with_budget(baseline(problem).peak), solver)
    assert result.status is Status.OPTIMAL
    assert result.plan.time_ns == problem.baseline_time_ns


@pytest.mark.parametrize("solver", BOTH)
def test_zero_sizes_and_zero_times_work(solver):
    problem = chain_training(6, size=0, forward_ns=0)
    result = run(problem.with_budget(0), solver)
    assert result.status is Status.OPTIMAL


@pytest.mark.parametrize("solver", BOTH)
def test_graphs_without_marks_are_refused_and_told_who_marks(solver):
    problem = one_device([([], 1, 1), ([0], 1, 1)], budget=1)
    reason = str(make_solver(solver).supports(problem))
    assert "backward" in reason
    assert "remat train" in reason
    with pytest.raises(ConfigError, match="backward"):
        run(problem, solver)


@pytest.mark.parametrize("solver", BOTH)
def test_a_single_op_and_several_devices_are_refused(solver):
    op = OpSpec((), (0,), (1,), (0,), phase="backward")
    single = Problem((op,), (TensorSpec(1, 0),), (Memory("m", 9),), (Device("a", 0),))
    assert "nothing to checkpoint" in str(make_solver(solver).supports(single))
    two = Problem(
        (OpSpec((), (0,), (1, 1), (0, 0)),), single.tensors, single.memories, (Device("a", 0), Device("b", 0))
    )
    assert str(make_solver(solver).supports(two)) == "it places every op on one device"


def test_options_of_the_wrong_kind_are_refused():
    problem = chain_training(3)
    with pytest.raises(ConfigError, match="sizes"):
        run(problem, "chen-greedy", sizes=0)
    with pytest.raises(ConfigError, match="candidates"):
        run(problem, "chen-sqrt", candidates="none")


def test_a_single_size_keeps_all_that_has_bytes():
    problem = chain_training(8)
    result = run(problem.with_budget(baseline(problem).peak - 1), "chen-greedy", sizes=1)
    assert result.facts["candidates"] >= 1


@pytest.fixture(scope="module")
def digits_step(tmp_path_factory) -> Problem:
    """The training step of the example net, with costs by shapes."""
    folder = tmp_path_factory.mktemp("step")
    train = TrainOptions(loss="cross-entropy", optimizer="adam", batch=64, keep_outputs=True)
    config = msgspec.structs.replace(load_settings({}), train=train, split="off", estimate=True)
    paths = StepPaths(folder / "step.onnx", folder / "state.npz")
    write_step(make_step(ROOT / "examples" / "digits.onnx", config.train, config.conditions, silent()), paths)
    settings = compile_settings(config)
    prepared = prepare(paths.step, settings.conditions, folder, silent())
    return profile_model(prepared, settings.conditions, silent()).problem()


@pytest.mark.parametrize("order", ["free", "keep"])
def test_a_real_training_step_is_solved(digits_step, order):
    assert {op.phase for op in digits_step.ops} >= {"forward", "backward", "update"}
    problem = at_fraction(digits_step, 0.85)
    square, greedy = (run(problem, solver, order) for solver in BOTH)
    assert greedy.plan is not None
    assert greedy.plan.time_ns < 1.5 * problem.baseline_time_ns
    assert square.plan is None or square.plan.peak <= problem.memories[0].budget_bytes
