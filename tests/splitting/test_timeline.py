"""What is alive where: widths and a region's boundary, against the judge and against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import simulate
from remat_cli.splitting.tiles.build import split_model
from remat_cli.splitting.tiles.timeline import TensorTimeline, owner_of
from tests.helpers import free_problem
from tests.splitting.random_models import Sketch, image_models, transformer_models
from tests.splitting.split_case import Case, check_same, make_case
from tests.splitting.test_propose import proposer, share


def samples():
    return st.one_of(image_models(), transformer_models())


@settings(max_examples=25)
@given(st.data())
def test_widths_are_what_the_judge_holds_between_steps(data):
    case = make_case(data.draw(samples()))
    problem = free_problem(case.view.graph)
    order = data.draw(_orders(case.view.graph))
    plan = simulate(problem, Schedule.of_ops(order))
    widths = TensorTimeline(case.view, tuple(order), plan.memory_bytes[0]).width_bytes
    assert len(widths) == len(order) + 1
    for cut, width in enumerate(widths):
        assert width == _held_across(plan, problem, cut)


def _held_across(plan, problem, cut):
    """Bytes of storages made before a cut and in use after it; views have no bytes of their own."""
    spans = {}
    for value in plan.instances:
        born, dies = spans.get(value.storage, (value.birth, -1))
        kept = problem.tensors[value.tensor].kept
        spans[value.storage] = (min(born, value.birth), max(dies, len(plan.memory_bytes[0]) if kept else value.death))
    size = {}
    for value in plan.instances:
        size.setdefault(value.storage, problem.tensors[value.tensor].size_bytes)
    return sum(size[storage] for storage, (born, dies) in spans.items() if born < cut <= dies)


@st.composite
def _orders(draw, graph):
    """A random topological order."""
    order: list[int] = []
    while len(order) < len(graph.ops):
        ready = [
            index
            for index, op in enumerate(graph.ops)
            if index not in order and all(graph.tensors[t].producer in (None, *order) for t in op.inputs)
        ]
        order.append(draw(st.sampled_from(ready)))
    return order


@settings(max_examples=25)
@given(st.data())
def test_boundaries_by_brute_force(data):
    case = make_case(data.draw(samples()))
    timeline, view = case.timeline, case.view
    count = len(timeline.order)
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    around = timeline.surroundings(start, stop)
    assert around.exits == tuple(_exits(view, start, stop))
    living, dying = _lives(view, start, stop)
    assert around.dying == dying
    assert around.context_bytes == sum(view.tensors[name].size_bytes for name in living)
    assert not any(view.tensors[name].producer is None for name in around.dying)


def _exits(view, start, stop):
    ops = view.graph.ops
    for index in range(start, stop):
        for tensor in ops[index].outputs:
            spec = view.graph.tensors[tensor]
            if spec.kept or any(tensor in op.inputs for op in ops[stop:]):
                yield spec.name


def _lives(view, start, stop):
    """Owners of storage made before `start`: those that anything after `stop` needs, and those last needed inside.

    What the region makes has storage of its own, views included, and so have views of that.
    """
    graph = view.graph
    owner = {}
    for index, tensor in enumerate(graph.tensors):
        if tensor.producer is None or start <= tensor.producer < stop:
            continue
        is_view = tensor.view_of is not None and not tensor.kept
        found = owner.get(tensor.view_of) if is_view else index
        if found is not None and graph.tensors[found].producer < start:
            owner[index] = found
    later = {owner[t] for op in graph.ops[stop:] for t in op.inputs if t in owner}
    later |= {owner[t] for t in owner if graph.tensors[t].kept}
    later |= {owner[t] for t in owner if graph.tensors[t].producer >= stop}
    inside = {owner[t] for op in graph.ops[start:stop] for t in op.inputs if t in owner}
    return (
        {graph.tensors[t].name for t in later},
        frozenset(graph.tensors[t].name for t in inside - later),
    )


def test_a_view_that_a_region_makes_does_not_keep_its_entry():
    sketch = Sketch(np.random.default_rng(0))
    value = sketch.add("Abs", [sketch.input("x", [4, 6])], [4, 6])
    opened = sketch.add("Reshape", [value, sketch.constant(np.array([2, 2, 6], np.int64))], [2, 2, 6])
    case = make_case(sketch.sample([sketch.add("Softplus", [opened], [2, 2, 6])]))
    around = case.timeline.surroundings(1, 2)
    assert (around.dying, around.exits, around.context_bytes) == (frozenset({"t0"}), ("t1",), 0)
    outside = case.timeline.surroundings(2, 3)
    assert (outside.dying, outside.exits) == (frozenset({"t0"}), ("t2",))


def test_views_of_model_inputs_weigh_nothing():
    sketch = Sketch(np.random.default_rng(0))
    opened = sketch.add("Reshape", [sketch.input("x", [4, 6]), sketch.constant(np.array([2, 12], np.int64))], [2, 12])
    case = make_case(sketch.sample([sketch.add("Abs", [opened], [2, 12])]))
    assert owner_of(case.view, "t0").name == "x"
    assert case.timeline.width_bytes == (0, 0, 96)
    assert case.timeline.surroundings(1, 2).context_bytes == 0


@settings(max_examples=25)
@given(st.data())
def test_ops_stand_behind_what_they_read_and_no_sooner_than_somebody_needs_them(data):
    case = make_case(data.draw(samples()))
    view, order = case.view, case.needy.order
    assert sorted(order) == list(range(len(view.graph.ops)))
    place = {op: at for at, op in enumerate(order)}
    for op in order:
        makers = [view.tensors[name].producer for name in view.reads[op] if name in view.tensors]
        assert all(place[maker] < place[op] for maker in makers if maker is not None)
    for at, op in enumerate(order[:-1]):  # the next op reads it, or begins what another op behind reads
        readers = {reader for name in view.makes[op] if name for reader in view.readers[name]}
        assert not readers or place[min(readers, key=place.__getitem__)] > at
        if len(readers) == 1:
            [reader] = readers
            between = order[at + 1 : place[reader]]
            assert all(_leads_to(view, each, reader) for each in between)


def _leads_to(view, op, target):
    waiting = [op]
    while waiting:
        here = waiting.pop()
        if here == target:
            return True
        waiting += [reader for name in view.makes[here] if name for reader in view.readers[name]]
    return False


@settings(max_examples=25)
@given(st.data())
def test_beside_a_region_that_finds_just_what_it_needs_nothing_is_held(data):
    case = make_case(data.draw(samples()))
    count = len(case.needy.order)
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    around, view = case.needy.surroundings(start, stop), case.view
    inside = case.needy.order[start:stop]
    assert around.context_bytes == 0
    read = {owner_of(view, n).name for op in inside for n in view.reads[op] if n in view.tensors}
    assert around.dying == {n for n in read if view.tensors[n].producer not in (None, *inside)}
    assert len(case.needy.width_bytes) == count + 1
    assert all(width >= 0 for width in case.needy.width_bytes)


def chooser() -> Case:
    """A wide layer, then an If, whose bodies alone read what it made."""
    sketch = Sketch(np.random.default_rng(0))
    x = sketch.input("x", (256, 32))
    wide = sketch.add("MatMul", [x, sketch.weight(32, 256)], (256, 256))
    narrow = sketch.add("MatMul", [sketch.add("Erf", [wide], (256, 256)), sketch.weight(256, 32)], (256, 32))
    flag = sketch.add("Greater", [sketch.input("s", (1,)), sketch.constant(np.zeros(1, np.float32))], (1,))
    bodies = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op_type, [narrow], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, (256, 32))],
        )
        for name, op_type in (("then", "Sin"), ("else", "Erf"))
    }
    chosen = sketch.add("If", [flag], (256, 32), **bodies)
    return make_case(sketch.sample([sketch.add("Neg", [chosen], (256, 32))]))


def test_what_bodies_read_from_outside_is_needed():
    """In the order of needs, too, an op stands behind what its bodies read, which is made."""
    case = chooser()
    choosing = next(op for op, each in enumerate(case.view.graph.ops) if each.op_type == "If")
    (inside,) = {name for name in case.view.needs[choosing] if case.view.tensors[name].shape == (256, 32)}
    assert inside not in case.view.reads[choosing]
    order = case.needy.order
    assert sorted(order) == list(range(len(case.view.graph.ops)))
    assert order.index(case.view.tensors[inside].producer) < order.index(choosing)
    assert inside in case.needy.surroundings(order.index(choosing), len(order)).dying


@pytest.mark.parametrize("percent", [90, 60, 30])
def test_tiles_of_what_bodies_read_from_outside_are_joined_for_them(percent):
    case = chooser()
    looking, free_bytes = proposer(case), share(case, percent)
    found = [*looking.propose(free_bytes), *looking.propose_needy(free_bytes)]
    assert {each.form for each in found} >= {"needy"}
    for each in found:
        check_same(case, case.lean(split_model(each.view, each.order, each.parts)), each.form)
