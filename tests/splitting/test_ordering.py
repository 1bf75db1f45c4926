"""Tiles are found again in the optimised split model, and a graph keeps its meaning in another order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.splitting.tiles.build import reordered, tile_order
from tests.helpers import free_problem, observe
from tests.splitting.random_models import image_models
from tests.splitting.split_case import cuttings, make_case, optimised


@settings(max_examples=8)
@given(st.data())
def test_the_order_of_tiles_is_found_again(data):
    case = make_case(data.draw(image_models()))
    cutting = data.draw(cuttings(case))
    split = None if cutting is None else case.split([cutting])
    if split is None:
        return
    after = optimised(split)
    graph = to_graph(after, observe(after, case.feeds))
    order = tile_order(split, graph)
    assert sorted(order) == list(range(len(graph.ops)))
    same = reordered(graph, order)  # checks that producers come first
    assert [op.name for op in same.ops] == [graph.ops[op].name for op in order]
    assert baseline(free_problem(same)).peak == simulate(free_problem(graph), Schedule.of_ops(order)).peak
