"""Models whose items run one by one, cut once more by rows: layers that lay the rows of all items flat."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import simulate
from remat_cli.core.schedule.splits import SplitAxis, Splitting, regions_of_ops
from remat_cli.core.values.profile import OpCost, Profile
from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.splitting.bands.items_apart import MOST_ITEMS, ItemsApart, items_apart
from remat_cli.splitting.tiles.build import split_model
from remat_cli.splitting.tiles.propose import SplitProposer
from remat_cli.splitting.tiles.search import SplitLimits
from remat_cli.splitting.tiles.timeline import NeedyTimeline, TensorTimeline
from tests.helpers import NOWHERE, free_problem, observe
from tests.splitting.random_models import Sample, Sketch
from tests.splitting.split_case import Case, check_same, make_case
from tests.splitting.test_propose import FIXED_BYTES, proposer, share

ROWS, WIDTH, INNER = 64, 32, 256


def flat_layers(items: int, layers: int = 2, mixes: bool = False) -> Case:
    """Layers of two products each, over rows of all items laid flat, with a sum around; `mixes`: items meet between."""
    feeds = {"x": np.random.default_rng(1).standard_normal((items, ROWS, WIDTH)).astype(np.float32)}
    return make_case(Sample(flat_model(items, layers, mixes), feeds))


def flat_model(items: int, layers: int = 2, mixes: bool = False, has_places: bool = False) -> onnx.ModelProto:
    """The model; `has_places`: what tells rows apart is added first, the same to all items, and normalised."""
    sketch = Sketch(np.random.default_rng(0))
    held = sketch.input("x", (items, ROWS, WIDTH))
    if has_places:
        held = sketch.add("Add", [held, sketch.weight(1, ROWS, WIDTH)], (items, ROWS, WIDTH))
        scale = [sketch.weight(WIDTH), sketch.weight(WIDTH)]
        held = sketch.add("LayerNormalization", [held, *scale], (items, ROWS, WIDTH))
    folded, wide = (sketch.constant(np.array((items, ROWS, each), np.int64)) for each in (WIDTH, INNER))
    flat, flat_wide = (sketch.constant(np.array((items * ROWS, each), np.int64)) for each in (WIDTH, INNER))
    for layer in range(layers):
        if mixes and layer:
            mean = sketch.add("ReduceMean", [held], (1, ROWS, WIDTH), axes=[0], keepdims=1)
            held = sketch.add("Sub", [held, mean], (items, ROWS, WIDTH))
        laid = sketch.add("Reshape", [held, flat], (items * ROWS, WIDTH))
        up = sketch.add("Gemm", [laid, sketch.weight(WIDTH, INNER), sketch.weight(INNER)], (items * ROWS, INNER))
        up = sketch.add("Reshape", [up, wide], (items, ROWS, INNER))
        up = sketch.add("Erf", [up], (items, ROWS, INNER))
        up = sketch.add("Sin", [up], (items, ROWS, INNER))
        up = sketch.add("Reshape", [up, flat_wide], (items * ROWS, INNER))
        down = sketch.add("Gemm", [up, sketch.weight(INNER, WIDTH), sketch.weight(WIDTH)], (items * ROWS, WIDTH))
        down = sketch.add("Reshape", [down, folded], (items, ROWS, WIDTH))
        held = sketch.add("Add", [down, held], (items, ROWS, WIDTH))
    return sketch.model([held])


def apart_of(case: Case, forbidden: frozenset[str] = frozenset()) -> ItemsApart | None:
    costs = [OpCost(op.name, 1_000_000) for op in case.view.graph.ops]
    return items_apart(case.view, case.timeline.order, costs, forbidden, case.may_fill)


def by_items(case: Case) -> SplitProposer:
    """What proposes splittings of the model whose items are apart."""
    apart = apart_of(case)
    assert apart is not None
    view, order = apart.cast.view, apart.cast.order
    memory = simulate(free_problem(view.graph), Schedule.of_ops(order)).memory_bytes[0]
    limits = SplitLimits(axis=SplitAxis(), seconds=60.0, may_fill=case.may_fill)
    timeline, needy = TensorTimeline(view, order, memory), NeedyTimeline(view, memory, order)
    return SplitProposer(timeline, needy, apart.cast.costs, limits, FIXED_BYTES, apart=apart)


@pytest.mark.parametrize("items", [2, 3])
def test_rows_that_are_laid_flat_are_cut_by_items_and_rows(items):
    case = flat_layers(items)
    budget = share(case, 28)
    assert proposer(case).propose(budget) == (), "by items or by rows alone too much is left"
    found = by_items(case).propose(budget)
    assert found
    for proposal in found:
        assert proposal.peak_bytes <= budget
        assert proposal.regions[0].tiles == items
        check_same(case, case.lean(split_model(proposal.view, proposal.order, proposal.parts)), proposal.form)


def test_what_is_told_of_it_are_the_whole_models_ops_and_their_tiles_are_known_by_it():
    case = flat_layers(2)
    proposal = by_items(case).propose(share(case, 35))[0]
    names = {op.name for op in case.view.graph.ops}
    assert all(set(region.ops) <= names for region in proposal.regions)
    assert all(set(region.exits) <= set(case.view.tensors) for region in proposal.regions)
    inner = [region for region in proposal.regions[1:] if any("Gemm" in name for name in region.ops)]
    assert inner
    assert len({region.ops for region in inner}) == len(inner), "what both items are cut by is told once"
    split = case.lean(split_model(proposal.view, proposal.order, proposal.parts))
    graph = to_graph(split, observe(split, case.feeds))
    profile = Profile("cpu", "", NOWHERE, tuple(OpCost(name, 0) for name in sorted(names)), 0, 0)
    owners = regions_of_ops(Splitting(proposal.regions, proposal.facts, "", profile, 0), graph)
    cut = next(n for n, region in enumerate(proposal.regions) if region is inner[0])
    wanted = {f"{inner[0].ops[0]}/tile_0/tile_0", f"{inner[0].ops[0]}/tile_1/tile_1"}
    assert {owners[at] for at, op in enumerate(graph.ops) if op.name in wanted} == {cut}


def test_behind_an_op_that_takes_all_items_at_once_items_are_cut_anew():
    case = flat_layers(2)
    name = next(op.name for op in case.view.graph.ops if op.op_type == "Add")
    number = next(at for at, op in enumerate(case.view.graph.ops) if op.name == name)
    apart = apart_of(case, frozenset({name}))
    assert apart is not None
    assert number not in apart.axis
    assert any(op > number for op in apart.axis)
    assert any(op.name == name for op in apart.cast.view.graph.ops)
    check_same(case, case.lean(apart.model), "items apart")


def test_items_that_meet_are_whole_there():
    case = flat_layers(2, mixes=True)
    apart = apart_of(case)
    assert apart is not None
    mean = next(at for at, op in enumerate(case.view.graph.ops) if op.op_type == "ReduceMean")
    assert mean not in apart.axis
    check_same(case, case.lean(apart.model), "items apart")


@pytest.mark.parametrize("items", [1, MOST_ITEMS + 1])
def test_of_one_item_and_of_very_many_nothing_is_put_apart(items):
    assert apart_of(flat_layers(items, layers=1)) is None


def test_costs_of_items_are_those_of_the_whole_and_what_is_copied():
    case = flat_layers(4)
    apart = apart_of(case)
    assert apart is not None
    whole = sum(cost.time_ns for cost in apart.whole.costs)
    assert whole <= sum(cost.time_ns for cost in apart.cast.costs) < 1.2 * whole
    names = {op.name for op in case.view.graph.ops}
    assert {apart.cast.stands_for(op) for op in range(len(apart.cast.view.graph.ops))} <= names
    assert apart.items == 4


def test_lengths_that_depend_on_values_still_do_where_items_are_apart():
    """What is found in a run says nothing of the next: written down as a size it would let its readers be cut."""
    sketch = Sketch(np.random.default_rng(0))
    held = sketch.input("x", (2, ROWS, WIDTH))
    found = sketch.add("NonZero", [held], (3, 2 * ROWS * WIDTH))
    places = sketch.add("Cast", [found], (3, 2 * ROWS * WIDTH), to=onnx.TensorProto.FLOAT)
    last = sketch.add("ReduceMax", [places], (3,), axes=[1], keepdims=0)
    for op_type in ("Erf", "Sin", "Erf"):
        held = sketch.add(op_type, [held], (2, ROWS, WIDTH))
    feeds = {"x": np.random.default_rng(1).standard_normal((2, ROWS, WIDTH)).astype(np.float32)}
    case = make_case(Sample(sketch.model([held, last]), feeds))
    before = {case.view.graph.ops[op].op_type for op in case.view.of_value_lengths}
    apart = apart_of(case)
    assert apart is not None
    view = apart.cast.view
    assert len(view.graph.ops) > len(case.view.graph.ops)
    whole = {view.graph.ops[op].op_type for op in view.of_value_lengths}
    assert whole == before == {"NonZero", "Cast", "ReduceMax"}
