"""A graph along a line: where backward ops are, what crosses cuts, what stages keep; and the chain of its blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.graph import Graph, Op, Tensor, Weight
from remat_cli.pipelines.plan.line import StepLinks, UpdateGroup, lay_out, merge_places
from remat_cli.pipelines.plan.stage_parts import LineCosts, chain_of, place_times, stages_between

LINKS = StepLinks(groups=tuple(UpdateGroup((f"w{at}",), (f"g{at}",)) for at in (1, 2, 3)))


def tensor(name, size=4, producer=None, kept=False):
    return Tensor(name, "float", (size,), size, producer, kept=kept)


def step() -> Graph:
    """x -> F1 -> F2 -> F3 -> loss; B3, B2, B1 each read what their layer read and its weight, and give its gradient.

    Tensors: x, w1..w3, y1, y2, loss, then per layer d (of its input) and g (of its weight).
    """
    names = ["x", "w1", "w2", "w3", "y1", "y2", "loss", "d2", "g3", "d1", "g2", "g1"]
    maker = {"y1": 0, "y2": 1, "loss": 2, "d2": 3, "g3": 3, "d1": 4, "g2": 4, "g1": 5}
    size = {"x": 10, "w1": 1, "w2": 2, "w3": 3, "g1": 1, "g2": 2, "g3": 3, "loss": 1}
    kept = {"loss", "g1", "g2", "g3"}
    tensors = tuple(tensor(name, size.get(name, 4), maker.get(name), name in kept) for name in names)
    at = {name: number for number, name in enumerate(names)}
    rows = [
        ("F1", "x w1", "y1"),
        ("F2", "y1 w2", "y2"),
        ("F3", "y2 w3", "loss"),
        ("B3", "y2 w3", "d2 g3"),
        ("B2", "d2 y1 w2", "d1 g2"),
        ("B1", "d1 x", "g1"),
    ]
    ops = tuple(
        Op(
            name,
            name,
            tuple(at[each] for each in reads.split()),
            tuple(at[each] for each in makes.split()),
            phase="forward" if name.startswith("F") else "backward",
        )
        for name, reads, makes in rows
    )
    return Graph(ops, tensors, ())


def names(graph, tensors):
    return {graph.tensors[each].name for each in tensors}


def test_backward_ops_are_where_their_forward_tensors_are():
    line = lay_out(step(), LINKS)
    assert line.forward == (0, 1, 2)
    assert [line.place[op] for op in line.backward] == [2, 1, 1]
    assert {step().tensors[t].name: home for t, home in line.homes.items()} == {"w1": 0, "w2": 1, "w3": 2}


def test_what_crosses_each_cut_there_and_back():
    graph = step()
    line = lay_out(graph, LINKS)
    there, back = line.crossing(1)
    assert (names(graph, there), names(graph, back)) == ({"y1"}, {"g1"})
    there, back = line.crossing(2)
    assert (names(graph, there), names(graph, back)) == ({"y2"}, {"d2"})
    assert line.cut_bytes == [0, 4, 4, 0]


def test_stages_keep_what_their_backward_reads_and_own_what_they_update():
    graph = step()
    line = lay_out(graph, LINKS)
    one, two = stages_between(line, (2, 3))
    assert names(graph, one.kept) == {"y1"}
    assert names(graph, one.states) == {"w1", "w2"}
    assert names(graph, one.gradients) == {"g1", "g2"}
    assert names(graph, one.fed) == {"x"}
    assert names(graph, two.arrives) == {"y2"} == names(graph, one.leaves)
    assert names(graph, two.kept) == {"y2"}
    assert names(graph, two.goes_back) == {"d2"} == names(graph, one.returns)


def test_the_chain_counts_times_weights_and_what_is_kept():
    line = lay_out(step(), LINKS)
    costs = LineCosts((1, 2, 3, 4, 5, 6), (0,) * 6, 2.0, states_per_weight=1)
    chain = chain_of(line, (2, 3), costs)
    assert chain.forward == (3, 3)
    assert chain.backward == (11, 4)
    assert chain.weights == (5 * 3, 5 * 3)
    assert chain.saved == (4 + 10, 4)  # y1 and the input x; y2
    assert chain.sizes == (0, 4, 0)
    assert chain.transfers == (2,)
    assert chain.has_gradients


def test_a_weight_that_two_layers_read_is_sent_on_and_its_gradient_comes_home():
    graph = step()
    ops = list(graph.ops)
    ops[2] = Op("F3", "F3", (5, 3, 1), (6,), phase="forward")  # reads w1 too
    ops[3] = Op("B3", "B3", (5, 3, 1), (7, 8), phase="backward")
    shared = Graph(tuple(ops), graph.tensors, ())
    line = lay_out(shared, LINKS)
    assert names(shared, line.crossing(2)[0]) == {"y2", "w1"}
    _, last = stages_between(line, (2, 3))
    assert names(shared, last.states) == {"w3"}
    assert names(shared, last.kept) == {"y2", "w1"}


def test_a_state_of_the_forward_pass_keeps_its_reader_and_its_maker_in_one_stage():
    """F1 makes a statistic; an op that nobody waits for, last in the graph's order, works it into the running one."""
    tensors = (tensor("x"), tensor("r"), tensor("y", 4, 0), tensor("z", 4, 1, True), tensor("r.next", 4, 2, True))
    ops = (
        Op("F1", "F1", (0,), (2,)),
        Op("F2", "F2", (2,), (3,)),
        Op("moved", "Add", (1, 2), (4,)),
    )
    line = lay_out(Graph(ops, tensors, ()), StepLinks(forward_states={"r.next": "r"}))
    assert line.forward == (0, 2, 1)
    assert line.homes == {1: 1}
    assert not line.glued
    assert names(Graph(ops, tensors, ()), line.crossing(2)[0]) == {"y"}


