"""Ops that treat each element by itself, in slabs: many values, both zeros, infinities and NaN among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.values.sizes import SizeFamily, SizeRange
from remat_cli.splitting.rules.record import ElementKind
from remat_cli.splitting.rules.table import RULES
from remat_cli.splitting.tiles.op_view import Slab
from tests.splitting.looped_model import LoopedModel
from tests.splitting.sliced_op import OneOp, check_slices

CONTRIB = "com.microsoft"
SIZES = (3, 5, 17, 7)  # no part of it is a whole number of packets

UNARY = [
    "Relu",
    "LeakyRelu",
    "HardSigmoid",
    "HardSwish",
    "Softsign",
    "Erf",
    "Sqrt",
    "Neg",
    "Abs",
    "Reciprocal",
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    "Tan",
    "Sinh",
    "Cosh",
    "Asinh",
    "Acosh",
    "Atanh",
    "IsNaN",
    "IsInf",
    "ThresholdedRelu",
    "Identity",
    "Clip",
    "Shrink",
    "Sigmoid",
    "Tanh",
    "Exp",
    "Gelu",
]
PACKETS = [op_type for (_, op_type), rule in RULES.items() if rule.elements is ElementKind.PACKETS]
BINARY = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "PRelu",
    "Sum",
    "Mean",
    "Equal",
    "Less",
    "Greater",
    "LessOrEqual",
    "GreaterOrEqual",
]


def values(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Small and large numbers, and in every ten elements a special one."""
    rng = np.random.default_rng(seed)
    drawn = np.asarray(rng.standard_normal(shape) * np.exp(rng.standard_normal(shape)))
    kind = rng.random(shape)
    for special, start in ((0.0, 0), (-0.0, 0.04), (np.inf, 0.08), (-np.inf, 0.09), (np.nan, 0.1)):
        drawn[(kind >= start) & (kind < start + (0.04 if special == 0 else 0.01))] = special
    return drawn.astype(dtype)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def exact_axes(op: OneOp, rank: int) -> list[int]:
    """Axes along which every slab is exact; along all others every slab is refused."""
    outcomes = [check_slices(op, axis) for axis in range(rank)]
    assert all(outcome.all_exact or outcome.all_refused for outcome in outcomes)
    return [axis for axis, outcome in enumerate(outcomes) if outcome.all_exact]


@pytest.mark.parametrize("op_type", UNARY)
def test_functions_of_one_element(op_type):
    assert exact_axes(OneOp(op_type, (values(*SIZES),)), 4) == [0, 1, 2, 3]


@pytest.mark.parametrize("op_type", ["Gelu", "FastGelu", "QuickGelu"])
def test_functions_of_the_runtime(op_type):
    assert exact_axes(OneOp(op_type, (values(*SIZES),), domain=CONTRIB, opset=1), 4) == [0, 1, 2, 3]


def test_functions_that_differ_at_the_end_of_doubles_are_refused():
    for op_type in ("Sigmoid", "Tanh", "Exp"):
        assert exact_axes(OneOp(op_type, (values(*SIZES, dtype=np.float64),)), 4) == []
    assert exact_axes(OneOp("Relu", (values(*SIZES, dtype=np.float64),)), 4) == [0, 1, 2, 3]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("op_type", PACKETS)
def test_functions_in_packets_are_cut_into_whole_packets(op_type, threads):
    x = values(1, 64, 96, 28)
    parts = [Slab(2, 0, 48), Slab(2, 33, 67), Slab(2, 60, 96), Slab(2, 50, 51)]
    assert check_slices(OneOp(op_type, (x,)), 2, parts, threads).all_exact
    few = check_slices(OneOp(op_type, (x[:, :7, :9],)), 2, threads=threads)
    assert few.all_exact  # fewer than a second thread is worth, for all of these
    assert check_slices(OneOp(op_type, (x[:, :63, :95, :27],)), 2, [Slab(2, 0, 48)], threads).all_refused


