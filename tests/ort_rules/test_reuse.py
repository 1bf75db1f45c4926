"""Dead buffers that a default session keeps for later tensors of one shape."""

from remat_cli.core.schedule.graph import Graph, Op, Tensor
from remat_cli.core.schedule.problem import make_problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.profile import OpCost, Profile, Provenance
from remat_cli.ort_rules.reuse import KeptBuffers, kept_buffers
from tests.solvers.random_training import chain_training


def test_nothing_is_held_where_no_shape_is_known() -> None:
    plan = baseline(chain_training(4))
    count, nothing = len(plan.instances), (0,) * len(plan.schedule.steps)
    assert kept_buffers(plan, [1] * count, [None] * count) == KeptBuffers(nothing, nothing)


def test_a_dead_buffer_is_held_until_the_next_of_its_kind() -> None:
    plan = baseline(chain_training(4))
    deaths = {value: instance.death for value, instance in enumerate(plan.instances)}
    early = min(deaths, key=lambda value: deaths[value])
    late = max(range(len(plan.instances)), key=lambda value: plan.instances[value].birth)
    kinds = ["same" if value in (early, late) else None for value in range(len(plan.instances))]
    kept = kept_buffers(plan, [7] * len(kinds), kinds)
    between = range(deaths[early] + 1, plan.instances[late].birth)
    assert between
    steps = range(len(plan.schedule.steps))
    assert kept.held_bytes == tuple(7 if step in between else 0 for step in steps)
    assert kept.reused_bytes == tuple(7 if step == between.stop else 0 for step in steps)


def test_an_op_may_take_over_several_buffers_at_once() -> None:
    """Two results that died a step before are those of the last op, in which both stay."""
    sizes, producers = [4, 5, 7, 1, 1, 5, 7], [None, 0, 0, 1, 2, 3, 3]
    tensors = tuple(Tensor(f"t{at}", "float", (1,), size, producers[at]) for at, size in enumerate(sizes))
    ends = [((0,), (1, 2)), ((1, 2), (3,)), ((3,), (4,)), ((4,), (5, 6))]
    graph = Graph(tuple(Op(f"o{at}", "Exp", *each) for at, each in enumerate(ends)), tensors, ())
    costs = tuple(OpCost(op.name, 1, 0) for op in graph.ops)
    plan = baseline(make_problem(graph, Profile("cpu", "", Provenance("", "", "", "", "", 0, "", 0, 0), costs, 0, 4)))
    kept = kept_buffers(plan, [5, 7, 1, 1, 5, 7], ["a", "b", None, None, "a", "b"])
    assert kept.held_bytes == (0, 0, 12, 0)
    assert kept.reused_bytes == (0, 0, 0, 12)
    assert len(kept.takes_over) == 2