def test_reader_and_maker_apart_glue_the_cuts_between_them():
    tensors = (tensor("x"), tensor("r"), tensor("y", 4, 0), tensor("r.next", 4, 1, True))
    ops = (Op("F1", "F1", (0, 1), (2,)), Op("F2", "F2", (2,), (3,)))
    links = StepLinks(forward_states={"r.next": "r"})
    graph = Graph(ops, (*tensors, tensor("z", 4, None)), ())
    line = lay_out(graph, links)
    ends = merge_places(line, [1] * len(line.forward), 10)
    assert line.glued == {1}
    assert ends == (2,)


def test_updates_must_be_cut_off_first():
    graph = step()
    ops = (*graph.ops[:5], Op("U", "Sub", (9,), (11,), phase="update"))
    with pytest.raises(ModelError, match="op U is an update"):
        lay_out(Graph(ops, graph.tensors, ()), LINKS)


def test_a_graph_without_ops_is_refused():
    with pytest.raises(ModelError, match="without ops"):
        lay_out(Graph((), (tensor("x"),), ()), StepLinks())


@st.composite
def chains(draw):
    """Forward graphs whose ops read the result before them and some earlier ones; weights of their own."""
    count = draw(st.integers(2, 12))
    tensors = [tensor("x", 3)]
    ops = []
    for at in range(count):
        earlier = draw(st.sets(st.integers(0, at), max_size=2)) | {at}
        ops.append(Op(f"op{at}", "Add", tuple(sorted(earlier)), (at + 1,), weights=(at,)))
        tensors.append(tensor(f"t{at}", draw(st.integers(1, 50)), at, at == count - 1))
    return Graph(tuple(ops), tuple(tensors), tuple(Weight(f"w{at}", at) for at in range(count)))


@given(chains(), st.integers(1, 6))
def test_stages_have_every_op_once_and_receive_all_that_they_read(graph, most):
    line = lay_out(graph, StepLinks())
    ends = merge_places(line, place_times(line, [1] * len(graph.ops)), most)
    assert len(ends) <= most
    assert ends[-1] == len(graph.ops)
    stages = stages_between(line, ends)
    assert sorted(op for stage in stages for op in stage.forward) == list(range(len(graph.ops)))
    for stage in stages:
        made = {tensor for op in stage.forward for tensor in graph.ops[op].outputs}
        read = {tensor for op in stage.forward for tensor in graph.ops[op].inputs}
        assert read <= made | set(stage.arrives) | set(stage.fed)
    costs = LineCosts((1,) * len(graph.ops), (0,) * len(graph.ops), 1.0)
    chain = chain_of(line, ends, costs)
    assert sum(chain.forward) == len(graph.ops)
    assert sum(chain.weights) == sum(weight.size_bytes for weight in graph.weights)
    assert not chain.has_gradients


@given(chains())
def test_one_stage_works_in_what_whole_runs_hold(graph):
    """The most that is held is at least the largest op's inputs and outputs, and at most everything."""
    line = lay_out(graph, StepLinks())
    costs = LineCosts((1,) * len(graph.ops), (0,) * len(graph.ops), 1.0)
    (work,) = chain_of(line, (len(graph.ops),), costs).forward_work_bytes
    sizes = [tensor.size_bytes for tensor in graph.tensors]
    assert work >= max(sum(sizes[t] for t in {*op.inputs, *op.outputs}) for op in graph.ops)
    assert work <= sum(sizes)
