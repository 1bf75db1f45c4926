from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.splitting.sliced_op import Array, OneOp, check_slices

FEW = settings(deadline=None, max_examples=10, derandomize=True)
SHAPES = st.tuples(*[st.sampled_from((2, 3, 5, 17, 33, 64, 100))] * 3)
THREADS = st.sampled_from((1, 2, 4))
CONTRIB = "com.microsoft"


def noise(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def check_lines(op: OneOp, line: range, rank: int, threads: int = 1) -> None:
    for axis in range(rank):
        outcome = check_slices(op, axis, threads=threads)
        assert outcome.all_refused if axis in line else outcome.all_exact


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
@FEW
@given(SHAPES, st.integers(-3, 2), st.sampled_from((11, 13)), THREADS)
def test_softmax(op_type: str, shape: tuple[int, ...], axis: int, opset: int, threads: int) -> None:
    op = OneOp(op_type, (noise(*shape),), {"axis": axis}, opset=opset)
    check_lines(op, range(axis % 3, 3 if opset < 13 else axis % 3 + 1), 3, threads)


@FEW
@given(SHAPES, st.integers(-3, 2), THREADS)
def test_layer_normalisation(shape: tuple[int, ...], axis: int, threads: int) -> None:
    scale = noise(*shape[axis % 3 :])
    for op in (
        OneOp("LayerNormalization", (noise(*shape), scale, scale + 1), {"axis": axis}, (1, 2), opset=17),
        OneOp("RMSNormalization", (noise(*shape), scale), {"axis": axis}, (1,), opset=23),
    ):
        check_lines(op, range(axis % 3, 3), 3, threads)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_exponentials_in_double_precision_are_refused(op_type: str) -> None:
    assert check_slices(OneOp(op_type, (noise(33, 7, 16).astype(np.float64),)), 0).all_refused


@pytest.mark.parametrize("kind", [np.float16, np.float64])
@FEW
@given(SHAPES, THREADS)
def test_normalisation_in_other_precisions(kind: type, shape: tuple[int, ...], threads: int) -> None:
    x, scale = noise(*shape).astype(kind), noise(shape[-1]).astype(kind)
    for op in (
        OneOp("LayerNormalization", (x, scale, scale), {}, (1, 2), opset=17),
        OneOp("SimplifiedLayerNormalization", (x, scale), {}, (1,), opset=1),
        OneOp("RMSNormalization", (x, scale), {}, (1,), opset=23),
    ):
        check_lines(op, range(2, 3), 3, threads)


@FEW
@given(SHAPES, st.booleans(), THREADS)
def test_skip_layer_normalisation(shape: tuple[int, ...], is_whole: bool, threads: int) -> None:
    last = shape[-1]
    skip = noise(*shape) if is_whole else noise(1, *shape[1:])
    outputs = (True, False, False, True)
    plain = OneOp("SkipLayerNormalization", (noise(*shape), skip, noise(last), None, noise(last)), {}, (2, 4), CONTRIB)
    simple = OneOp("SkipSimplifiedLayerNormalization", (noise(*shape), skip, noise(last)), {}, (2,), CONTRIB)
    for op in (plain, simple):
        check_lines(OneOp(op.op_type, op.inputs, {}, op.weights, CONTRIB, 1, outputs), range(2, 3), 3, threads)


def test_layer_normalisation_whose_mean_is_read_is_cut_as_well() -> None:
    inputs = (noise(4, 5), noise(5))
    assert check_slices(OneOp("LayerNormalization", inputs, opset=17, outputs=(True, True)), 0).exact


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_running_sums_and_best(axis: int) -> None:
    value, line = noise(20, 7, 33), range(axis % 3, axis % 3 + 1)
    check_lines(OneOp("CumSum", (value, np.array([axis])), {"reverse": 1}, (1,)), line, 3, 2)
    check_lines(OneOp("TopK", (value, np.array([3])), {"axis": axis}, (1,), outputs=(True, True)), line, 3, 2)
    assert check_slices(OneOp("CumSum", (value, np.array([axis]))), 0).all_refused