def test_a_whole_that_is_not_all_in_packets_is_refused():
    """8,192 elements of Elu are six shares of 1,366 for two threads, which are no whole packets."""
    x = values(2, 16, 8, 32)
    assert check_slices(OneOp("Elu", (x,)), 0, threads=1).all_exact
    assert check_slices(OneOp("Elu", (x,)), 0, threads=2).all_refused


@pytest.mark.parametrize("op_type", BINARY)
def test_functions_of_two_elements(op_type):
    x, y = values(*SIZES), values(*SIZES, seed=1)
    for other in (y, y[:1, :, :1, :1], y[0, :, :, :1], y[0, 0, 0], y[0, 0, 0, :1].reshape(())):
        assert exact_axes(OneOp(op_type, (x, other)), 4) == [0, 1, 2, 3]
    if op_type != "PRelu":
        assert exact_axes(OneOp(op_type, (x[:, :1], y[:1, :, :, :1])), 4) == [0, 1, 2, 3]


@settings(max_examples=60)
@given(st.data())
def test_broadcasts_of_any_shape(data):
    full = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    shapes = []
    for _ in range(3):
        kept = [extent if data.draw(st.booleans()) else 1 for extent in full]
        shapes.append(kept[data.draw(st.integers(0, len(full))) :])
    arrays = [values(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    op_type = data.draw(st.sampled_from(["Add", "Mul", "Sub", "Div", "Where", "Sum"]))
    if op_type == "Where":
        arrays[0] = np.asarray(arrays[0] > 0)
    op = OneOp(op_type, tuple(arrays if op_type in ("Where", "Sum") else arrays[:2]), weights=(1,))
    rank = max(array.ndim for array in op.inputs if array is not None)
    for axis in range(rank):
        outcome = check_slices(op, axis)
        assert outcome.all_exact or (op_type == "Where" and all(slab.extent == 1 for slab in outcome.refused))


def test_logic_and_choice():
    a, b = values(*SIZES) > 0, values(*SIZES, seed=1) > 0
    for op_type in ("And", "Or", "Xor"):
        assert exact_axes(OneOp(op_type, (a, b[:, :, :1])), 4) == [0, 1, 2, 3]
    assert exact_axes(OneOp("Not", (a,)), 4) == [0, 1, 2, 3]


def test_remainders():
    x, y = np.arange(105).reshape(3, 5, 7), np.arange(1, 8)
    assert exact_axes(OneOp("Mod", (x, y)), 3) == [0, 1, 2]
    floats = OneOp("Mod", (values(3, 5, 7), values(7, seed=1)), {"fmod": 1})
    assert exact_axes(floats, 3) == [0, 1, 2]


@pytest.mark.parametrize("op_type", ["Min", "Max"])
def test_extrema_with_at_most_one_source_of_zeros(op_type):
    x = values(*SIZES)
    six, zero = np.array(6, np.float32), np.array(0, np.float32)
    assert exact_axes(OneOp(op_type, (x, six), weights=(1,)), 4) == [0, 1, 2, 3]
    assert exact_axes(OneOp(op_type, (x, zero), weights=(1,)), 4) == []
    assert exact_axes(OneOp(op_type, (x, values(*SIZES, seed=1))), 4) == []
    assert exact_axes(OneOp(op_type, (np.arange(35).reshape(5, 7), np.arange(7))), 2) == [0, 1]


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, 1.7])
def test_powers(exponent):
    x = np.abs(values(*SIZES))
    op = OneOp("Pow", (x, np.array(exponent, np.float32)), weights=(1,))
    assert all(check_slices(op, axis).all_exact for axis in (0, 1, 2))
    assert all(slab.extent == 1 for slab in check_slices(op, 3).refused)
    assert exact_axes(OneOp("Pow", (x, np.full((1, 5, 1, 1), exponent, np.float32)), weights=(1,)), 4) == []


def test_powers_of_rows_with_one_element_are_refused():
    for axis in (0, 3):
        x = np.abs(numbers(*[17 if axis == i else 1 for i in range(4)]))
        outcome = check_slices(OneOp("Pow", (x, np.array([3], np.float32))), axis)
        assert outcome.exact
        assert all(slab.extent == 1 for slab in outcome.refused)


