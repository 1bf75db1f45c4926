"""Dropout taken apart: the bits of the whole op in each of several runs, and steps with it go by items."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.schedule.splits import SplitAxis
from remat_cli.core.values.profile import OpCost
from remat_cli.core.values.training import TrainOptions
from remat_cli.splitting.bands.band_search import BandSearch
from remat_cli.splitting.recast.dropouts import dropouts_apart
from remat_cli.splitting.tiles.search import SplitLimits
from tests.helpers import to_bytes
from tests.splitting.random_models import Sample
from tests.splitting.split_case import Case, make_case, run_default
from tests.splitting.test_items import case_of_step, loose, split_of
from tests.splitting.test_recast import NOTHING, as_it_is, kinds_of

SHAPE = (8, 6, 16)


def dropping(ratio: float, number: tuple[int, ...] | None = (), seed: int | None = 5) -> Case:
    """y and its mask from x, beside an input of numbers of this shape, if any."""
    attributes = {} if seed is None else {"seed": seed}
    node = helper.make_node("Dropout", ["x", "ratio", "is_training"], ["dropped", "mask"], "drop", **attributes)
    nodes = [node, helper.make_node("Neg", ["dropped"], ["y"], "negative")]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)]
    feeds = {"x": np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)}
    feeds["x"][0, 0, :4] = [np.inf, -np.inf, 0.0, -0.0]
    if number is not None:
        given.append(helper.make_tensor_value_info("rate", TensorProto.FLOAT, number))
        nodes.append(helper.make_node("Neg", ["rate"], ["used"], "use"))
        feeds["rate"] = np.full(number, np.nan, np.float32)
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, SHAPE)]
    made.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, SHAPE))
    if number is not None:
        made.append(helper.make_tensor_value_info("used", TensorProto.FLOAT, number))
    weights = [
        numpy_helper.from_array(np.float32(ratio), "ratio"),
        numpy_helper.from_array(np.array(True), "is_training"),
    ]
    graph = helper.make_graph(nodes, "drops", given, made, weights)
    opset = [helper.make_opsetid("", 21)]
    return make_case(Sample(helper.make_model(graph, opset_imports=opset, ir_version=10), feeds))


def runs(model, feeds, threads: int) -> list[bytes]:
    """All outputs of three runs of one session."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(to_bytes(model), options, providers=["CPUExecutionProvider"])
    return [each.tobytes() for _ in range(3) for each in session.run(None, feeds)]


@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("number", [(), (7,)])
def test_each_run_has_the_bits_of_the_whole_op(ratio, number):
    case = dropping(ratio, number)
    apart = dropouts_apart(as_it_is(case), NOTHING)
    assert {"Expand", "Cast", "Mul", "Div"} <= set(kinds_of(apart))
    for threads in (1, 2):
        assert runs(case.view.model, case.feeds, threads) == runs(apart.view.model, case.feeds, threads)


@pytest.mark.parametrize(("number", "seed", "forbidden"), [(None, 5, ()), ((), None, ()), ((), 5, ("drop",))])
def test_what_has_no_seed_or_number_or_is_forbidden_stays(number, seed, forbidden):
    cast = as_it_is(dropping(0.5, number, seed))
    assert dropouts_apart(cast, frozenset(forbidden)) == cast


def dropping_layers() -> onnx.ModelProto:
    """Four layers, each with a Dropout behind it, for eight sequences."""
    rng, width = np.random.default_rng(0), 32
    nodes, last = [], "x"
    weights = [numpy_helper.from_array(np.float32(0.2), "share"), numpy_helper.from_array(np.array(True), "training")]
    for layer in range(4):
        weight, bias = (rng.standard_normal(shape).astype(np.float32) / 8 for shape in ((width, width), (width,)))
        weights += [numpy_helper.from_array(weight, f"w{layer}"), numpy_helper.from_array(bias, f"b{layer}")]
        nodes.append(helper.make_node("MatMul", [last, f"w{layer}"], [f"m{layer}"], f"product{layer}"))
        nodes.append(helper.make_node("Add", [f"m{layer}", f"b{layer}"], [f"a{layer}"], f"sum{layer}"))
        nodes.append(helper.make_node("Relu", [f"a{layer}"], [f"r{layer}"], f"relu{layer}"))
        nodes.append(helper.make_node("Dropout", [f"r{layer}", "share", "training"], [f"d{layer}"], f"drop{layer}"))
        last = f"d{layer}"
    given, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (8, 64, width)) for name in ("x", last))
    graph = helper.make_graph(nodes, "layers", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_a_step_that_drops_goes_by_items():
    """Masks are drawn whole, and no item waits at them for the others."""
    case = loose(case_of_step(dropping_layers(), TrainOptions(loss="mse", batch=8)))
    costs = [OpCost(op.name, 1_000_000) for op in case.view.graph.ops]
    search = BandSearch(case.view, case.timeline.order, costs, SplitLimits(axis=SplitAxis()))
    most = int(0.45 * max(case.timeline.memory_bytes))
    search._by_items(most, float("inf"))
    found = search.smallest
    assert found is not None
    assert kinds_of(found.cast).count("Dropout") == 4
    assert found.cost.peak_bytes <= most
    split = split_of(case, found)
    for ours, theirs in zip(case.outputs[1], run_default(to_bytes(split), case.feeds), strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5 * max(1e-9, np.abs(ours).max()))
