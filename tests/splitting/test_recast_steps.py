"""Recurrent networks in stretches of time: the bits of the one op, also where it quantises by the range of all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.schedule.splits import SplitAxis
from remat_cli.core.values.profile import OpCost
from remat_cli.splitting.recast.steps import comes_in_steps, steps_apart
from remat_cli.splitting.tiles.propose import SplitProposer
from remat_cli.splitting.tiles.search import SplitLimits
from tests.helpers import to_bytes
from tests.splitting.random_models import Sample
from tests.splitting.split_case import make_case, run_in
from tests.splitting.test_recast import NOTHING, kinds_of
from tests.splitting.test_recast_directions import CONTRIB, GATES, QUANTISED
from tests.splitting.test_recast_grouped import with_workspace

STEPS, READ = st.sampled_from((16, 33, 90)), st.sampled_from((2, 3, 16, 40, 130))
SIZES = st.sampled_from((1, 16, 40, 130, 256))


def network(op_type: str, shape: tuple[int, int, int], size: int, rng: np.random.Generator, **how: object) -> Sample:
    """A network; whether it has a bias, states, a scale for each column, reads only one sign is drawn."""
    steps, items, read = shape
    gates, kind = GATES[op_type] * size, rng.choice((np.int8, np.uint8))
    weights: dict[str, np.ndarray] = {}
    reads = ["given", "w", "r"]
    for name, depth in (("w", read), ("r", size)):
        if op_type == QUANTISED:
            info = np.iinfo(kind)
            weights[name] = rng.integers(info.min, info.max + 1, (1, depth, gates)).astype(kind)
        else:
            weights[name] = (rng.standard_normal((1, gates, depth)) / depth**0.5).astype(np.float32)
    optional = {"b": (1, 2 * gates), "lengths": None, "h": (1, items, size)}
    if GATES[op_type] == GATES["LSTM"]:
        optional |= {"c": (1, items, size), "p": (1, 3 * size)}
    for name, each in optional.items():
        reads.append(name if each is not None and rng.integers(2) else "")
        if reads[-1]:
            weights[name] = (rng.standard_normal(each) * 0.5).astype(np.float32)
    if op_type == QUANTISED:
        apart = (1, gates) if rng.integers(2) else (1,)
        for name, depth in (("w", read), ("r", size)):
            weights[f"{name}_scale"] = (rng.random(apart) / depth**0.5 / 100).astype(np.float32)
            weights[f"{name}_point"] = np.full(apart, 0 if kind == np.int8 else rng.integers(256), kind)
        reads += ["w_scale", "w_point", "r_scale", "r_point"]
    made = ["y", "y_h", *(["y_c"] if GATES[op_type] == GATES["LSTM"] else [])]
    domain = CONTRIB if op_type == QUANTISED else ""
    nodes = [
        helper.make_node("Neg", ["x"], ["given"], name="before"),
        helper.make_node(op_type, reads, made, name="op", domain=domain, hidden_size=size, **how),
    ]
    shapes = ((steps, 1, items, size), (1, items, size), (1, items, size))
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, each)
            for name, each in zip(made, shapes, strict=False)
        ],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    imports = [helper.make_opsetid("", int(rng.choice((17, 18)))), helper.make_opsetid(CONTRIB, 1)]
    x = rng.standard_normal(shape) * 10 ** rng.uniform(-3, 2)
    x = np.abs(x) if rng.integers(4) == 0 else x
    return Sample(helper.make_model(graph, opset_imports=imports, ir_version=8), {"x": x.astype(np.float32)})


def check_apart(sample: Sample, stretches: int, threads: tuple[int, ...] = (1, 2, 4, 8)) -> None:
    """The network in so many stretches has the bits of the whole, however many threads there are."""
    case = make_case(sample)
    (op,) = (number for number, each in enumerate(case.view.graph.ops) if each.name == "op")
    assert comes_in_steps(case.view, op, stretches)
    apart = steps_apart(with_workspace(case, 16 * stretches - 16), 64, NOTHING)
    kind = case.view.graph.ops[op].op_type
    assert stretches // 2 < kinds_of(apart).count(kind) <= stretches
    models = [to_bytes(each) for each in (case.view.model, apart.view.model)]
    for count in threads:
        for is_exact in (True, False):
            whole, parts = (run_in(data, case.feeds, count, is_exact) for data in models)
            assert [one.tobytes() for one in whole] == [other.tobytes() for other in parts], (count, is_exact)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), STEPS, READ, SIZES, st.integers(5, 16))
def test_a_network_that_quantises_what_it_reads_goes_in_stretches(seed, steps, read, size, stretches):
    check_apart(network(QUANTISED, (steps, 1, read), size, np.random.default_rng(seed)), stretches)


@pytest.mark.parametrize("items", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_threads_do_not_share_a_few_items_of_long_states(items, seed):
    check_apart(network(QUANTISED, (17, items, 24), 264, np.random.default_rng(seed)), 6)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(("LSTM", "GRU")), st.integers(0, 2**32 - 1), STEPS, st.integers(1, 4), READ, st.booleans())
def test_networks_of_floats_go_in_stretches(op_type, seed, steps, items, read, is_backwards):
    way = "reverse" if is_backwards else "forward"
    sample = network(op_type, (steps, items, read), 32, np.random.default_rng(seed), direction=way)
    check_apart(sample, 7, threads=(1, 2, 4))


@pytest.mark.parametrize("op_type", [QUANTISED, "LSTM"])
def test_stretches_alone_are_proposed(op_type):
    case = make_case(network(op_type, (400, 1, 16), 40, np.random.default_rng(3)))
    costs = with_workspace(case, 0).costs
    costs = tuple(OpCost(each.name, 1, 256_000 if each.name == "op" else 0) for each in costs)
    taken = [held + each.workspace_bytes for held, each in zip(case.timeline.memory_bytes, costs, strict=True)]
    timeline, limits = replace(case.timeline, memory_bytes=tuple(taken)), SplitLimits(axis=SplitAxis(), seconds=60)
    proposer = SplitProposer(timeline, replace(case.needy, needed_bytes=tuple(taken)), costs, limits, 0)
    found = proposer.propose(max(taken) * 3 // 4)[0]
    assert found.peak_bytes <= max(taken) * 3 // 4
    (region,) = found.regions
    assert (region.ops, region.exits, region.axes) == (("op",), ("y",), (0,))
    assert region.tiles == kinds_of(found).count(op_type)


@pytest.mark.parametrize(
    ("shape", "size", "how"),
    [
        ((16, 2, 8), 64, {}),  # threads share two items
        ((16, 4, 8), 300, {}),  # with one more they do
        ((16, 1, 1), 64, {}),  # both ends have no place
        ((16, 1, 8), 64, {"direction": "reverse"}),
    ],
)
def test_what_has_other_bits_in_stretches_stays_whole(shape, size, how):
    case = make_case(network(QUANTISED, shape, size, np.random.default_rng(0), **how))
    assert not any(comes_in_steps(case.view, op) for op in range(len(case.view.graph.ops)))
    cast = with_workspace(case, 1 << 20)
    assert steps_apart(cast, 1 << 20, NOTHING) == cast
