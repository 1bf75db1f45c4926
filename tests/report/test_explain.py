from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.schedule.graph import Graph, Op, Tensor
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import make_problem
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.core.values.profile import OpCost, Profile
from remat_cli.report.explain import alive_at, fullest_step, recomputes, step_name, working_set
from tests.report import samples

MIB = samples.MIB


def profile_of(graph: Graph, workspace: int = 0) -> Profile:
    costs = tuple(OpCost(op.name, 1, workspace) for op in graph.ops)
    return Profile("cpu", "", samples.profile().provenance, costs, 0, graph.input_bytes)


def test_alive_tensors_fixed_part_and_workspace_add_up_to_the_peak():
    plan, report = samples.plan(), samples.inspect_report()
    assert fullest_step(plan.memory_bytes[0]) == 1
    assert [t.name for t in report.alive] == ["g", "s"]
    assert sum(t.bytes for t in report.alive) + report.fixed_bytes + report.workspace_bytes == plan.peak


def test_step_is_named_after_its_op():
    assert [step_name(samples.graph(), samples.plan(), step) for step in (0, 3)] == ["make_skip", "make_skip"]


def test_recompute_says_what_was_cut_and_what_it_frees():
    # s is read at step 1, made again at step 3; during step 2 are fixed, g and h: without the cut 8 MiB more.
    (found,) = recomputes(samples.graph(), samples.problem(), samples.plan())
    assert (found.op, found.op_type, found.runs, found.time) == ("make_skip", "Conv", 2, 1_000_000)
    assert (found.tensor, found.freed_bytes, found.dropped_after, found.made_again_at) == ("s", 8 * MIB, 1, 3)
    assert found.peak_without_bytes == samples.plan().memory_bytes[0][2] + 8 * MIB


def test_nothing_recomputed_explains_nothing():
    assert recomputes(samples.graph(), samples.problem(), baseline(samples.problem())) == ()


def test_working_set_is_inputs_and_outputs():
    assert [(t.name, t.producer) for t in working_set(samples.graph(), 3)] == [
        ("s", "make_skip"),
        ("h", "shrink"),
        ("y", "join"),
    ]
    assert working_set(samples.graph(), 0)[1].producer is None


def views() -> Graph:
    """x -> a; a -> Reshape -> v (a view of a); a dies, v is read by the last op; u is a view of the model input."""
    return Graph(
        ops=(
            Op("a", "Conv", (0,), (1,)),
            Op("reshape", "Reshape", (1,), (2,)),
            Op("flatten", "Flatten", (0,), (3,)),
            Op("sum", "Sum", (2, 3), (4,)),
        ),
        tensors=(
            Tensor("x", "float", (4,), 16),
            Tensor("a_out", "float", (4,), 16, 0),
            Tensor("v", "float", (2, 2), 16, 1, view_of=1),
            Tensor("u", "float", (4,), 16, 2, view_of=0),
            Tensor("y", "float", (4,), 16, 3, kept=True),
        ),
        weights=(),
    )


def test_views_name_what_they_share():
    graph = views()
    problem = make_problem(graph, profile_of(graph), 1000)
    plan = baseline(problem)
    alive = {t.name: t for t in alive_at(graph, problem, plan, 3)}
    assert {name: (t.bytes, t.shares_with) for name, t in alive.items()} == {
        "a_out": (16, None),  # nobody reads it any more, but its storage is held for v
        "v": (0, "a_out"),
        "u": (0, "x"),
        "y": (16, None),
    }
    assert sum(t.bytes for t in alive.values()) + 16 == plan.memory_bytes[0][3]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 8))
    ops, tensors = [], [Tensor("x", "float", (1,), 4)]
    for index in range(count):
        inputs = draw(st.lists(st.integers(0, index), min_size=1, max_size=3, unique=True))
        view = inputs[0] if draw(st.booleans()) else None
        in_place = ((inputs[0], index + 1),) if view is None and draw(st.booleans()) else ()
        base = tensors[inputs[0]].size_bytes
        size = base if view is not None or in_place else draw(st.integers(1, 50))
        ops.append(Op(f"op{index}", "Op", tuple(inputs), (index + 1,), in_place=in_place))
        tensors.append(Tensor(f"t{index}", "float", (1,), size, index, view, kept=draw(st.booleans())))
    return Graph(tuple(ops), tuple(tensors), ())


@given(graphs(), st.data())
def test_bytes_alive_always_add_up(graph, data):
    problem = make_problem(graph, profile_of(graph, workspace=3), 10**6)
    order = list(range(len(graph.ops)))
    repeats = data.draw(st.lists(st.sampled_from(order), max_size=3))
    plan = simulate(problem, Schedule.of_ops([*order, *sorted(repeats)]))
    for step, total in enumerate(plan.memory_bytes[0]):
        assert sum(t.bytes for t in alive_at(graph, problem, plan, step)) + graph.input_bytes + 3 == total
    assert sum(r.runs - 1 for r in recomputes(graph, problem, plan)) == plan.recomputed_ops