def test_clip_with_bounds_as_inputs():
    bounds = (np.array(-0.5, np.float32), np.array(6, np.float32))
    assert exact_axes(OneOp("Clip", (values(*SIZES), *bounds), weights=(1, 2)), 4) == [0, 1, 2, 3]
    assert exact_axes(OneOp("Clip", (values(*SIZES), None, bounds[1])), 4) == [0, 1, 2, 3]
    assert exact_axes(OneOp("Clip", (values(*SIZES),), {"min": 0.0, "max": 6.0}, opset=6), 4) == [0, 1, 2, 3]


def test_conversions():
    floats = values(*SIZES)
    for target in (1, 9, 10, 11):
        assert exact_axes(OneOp("Cast", (floats,), {"to": target}), 4) == [0, 1, 2, 3]
    for target in (2, 12, 13):
        assert exact_axes(OneOp("Cast", (floats,), {"to": target}), 4) == []
    for target in (2, 6, 7):
        assert exact_axes(OneOp("Cast", (np.arange(-300, 300).reshape(20, 30),), {"to": target}), 2) == [0, 1]


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("target", [6, 7])
def test_conversions_of_what_integers_cannot_hold(kind, target):
    """The logarithm of nought among them, of which T5 makes a position."""
    rng = np.random.default_rng(0)
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 3e9, -3e9, 1e30, -1e30, 2.0**31, 2.0**63, -(2.0**63), 0.9, -0.9])
    with np.errstate(over="ignore"):
        drawn = rng.standard_normal((37, 61)) * 10.0 ** rng.integers(-3, 20, (37, 61))
        mixed = np.where(rng.random((37, 61)) < 0.5, rng.choice(odd, (37, 61)), drawn).astype(kind)
    assert exact_axes(OneOp("Cast", (mixed,), {"to": target}), 2) == [0, 1]


def test_dropout_that_passes_its_input_on():
    x, ratio = values(*SIZES), np.array(0.5, np.float32)
    assert exact_axes(OneOp("Dropout", (x,)), 4) == [0, 1, 2, 3]
    assert exact_axes(OneOp("Dropout", (x, ratio, np.array(False)), weights=(1, 2)), 4) == [0, 1, 2, 3]
    assert exact_axes(OneOp("Dropout", (x,), outputs=(True, True)), 4) == []
    assert exact_axes(OneOp("Dropout", (x, ratio, np.array(False)), weights=(1,)), 4) == []


def test_biases_of_the_runtime():
    inputs = (values(3, 5, 16), values(16, seed=1))
    assert exact_axes(OneOp("FastGelu", inputs, weights=(1,), domain=CONTRIB, opset=1), 3) == [0, 1, 2]
    assert exact_axes(OneOp("BiasGelu", inputs, weights=(1,), domain=CONTRIB, opset=1), 3) == [0, 1, 2]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_quantisation(dtype):
    x = numbers(3, 5, 17, 7) * 3
    one = (np.array(0.05, np.float32), np.array(3, dtype))
    many = (np.linspace(0.01, 0.1, 5, dtype=np.float32), np.arange(5).astype(dtype))
    assert exact_axes(OneOp("QuantizeLinear", (x, *one), weights=(1, 2)), 4) == [0, 1, 2, 3]
    assert exact_axes(OneOp("QuantizeLinear", (x, *many), {"axis": 1}, weights=(1, 2)), 4) == [0, 2, 3]
    q = np.random.default_rng(0).integers(0, 100, (3, 5, 17, 7)).astype(dtype)
    assert exact_axes(OneOp("DequantizeLinear", (q, *one), weights=(1, 2)), 4) == [0, 1, 2, 3]
    assert exact_axes(OneOp("DequantizeLinear", (q, *many), {"axis": -3}, weights=(1, 2)), 4) == [0, 2, 3]
    blocks = np.full((3, 5, 17, 1), 0.1, np.float32)
    assert exact_axes(OneOp("DequantizeLinear", (q, blocks), {"axis": 3, "block_size": 7}, weights=(1,)), 4) == []


