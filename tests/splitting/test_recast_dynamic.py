"""Quantisation by the range of a whole tensor, taken apart: the same bits, and less memory than whole tensors."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnxruntime.quantization import QuantType

from bench.quantised_models import joiner
from remat_cli.core.schedule.splits import SplitAxis
from remat_cli.core.values.sizes import SizeFamily, SizeRange
from remat_cli.splitting.bands.again import waited_for_again
from remat_cli.splitting.bands.bands import BandRules, BandSize
from remat_cli.splitting.recast.dynamic import ranges_apart
from remat_cli.splitting.tiles.obstacle import is_cuttable
from tests.helpers import to_bytes
from tests.splitting.looped_model import LoopedModel
from tests.splitting.quantised_models import dynamic_int8, encoder, one_op, recogniser
from tests.splitting.random_models import Sample
from tests.splitting.split_case import Case, check_same, make_case, run_in
from tests.splitting.test_bands import check, search
from tests.splitting.test_looped_models import Build
from tests.splitting.test_recast import NOTHING, as_it_is, kinds_of

SIDES = st.sampled_from((1, 2, 3, 7, 16, 33, 50))
VALUES = ("normal", "positive", "negative", "zero", "constant", "tiny", "huge", "infinite")


def numbers(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """A tensor of some kind; what is read is its negative."""
    found = (rng.standard_normal(shape) * 10.0 ** rng.uniform(-4, 4)).astype(np.float32)
    if kind == "infinite":
        found.flat[rng.integers(found.size)] = rng.choice((np.inf, -np.inf))
        return found
    made = {
        "positive": np.abs(found),
        "negative": -np.abs(found),
        "zero": found * 0,
        "constant": np.full(shape, found.flat[0]),
        "tiny": found * np.float32(1e-40),
        "huge": np.clip(found, -1, 1) * np.float32(3e38),
    }
    return made.get(kind, found).astype(np.float32)


def check_apart(sample: Sample, threads: tuple[int, ...] = (1, 2, 4)) -> list[str]:
    """The kinds of ops of the model taken apart, which has the bits of the whole however many threads there are."""
    case = make_case(sample)
    apart = ranges_apart(as_it_is(case), 1, NOTHING)
    models = [to_bytes(each) for each in (case.view.model, apart.view.model)]
    for count in threads:
        for is_exact in (True, False):
            whole, parts = (run_in(data, case.feeds, count, is_exact) for data in models)
            assert [one.tobytes() for one in whole] == [other.tobytes() for other in parts], (count, is_exact)
    return kinds_of(apart)


@settings(max_examples=20)
@given(st.data())
def test_quantisation_by_a_range_taken_apart_has_the_same_bits(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    shape = tuple(data.draw(st.lists(SIDES, min_size=1, max_size=4)))
    x = numbers(data.draw(st.sampled_from(VALUES)), shape, rng)
    kinds = check_apart(one_op("DynamicQuantizeLinear", "", x, {}, ["given"]))
    assert kinds.count("ReduceMin") == kinds.count("ReduceMax") == kinds.count("QuantizeLinear") == 1


@settings(max_examples=20)
@given(st.data())
def test_products_by_a_range_taken_apart_have_the_same_bits(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    depth, columns = data.draw(st.sampled_from((3, 16, 64, 300))), data.draw(SIDES)
    kind = data.draw(st.sampled_from((np.int8, np.uint8)))
    info, each = np.iinfo(kind), columns if data.draw(st.booleans()) else 1
    scales, points = rng.random(each).astype(np.float32) / 100, rng.integers(info.min, info.max, each).astype(kind)
    weights = {"b": rng.integers(info.min, info.max + 1, (depth, columns)).astype(kind)}
    weights |= {"scale": scales if each > 1 else scales[0]}
    reads = ["given", "b", "scale"]
    if data.draw(st.booleans()):
        weights |= {"point": points if each > 1 else points[0]}
    if data.draw(st.booleans()):
        weights |= {"bias": rng.standard_normal(columns).astype(np.float32)}
    reads += [name if name in weights else "" for name in ("point", "bias")]
    while not reads[-1]:
        reads.pop()
    shape = (*data.draw(st.lists(SIDES, min_size=1, max_size=2)), depth)
    x = numbers(data.draw(st.sampled_from(VALUES)), shape, rng)
    kinds = check_apart(one_op("DynamicQuantizeMatMul", "com.microsoft", x, weights, reads))
    assert "MatMulIntegerToFloat" in kinds
    assert "DynamicQuantizeMatMul" not in kinds


@pytest.mark.parametrize("opset", [11, 13, 17, 18, 21])
def test_ends_are_found_as_each_opset_writes_it(opset):
    x = np.random.default_rng(opset).standard_normal((1, 20, 12)).astype(np.float32)
    sample = one_op("DynamicQuantizeLinear", "", x, {}, ["given"])
    sample.model.opset_import[0].version = opset
    assert "ReduceMin" in check_apart(sample)


@pytest.mark.parametrize(
    ("sample", "percent"),
    [
        (dynamic_int8(encoder()), 50),
        (dynamic_int8(encoder(), per_channel=True), 50),
    ],
)
def test_dynamic_int8_goes_in_bands(sample, percent):
    case = make_case(sample)
    assert all_cuttable(case)
    peak = max(case.timeline.memory_bytes)
    found = search(case, may_fill=case.may_fill).propose(peak * percent // 100, time.monotonic() + 60)
    assert found is not None
    assert found.cost.peak_bytes <= peak * percent // 100
    check(case, found)


@pytest.mark.parametrize(
    "sample",
    [
        dynamic_int8(recogniser()),
        dynamic_int8(recogniser(groups=4), per_channel=True, reduce_range=True),
        dynamic_int8(recogniser(height=24, width=80, opset=20), weight_type=QuantType.QUInt8),
    ],
)
def test_convolutions_of_integers_go_in_bands(sample):
    case = make_case(sample)
    assert all_cuttable(case)
    largest = max(tensor.size_bytes for tensor in case.view.graph.tensors)
    rules, size = BandRules(largest // 4, "rows", SplitAxis()), BandSize(largest // 6, largest // 6)
    found = search(case, may_fill=case.may_fill).banded(rules, size)
    assert found is not None
    assert found.cost.peak_bytes < 0.8 * max(case.timeline.memory_bytes)
    kinds = {found.cast.view.graph.ops[op].op_type for op in found.banding.group}
    assert {"ConvInteger", "ReduceMin", "ReduceMax", "QuantizeLinear", "Cast"} <= kinds
    check(case, found)


@pytest.mark.parametrize(("height", "width", "axis"), [(24, 80, 2), (80, 24, 3), (40, 50, 3)])
def test_ends_of_pictures_are_found_within_a_channel_which_takes_least_time(height, width, axis):
    """Over channels it takes ten times as long, and more, however many there are. Spectra go by columns."""
    case = make_case(dynamic_int8(recogniser(height=height, width=width, channels=96)))
    apart = ranges_apart(as_it_is(case), 1, NOTHING).view
    ends = [op for op, each in enumerate(apart.graph.ops) if each.op_type in ("ReduceMin", "ReduceMax")]
    shapes = [(apart.tensors[apart.reads[op][0]].shape, apart.tensors[apart.makes[op][0]].shape) for op in ends]
    pictures = [(read, made) for read, made in shapes if read[1] in (3, 96, 192)]
    assert len(pictures) == 8
    assert all(made == (*read[:axis], 1, *read[axis + 1 :]) for read, made in pictures)


def all_cuttable(case: Case) -> bool:
    dynamic = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul")
    return all(is_cuttable(case.view, op) for op, node in enumerate(case.view.nodes) if node.op_type in dynamic)


def test_what_is_small_forbidden_or_of_an_older_opset_stays_whole():
    case = make_case(one_op("DynamicQuantizeLinear", "", np.ones((4, 5), np.float32), {}, ["given"]))
    whole = as_it_is(case)
    assert ranges_apart(whole, 81, NOTHING) == whole
    assert ranges_apart(whole, 1, frozenset({"op"})) == whole
    apart = ranges_apart(whole, 1, NOTHING)
    assert {apart.stands_for(op) for op in apart.order} <= {op.name for op in case.view.graph.ops}
    check_same(case, apart.view.model, "apart")


def fed_forward(width: int = 12, inner: int = 96, is_fused: bool = True) -> LoopedModel:
    """Two products quantised by their ranges, for any length; what is between them is by far the largest."""
    build, rng = Build(), np.random.default_rng(width)
    value = "x"
    for rows, columns in ((width, inner), (inner, width)):
        matrix = build.weight(rng.integers(-127, 128, (rows, columns)), np.int8)
        scale, point = build.weight(rng.random(columns) / 100, np.float32), build.weight([0] * columns, np.int8)
        bias = build.normal(columns)
        if is_fused:
            value = build.op("DynamicQuantizeMatMul", value, matrix, scale, point, bias, domain="com.microsoft")
        else:
            build.nodes.append(
                helper.make_node("DynamicQuantizeLinear", [value], [f"{value}_{n}" for n in "qsz"], name=f"{value}_q")
            )
            reads = (f"{value}_q", matrix, f"{value}_s", scale, f"{value}_z", point, bias)
            value = build.op("MatMulIntegerToFloat", *reads, domain="com.microsoft")
        value = build.op("Relu", value)
    model = build.model([1, "seq", width], value)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return LoopedModel(model, SizeFamily((SizeRange("seq", 1, 300),)), 4 * 300 * inner)


@pytest.mark.parametrize("is_fused", [True, False])
def test_ranges_are_found_in_one_loop_and_used_in_another_that_makes_it_all_again(is_fused):
    found = fed_forward(is_fused=is_fused)
    assert len(found.regions) == 2
    kinds = [{found.sized.view.graph.ops[op].op_type for op in region.ops} for region in found.regions]
    assert all({"MatMulIntegerToFloat", "Relu"} <= each for each in kinds)
    assert kinds[0] - kinds[1] == {"ReduceMin", "ReduceMax"}
    assert "QuantizeLinear" in kinds[1] - kinds[0]
    found.check([{"seq": size} for size in (300, 1, 2, 33, 64, 65, 299)], 64)


def test_what_waits_for_all_of_a_tensor_gets_it_made_again():
    case = make_case(dynamic_int8(encoder(length=64)))
    apart = ranges_apart(as_it_is(case), 64 * 32 * 4 * 4, NOTHING)
    again = waited_for_again(apart, 1000)
    (made,) = (op for op in again.order if again.view.graph.ops[op].name == "Gelu/again")
    readers = again.view.readers[again.view.makes[made][0]]
    assert [again.view.graph.ops[reader].op_type for reader in readers] == ["QuantizeLinear"]
    check_same(case, again.view.model, "again")
    assert waited_for_again(as_it_is(case), 1) == as_it_is(case)


def test_a_scale_that_waits_for_bytes_is_held_and_not_found_again():
    """A product reads it too, behind what makes bytes with it; it is of few ops, all of which are large."""
    case = make_case(dynamic_int8(joiner(20, 30, 16, 8)))
    apart = ranges_apart(as_it_is(case), 20 * 30 * 16, NOTHING)
    kinds = kinds_of(waited_for_again(apart, 1000))
    assert (kinds.count("Tanh"), kinds.count("ReduceMin"), kinds.count("ReduceMax")) == (2, 1, 1)
