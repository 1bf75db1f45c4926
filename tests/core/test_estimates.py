"""What is held at a step, counted beside the judge: such estimates against `simulate` on random schedules.

Others are held against it where they are tested: regions in tiles (`tests/splitting/test_estimate.py`), what lives
across cuts of an order (`test_timeline.py` there), paged steps (`tests/solvers/test_plan_steps.py`), searches
(`test_search_kernels.py`, `test_windows.py`, `test_rounding.py`, `test_placement.py`, `test_chain.py` there).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remat_cli.core.paging.paging import PagedTensor
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.shared_session import Shared, one_session_cut
from remat_cli.core.schedule.simulate import simulate
from remat_cli.core.values.buffer_cache import Hold, most_bytes, workspace_holds
from remat_cli.core.values.profile import OpCost, Profile
from remat_cli.core.values.sizes import Dim
from remat_cli.pipelines.plan.line import StepLinks, lay_out
from remat_cli.solvers.chains.candidates import _Steps
from remat_cli.splitting.loops.loop_bits import Tiling
from remat_cli.splitting.loops.loop_estimate import LoopEstimate
from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView
from remat_cli.splitting.loops.tile_bytes import ops_in_order
from remat_cli.splitting.tiles.view import ModelView
from tests.helpers import NOWHERE, free_problem
from tests.pipelines.plan.test_line import chains
from tests.solvers.random_paging import graphs
from tests.splitting.random_models import Sketch
from tests.splitting.split_case import make_case
from tests.strategies import device_problems, device_schedules, problems, schedules

ROWS = 4


@given(st.data())
def test_buffers_from_where_to_where_they_are_needed_take_what_the_judge_counts(data):
    problem = data.draw(problems(sharing=False))
    plan = simulate(problem, data.draw(schedules(problem)))
    sizes = [problem.tensors[instance.tensor].size_bytes for instance in plan.instances]
    holds = [Hold(size, each.birth, each.death) for size, each in zip(sizes, plan.instances, strict=True)]
    count, fixed = len(plan.schedule.steps), problem.memories[0].fixed_bytes
    assert most_bytes(holds, count) == plan.live_peak - fixed
    for place, op in enumerate(plan.schedule.op_ids()):
        holds += workspace_holds(problem.ops[op].workspace_bytes[0], place, ())
    assert most_bytes(holds, count) == plan.peak - fixed


@given(st.data())
def test_steps_that_may_be_left_out_hold_what_the_judge_counts(data):
    problem = data.draw(problems(sharing=False))
    plan = simulate(problem, data.draw(schedules(problem)))
    fixed = problem.memories[0].fixed_bytes
    steps = _Steps(problem, list(plan.schedule.op_ids()))
    assert list(steps.bytes) == [held - fixed for held in plan.memory_bytes[0]]


@given(chains())
def test_a_cut_of_a_line_is_crossed_by_what_the_judge_holds_on_both_sides(graph):
    line = lay_out(graph, StepLinks())
    problem = free_problem(graph)
    plan = simulate(problem, Schedule.of_ops(line.forward))
    crossing = [0] * (len(line.forward) + 1)
    for cut in range(1, len(line.forward)):
        alive = (each for each in plan.instances if each.birth < cut <= each.death)
        crossing[cut] = sum(problem.tensors[each.tensor].size_bytes for each in alive)
    assert line.cut_bytes == crossing


@given(graphs(8))
def test_what_is_paged_away_is_missing_in_its_gaps_only(problem):
    away = [(tensor, gap) for tensor in problem.tensors for gap in tensor.open_gaps]
    held = [
        _held_by_hand(problem.tensors, problem.workspace_bytes, step, away) for step in range(len(problem.durations))
    ]
    assert problem.held_bytes(away) == problem.working_bytes() == tuple(held)
    for tensor, gap in away:
        pairs = zip(problem.held_bytes(), problem.held_bytes([(tensor, gap)]), strict=True)
        gone = {step for step, (before, after) in enumerate(pairs) if before != after}
        assert gone <= set(range(tensor.uses[gap] + 1, tensor.uses[gap + 1]))


def _held_by_hand(
    tensors: tuple[PagedTensor, ...], workspaces: tuple[int, ...], step: int, away: list[tuple[PagedTensor, int]]
) -> int:
    there = [each for each in tensors if each.uses[0] <= step and (each.is_kept or step <= each.uses[-1])]
    gone = [each for each, gap in away if each.uses[gap] < step < each.uses[gap + 1]]
    return workspaces[step] + sum(each.size_bytes for each in there) - sum(each.size_bytes for each in gone)


@settings(max_examples=15, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(st.data())
def test_one_session_for_two_devices_holds_no_less_than_the_judge_counts(data):
    """It keeps inputs, outputs and what nobody reads for longer."""
    problem = data.draw(device_problems(max_ops=4).filter(lambda each: len(each.devices) == len(each.memories) == 2))
    plan = simulate(problem, data.draw(device_schedules(problem)))
    shared = Shared(problem, plan, 0, (0, 1))
    cut = one_session_cut(shared, [tensor.size_bytes for tensor in problem.tensors], {})
    assert all(held >= judged for held, judged in zip(cut.peak_bytes, plan.peak_bytes, strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_a_loop_whose_one_tile_is_everything_holds_what_its_ops_hold(seed):
    """Views left aside: what a view keeps alive beyond its base is not counted before the loop is written."""
    view = make_case(_pointwise(seed)).view
    count = len(view.graph.ops)
    made = {name: 0 for names in view.makes for name in names if name}
    inputs = {view.graph.tensors[tensor].name for tensor in view.graph.model_inputs}
    reads = {(op, at): 0 for op in range(count) for at, name in enumerate(view.reads[op]) if name in inputs}
    region = LoopRegion(Dim(offset=ROWS), set(range(count)), axes=made, reads=reads)
    profile = Profile("cpu", "", NOWHERE, tuple(OpCost(op.name, 0) for op in view.graph.ops), 0, 0)
    estimate = LoopEstimate(SizedView(view, {}), [region], [Tiling(ROWS)], profile)
    exits = sum(tensor.size_bytes for tensor in view.graph.tensors if tensor.kept)
    body = simulate(*_as_body(view, ops_in_order(estimate.sized, region))).peak
    assert estimate.body_bytes(0) == body
    # a loop that joins tile by tile holds its results three times while it ends
    assert estimate.peak_bytes == exits + max(2 * exits, body)


def _pointwise(seed: int):
    """Elementwise ops, each on one or two results of before, some of which may be overwritten."""
    rng = np.random.default_rng(seed)
    sketch = Sketch(rng)
    values = [sketch.input("x", (ROWS, 3)), sketch.input("y", (ROWS, 3))]
    for _ in range(int(rng.integers(3, 9))):
        kind = str(rng.choice(["Abs", "Softplus", "Relu", "Sub"]))
        read = [str(each) for each in rng.choice(values, 2 if kind == "Sub" else 1, replace=False)]
        values.append(sketch.add(kind, read, (ROWS, 3)))
    return sketch.sample(sketch.unread())


def _as_body(view: ModelView, order: Sequence[int]) -> tuple[Problem, Schedule]:
    """The ops in an order as a problem: an input is made right before it is read first, outputs are read at the end."""
    number: dict[str, int] = {}
    tensors: list[TensorSpec] = []
    ops: list[OpSpec] = []

    def run(reads: list[str], makes: list[str]) -> None:
        pairs = tuple((number[a], len(tensors)) for a, b in sorted(view.in_place) if a in reads and b in makes)
        outputs = tuple(range(len(tensors), len(tensors) + len(makes)))
        number.update(zip(makes, outputs, strict=True))
        tensors.extend(TensorSpec(view.tensors[name].size_bytes if name else 0, len(ops)) for name in makes)
        inputs = tuple(number[name] for name in reads)
        ops.append(OpSpec(inputs, outputs, (0,), (0,), in_place=pairs))

    for op in order:
        reads = list(dict.fromkeys(name for name in view.reads[op] if name in view.tensors))
        for name in reads:
            if name not in number:
                run([], [name])
        run(reads, [name for name in view.makes[op] if name])
    run([tensor.name for tensor in view.graph.tensors if tensor.kept], [""])
    problem = Problem(tuple(ops), tuple(tensors), (Memory("cpu", 2**40),), (Device("cpu", 0),))
    return problem, Schedule.of_ops(range(len(ops)))