def test_batch_normalisation_along_all_axes():
    statistics = (*(numbers(5, seed=seed) for seed in (1, 2, 3)), np.abs(numbers(5, seed=4)))
    op = OneOp("BatchNormalization", (values(*SIZES), *statistics), weights=(1, 2, 3, 4), opset=15)
    assert exact_axes(op, 4) == [0, 1, 2, 3]
    flat = OneOp("BatchNormalization", (values(9, 5), *statistics), weights=(1, 2, 3, 4), opset=15)
    assert exact_axes(flat, 2) == [0, 1]


@pytest.mark.parametrize("threads", [1, 2])
def test_local_response_normalisation(threads):
    attributes = {"size": 5, "alpha": 1e-2, "beta": 0.75, "bias": 1.0}
    op = OneOp("LRN", (numbers(1, 96, 54, 54),), attributes, opset=13)
    parts = [Slab(2, 0, 9), Slab(2, 13, 27), Slab(2, 27, 54)]
    assert check_slices(op, 2, parts, threads).all_exact
    assert check_slices(op, 1, [Slab(1, 0, 48)], threads).all_refused
    assert check_slices(OneOp("LRN", (numbers(1, 5, 9, 7),), attributes, opset=13), 2).all_refused
    assert check_slices(OneOp("LRN", (numbers(2, 5, 4, 8),), attributes, opset=13), 2, threads=threads).all_exact


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("p", [1, 2])
def test_normalisation_of_lines(axis, p):
    op = OneOp("LpNormalization", (numbers(5, 9, 7, 6),), {"axis": axis, "p": p}, opset=1)
    assert exact_axes(op, 4) == [other for other in range(4) if other != axis % 4]


def bounded(*ops: tuple[str, float]) -> onnx.ModelProto:
    """Ops one after the other on one tensor, each with a number."""
    names = ["x", *(f"t{at}" for at in range(len(ops)))]
    nodes = [
        helper.make_node(op_type, [names[at], f"c{at}"], [names[at + 1]], name=f"{op_type}_{at}")
        for at, (op_type, _) in enumerate(ops)
    ]
    weights = [numpy_helper.from_array(np.float32(number), f"c{at}") for at, (_, number) in enumerate(ops)]
    shape = ["n", 7]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize(
    ("ops", "is_cut"),
    [
        ((("Add", 3.0), ("Max", 0.0), ("Min", 6.0)), True),
        ((("Add", 3.0), ("Min", 6.0), ("Max", 0.0)), True),
        ((("Sub", 0.5), ("Max", 0.0)), True),
        ((("Max", 0.0),), False),
        ((("Mul", 3.0), ("Max", 0.0)), False),
        ((("Add", 0.0), ("Max", 0.0)), False),
        ((("Add", 3.0), ("Max", -0.0)), False),
        ((("Add", 3.0), ("Mul", 3.0), ("Max", 0.0)), False),
    ],
)
def test_the_larger_of_a_zero_and_of_what_is_never_minus_zero_is_cut(ops, is_cut):
    view = LoopedModel(bounded(*ops), SizeFamily((SizeRange("n", 1, 40),))).sized.view
    (op,) = (at for at, each in enumerate(view.graph.ops) if each.op_type == "Max")
    assert (view.slice(op, Slab(0, 3, 9)) is not None) is is_cut


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_what_cancels_out_is_plus_zero_wherever_it_lies(threads):
    """Sums that cancel out, at all places: the larger of them and of zero has the same bits in any slab."""
    fed = np.full((40, 7), -3.0, np.float32)
    fed[::3] = np.float32(-0.0)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    model = bounded(("Add", 3.0), ("Min", 6.0), ("Max", 0.0))
    session = ort.InferenceSession(model.SerializeToString(), options)
    (whole,) = session.run(None, {"x": fed})
    for start in range(40):
        for stop in range(start + 1, 41):
            (part,) = session.run(None, {"x": fed[start:stop]})
            assert part.tobytes() == whole[start:stop].tobytes()
