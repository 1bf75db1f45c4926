"""Recurrent networks that go both ways, one way after the other: the bits of the one op, and less taken at once."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from bench.quantised_models import listener
from remat_cli.core.values.profile import OpCost
from remat_cli.core.values.sizes import SizeFamily, SizeRange
from remat_cli.splitting.recast.directions import ways_apart
from tests.helpers import to_bytes
from tests.splitting.looped_model import LoopedModel
from tests.splitting.quantised_models import dynamic_int8
from tests.splitting.random_models import Sample
from tests.splitting.split_case import check_same, make_case, run_in
from tests.splitting.test_bands import search, split_of
from tests.splitting.test_recast import NOTHING, kinds_of
from tests.splitting.test_recast_grouped import with_workspace

CONTRIB, QUANTISED = "com.microsoft", "DynamicQuantizeLSTM"
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4, QUANTISED: 4}
STEPS, SIDES = st.sampled_from((1, 2, 7, 33, 90)), st.sampled_from((1, 3, 16, 40, 130))
ITEMS, THREADS = st.sampled_from((1, 2, 3, 4, 9)), st.sampled_from((1, 2, 4, 8))


def both_ways(op_type: str, shape: tuple[int, int, int], hidden: int, rng: np.random.Generator) -> Sample:
    """A network that goes both ways; whether it has a bias, states, a scale for each column is drawn."""
    steps, items, read = shape
    gates, kind = GATES[op_type] * hidden, rng.choice((np.int8, np.uint8))
    weights: dict[str, np.ndarray] = {}
    reads = ["x", "w", "r"]
    for name, depth in (("w", read), ("r", hidden)):
        if op_type == QUANTISED:
            info = np.iinfo(kind)
            weights[name] = rng.integers(info.min, info.max + 1, (2, depth, gates)).astype(kind)
        else:
            weights[name] = (rng.standard_normal((2, gates, depth)) / depth**0.5).astype(np.float32)
    optional = {"b": (2, 2 * gates), "lengths": None, "h": (2, items, hidden)}
    if GATES[op_type] == GATES["LSTM"]:
        optional |= {"c": (2, items, hidden), "p": (2, 3 * hidden)}
    for name, size in optional.items():
        is_given = size is not None and bool(rng.integers(2))
        reads.append(name if is_given else "")
        if is_given:
            weights[name] = (rng.standard_normal(size) * 0.5).astype(np.float32)
    if op_type == QUANTISED:
        each = (2, gates) if rng.integers(2) else (2,)
        for name, depth in (("w", read), ("r", hidden)):
            weights[f"{name}_scale"] = (rng.random(each) / depth**0.5 / 100).astype(np.float32)
            weights[f"{name}_point"] = np.full(each, 0 if kind is np.int8 else 128, kind)
            reads += [f"{name}_scale", f"{name}_point"]
    while not reads[-1]:
        reads.pop()
    domain = CONTRIB if op_type == QUANTISED else ""
    nodes = [
        helper.make_node("Neg", ["x"], ["given"], name="before"),
        helper.make_node(
            op_type, ["given", *reads[1:]], ["y"], "op", domain=domain, direction="bidirectional", hidden_size=hidden
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "both_ways",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (steps, 2, items, hidden))],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(CONTRIB, 1)]
    x = (rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 3)).astype(np.float32)
    return Sample(helper.make_model(graph, opset_imports=imports, ir_version=8), {"x": x})


@settings(max_examples=40)
@given(st.data())
def test_one_way_after_the_other_has_the_bits_of_both_at_once(data):
    op_type = data.draw(st.sampled_from(list(GATES)))
    shape, rng = data.draw(st.tuples(STEPS, ITEMS, SIDES)), np.random.default_rng(data.draw(st.integers(0, 999)))
    case = make_case(both_ways(op_type, shape, data.draw(SIDES), rng))
    apart = ways_apart(with_workspace(case, 1 << 20), 1 << 20, NOTHING)
    assert kinds_of(apart).count(op_type) == 2
    threads = data.draw(THREADS)
    for is_exact in (True, False):
        whole, parts = (run_in(to_bytes(each.view.model), case.feeds, threads, is_exact) for each in (case, apart))
        assert [one.tobytes() for one in whole] == [other.tobytes() for other in parts]


def test_the_way_back_takes_no_more_than_the_way_on():
    case = make_case(both_ways(QUANTISED, (20, 2, 16), 8, np.random.default_rng(0)))
    turned_bytes = 4 * 20 * 2 * (16 + 8)
    apart = ways_apart(with_workspace(case, turned_bytes + 1000), 1000, NOTHING)
    ways = {cost.name: cost.workspace_bytes for cost in apart.costs if cost.name.startswith("op/")}
    assert ways == {"op/forward": 500, "op/reverse": 500}
    directions = [node.attributes["direction"].as_string() for node in apart.view.nodes if node.op_type == QUANTISED]
    assert directions == ["forward", "forward"]


@pytest.mark.parametrize("least_bytes", [100, 101])
def test_what_takes_little_or_is_forbidden_stays_whole(least_bytes):
    case = make_case(both_ways("LSTM", (9, 1, 4), 8, np.random.default_rng(0)))
    cast = with_workspace(case, 100)
    is_taken = ways_apart(cast, least_bytes, NOTHING) != cast
    assert is_taken == (least_bytes == 100)
    assert ways_apart(cast, least_bytes, frozenset({"op"})) == cast


def test_bands_before_a_network_that_goes_both_ways_lie_along_time():
    """Convolutions of integers take as much for one item as for all, and what reads the result goes by items."""
    case = make_case(dynamic_int8(listener(3, 96, 8, 16)))
    looking = search(case, may_fill=case.may_fill)
    largest = max(tensor.size_bytes for tensor in case.view.graph.tensors)
    inside = {"ConvInteger": largest, QUANTISED: largest}
    looking.costs = [OpCost(op.name, 1_000_000, inside.get(op.op_type, 0)) for op in case.view.graph.ops]
    peak = max(case.timeline.memory_bytes) + largest
    found = looking.propose(peak // 2, time.monotonic() + 60)
    assert found is not None
    assert kinds_of(found.cast).count(QUANTISED) == 2
    view = found.cast.view
    along = {found.banding.axis[op] for op in found.banding.group if view.graph.ops[op].op_type == "ConvInteger"}
    assert along == {2}
    check_same(case, split_of(case, found), found.banding)


@pytest.mark.parametrize("op_type", ["LSTM", QUANTISED])
def test_states_with_names_that_nothing_reads_are_not_missed_where_sizes_are_open(op_type):
    sample = both_ways(op_type, (40, 2, 8), 4, np.random.default_rng(0))
    (network,) = (node for node in sample.model.graph.node if node.op_type == op_type)
    network.output.extend(["last", "cell"])
    for port in (*sample.model.graph.input, *sample.model.graph.output):
        port.type.tensor_type.shape.dim[0].dim_param = "steps"
    view = LoopedModel(sample.model, SizeFamily((SizeRange("steps", 2, 40),))).sized.view
    assert sum(op.op_type == op_type for op in view.graph.ops) == 2
