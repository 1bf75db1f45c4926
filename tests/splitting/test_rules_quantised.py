"""Quantised ops in slabs: results half way between two roundings, zero points anywhere, channels first and last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from remat_cli.splitting.tiles.op_view import Slab
from tests.splitting.sliced_op import Array, OneOp, check_slices, run
from tests.splitting.test_rules_window import can_run, windows

CONTRIB = "com.microsoft"
THREADS = st.sampled_from((1, 2, 4, 8))
KINDS = st.sampled_from((np.uint8, np.int8))
SIDES = st.sampled_from((1, 2, 3, 7, 16, 33, 50))
AUTO_PADS = st.sampled_from(("SAME_UPPER", "SAME_LOWER", "VALID"))
ROUNDED_BY_HALVES = 2.0**-3


def numbers(kind: type, *shape: int) -> Array:
    info = np.iinfo(kind)
    return np.random.default_rng(sum(shape)).integers(info.min, info.max + 1, shape).astype(kind)


def small(kind: type, *shape: int) -> Array:
    """Weights whose sums are seldom out of range."""
    return np.random.default_rng(sum(shape)).integers(-3 if kind is np.int8 else 0, 4, shape).astype(kind)


def scale(value: float) -> Array:
    return np.array(value, np.float32)


def zero(kind: type, value: int = 3) -> Array:
    return np.array(value, kind)


def quantised(x: Array, scaled: float = ROUNDED_BY_HALVES, point: int = 3) -> tuple[Array, Array, Array]:
    """A tensor with scale and zero point."""
    return x, scale(scaled), zero(x.dtype.type, point)


def contrib(op_type: str, *inputs: Array | None, weights: tuple[int, ...] = (), **attributes: Any) -> OneOp:
    return OneOp(op_type, inputs, attributes, weights, CONTRIB, 1)


def image(kind: type, channels: int, sizes: list[int], is_last: bool) -> Array:
    return numbers(kind, 2, *sizes, channels) if is_last else numbers(kind, 2, channels, *sizes)


def spatial(dimensions: int, is_last: bool) -> range:
    return range(1, dimensions + 1) if is_last else range(2, dimensions + 2)


def convolution(x: Array, w: Array, domain: str, **attributes: Any) -> OneOp:
    """A QLinearConv with a scale per channel; about half of its sums lie half way between two results."""
    out, terms = len(w), int(np.prod(w.shape[1:]))
    scales = np.where(np.arange(out) % 2, scale(0.25), scale(0.125))
    points = np.zeros(out, w.dtype)
    result = scale(2.0 ** np.ceil(np.log2(4 * np.sqrt(terms))) / 64)
    bias = np.arange(out, dtype=np.int32) - 3
    inputs = (*quantised(x), w, scales, points, result, zero(x.dtype.type, 100), bias)
    return OneOp("QLinearConv", inputs, attributes, tuple(range(1, 9)), domain, 1 if domain else 21)


@settings(max_examples=60)
@given(st.data())
def test_quantised_convolutions_of_any_shape(data: st.DataObject) -> None:
    dimensions = data.draw(st.integers(1, 3))
    attributes, sizes = data.draw(windows(dimensions, pads_below_kernel=False))
    group, per_group, out = data.draw(st.tuples(st.sampled_from((1, 1, 2, 8)), SIDES, st.integers(1, 4)))
    if data.draw(st.booleans()):
        attributes |= {"auto_pad": data.draw(AUTO_PADS), "dilations": [1] * dimensions}
        del attributes["pads"]
    domain, is_last = data.draw(st.sampled_from((("", False), (CONTRIB, False), (CONTRIB, True))))
    extra = {"channels_last": int(is_last)} if domain else {}
    kind = data.draw(KINDS)
    w = small(np.int8 if kind is np.int8 else data.draw(KINDS), group * out, per_group, *attributes["kernel_shape"])
    x = image(kind, group * per_group, sizes, is_last)
    op = convolution(x, w, domain, group=group, **attributes, **extra)
    assume(can_run(op))
    check_slices(op, data.draw(st.sampled_from((0, *spatial(dimensions, is_last)))), threads=data.draw(THREADS))


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("channels", "group", "kernel"), [(16, 1, 3), (32, 32, 3), (24, 4, 3), (64, 1, 1)])
def test_usual_quantised_convolutions_are_never_refused(
    is_last: bool, auto_pad: str, channels: int, group: int, kernel: int
) -> None:
    attributes = {"auto_pad": auto_pad, "group": group, "channels_last": int(is_last), "strides": [2, 1]}
    if auto_pad == "NOTSET":
        attributes |= {"pads": [kernel // 2] * 4}
    x = image(np.uint8, channels, [15, 13], is_last)
    op = convolution(x, small(np.int8, channels, channels // group, kernel, kernel), CONTRIB, **attributes)
    for axis in (0, *spatial(2, is_last)):
        assert check_slices(op, axis, threads=2).all_exact
    assert check_slices(op, 3 if is_last else 1).all_refused


@pytest.mark.parametrize("threads", [1, 4])
def test_quantised_convolutions_whose_positions_are_shared_out_among_threads(threads: int) -> None:
    x, w = numbers(np.uint8, 1, 61, 47, 64), small(np.int8, 32, 64, 3, 3)
    op = convolution(x, w, CONTRIB, channels_last=1, pads=[2] * 4, dilations=[2, 2])
    assert check_slices(op, 1, threads=threads).all_exact
    assert check_slices(op, 2, threads=threads).all_exact


@settings(max_examples=25)
@given(st.data())
def test_convolutions_of_integers(data: st.DataObject) -> None:
    dimensions = data.draw(st.integers(1, 2))
    attributes, sizes = data.draw(windows(dimensions, pads_below_kernel=False))
    kind = data.draw(KINDS)
    w = numbers(np.int8 if kind is np.int8 else data.draw(KINDS), 6, 3, *attributes["kernel_shape"])
    points = (zero(kind), zero(w.dtype.type))[: data.draw(st.integers(0, 2))]
    op = OneOp("ConvInteger", (image(kind, 6, sizes, False), w, *points), {**attributes, "group": 2}, (1,))
    outcome = check_slices(op, data.draw(st.sampled_from((0, *spatial(dimensions, False)))), threads=data.draw(THREADS))
    assert outcome.exact


@settings(max_examples=60)
@given(st.data())
def test_quantised_pooling_of_any_shape(data: st.DataObject) -> None:
    op_type = data.draw(st.sampled_from(("NhwcMaxPool", "QLinearAveragePool")))
    is_maximum, dimensions = op_type == "NhwcMaxPool", data.draw(st.integers(1, 3))
    attributes, sizes = data.draw(windows(dimensions, pads_below_kernel=True))
    attributes |= {"ceil_mode": data.draw(st.integers(0, 1))}
    is_last = is_maximum or data.draw(st.booleans())
    if data.draw(st.booleans()):
        attributes |= {"auto_pad": data.draw(AUTO_PADS)}
        del attributes["pads"]
    rest: tuple[Array, ...] = ()
    x = image(data.draw(KINDS), data.draw(SIDES), sizes, is_last)
    if not is_maximum:
        del attributes["dilations"]
        attributes |= {"channels_last": int(is_last), "count_include_pad": data.draw(st.integers(0, 1))}
        rest = (*quantised(x)[1:], *quantised(x, ROUNDED_BY_HALVES / 2, 0)[1:])
    op = contrib(op_type, x, *rest, weights=tuple(range(1, 1 + len(rest))), **attributes)
    assume(can_run(op))
    check_slices(op, data.draw(st.sampled_from((0, *spatial(dimensions, is_last)))), threads=data.draw(THREADS))


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("ceil_mode", [0, 1])
def test_usual_quantised_pooling_is_never_refused(is_last: bool, ceil_mode: int) -> None:
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "ceil_mode": ceil_mode}
    x = image(np.uint8, 33, [14, 12], is_last)
    scales = (*quantised(x)[1:], *quantised(x)[1:])
    ops = [contrib("QLinearAveragePool", x, *scales, channels_last=int(is_last), **attributes)]
    ops += [contrib("NhwcMaxPool", x, **attributes)] if is_last else []
    for op in ops:
        for axis in (0, *spatial(2, is_last)):
            assert check_slices(op, axis, threads=2).all_exact
        assert check_slices(op, 3 if is_last else 1).all_refused


@pytest.mark.parametrize("is_last", [False, True])
def test_windows_that_are_all_of_the_slab_are_averaged_in_another_way(is_last: bool) -> None:
    x = image(np.uint8, 16, [9, 3], is_last)
    scales = (*quantised(x)[1:], *quantised(x)[1:])
    op = contrib("QLinearAveragePool", x, *scales, kernel_shape=[3, 3], channels_last=int(is_last))
    axis = spatial(2, is_last)[0]
    outcome = check_slices(op, axis)
    assert outcome.exact
    assert all(slab.extent == 1 for slab in outcome.refused)
    assert outcome.refused


@pytest.mark.parametrize("op_type", ["NhwcMaxPool", "QLinearAveragePool"])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_strides_beyond_the_window_are_not_cut_where_the_runtime_pads(op_type: str, auto_pad: str) -> None:
    x = image(np.uint8, 5, [18, 6], True)
    more = {} if op_type == "NhwcMaxPool" else {"channels_last": 1}
    scales = () if op_type == "NhwcMaxPool" else (*quantised(x)[1:], *quantised(x)[1:])
    op = contrib(op_type, x, *scales, kernel_shape=[1, 2], strides=[3, 1], auto_pad=auto_pad, **more)
    assert check_slices(op, 0).all_exact
    assert check_slices(op, 1).all_refused


@pytest.mark.parametrize("is_last", [False, True])
def test_global_averages_are_cut_along_the_batch_only(is_last: bool) -> None:
    x = numbers(np.int8, 5, 9, 7, 33)
    op = contrib("QLinearGlobalAveragePool", *quantised(x), *quantised(x)[1:], channels_last=int(is_last))
    assert check_slices(op, 0, threads=4).all_exact
    assert all(check_slices(op, axis, [Slab(axis, 0, 1)]).all_refused for axis in (1, 2, 3))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("has_one_scale", [False, True])
def test_quantised_joins_are_cut_along_other_axes(axis: int, has_one_scale: bool) -> None:
    shapes = [[6, 10, 9] for _ in range(3)]
    for extent, shape in enumerate(shapes):
        shape[axis] = extent + 4
    tensors = [quantised(numbers(np.uint8, *s), 0.1 + (0 if has_one_scale else len(s) + s[axis])) for s in shapes]
    op = contrib("QLinearConcat", scale(0.1), zero(np.uint8), *(part for three in tensors for part in three), axis=axis)
    for other in range(3):
        outcome = check_slices(op, other, threads=2)
        assert outcome.all_refused if other == axis % 3 else outcome.all_exact


@settings(max_examples=40)
@given(st.data())
def test_sums_and_products_of_any_shape(data: st.DataObject) -> None:
    shape = data.draw(st.lists(SIDES, min_size=1, max_size=3))
    other = [side if data.draw(st.booleans()) else 1 for side in shape][data.draw(st.integers(0, len(shape))) :]
    kind, tenths = data.draw(KINDS), st.integers(1, 30).map(lambda number: number / 100)
    pair = [quantised(numbers(kind, *sides), data.draw(tenths)) for sides in (shape, other)]
    if data.draw(st.booleans()):
        pair.reverse()
    for op_type, result in (("QLinearAdd", 0.2), ("QLinearMul", 2.0)):
        op = contrib(op_type, *pair[0], *pair[1], scale(result), zero(kind))
        for axis in range(len(shape)):
            outcome = check_slices(op, axis, threads=data.draw(THREADS))
            assert outcome.exact or shape[axis] > 1
            assert op_type == "QLinearAdd" or not outcome.refused


def test_a_sum_with_one_element_to_a_row_adds_in_another_order() -> None:
    every = np.arange(256, dtype=np.uint8)
    right, result = quantised(np.tile(every, (256, 1)), 0.02), (scale(0.2), zero(np.uint8))
    one_to_a_row, many_to_a_row = (
        contrib("QLinearAdd", *quantised(np.repeat(every, times).reshape(256, times), 0.08), *right, *result)
        for times in (1, 256)
    )
    differs = np.asarray(run(one_to_a_row)[0]) != np.asarray(run(many_to_a_row)[0])
    assert differs.any()
    for op in (one_to_a_row, many_to_a_row):
        assert check_slices(op, 0).all_exact
        outcome = check_slices(op, 1)
        assert outcome.exact
        assert {slab.extent for slab in outcome.refused} == {1}


@settings(max_examples=20)
@given(st.lists(SIDES, min_size=1, max_size=4), KINDS, st.booleans(), THREADS)
def test_functions_of_one_element(shape: list[int], kind: type, is_constant: bool, threads: int) -> None:
    x = numbers(kind, *shape)
    inputs, weights = (*quantised(x), *quantised(x, 0.07, 9)[1:]), (1, 2, 3, 4) if is_constant else ()
    for op_type, attributes in (("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.3})):
        for axis in range(len(shape)):
            assert check_slices(
                contrib(op_type, *inputs, weights=weights, **attributes), axis, threads=threads
            ).all_exact


@pytest.mark.parametrize(
    "shapes", [((6, 9, 7), (6, 9, 7), (6, 9, 7)), ((9, 1), (6, 1, 7), (6, 9, 1)), ((7,), (), (6, 9, 1))]
)
def test_quantised_choices(shapes: tuple[tuple[int, ...], ...]) -> None:
    condition, *parts = (numbers(np.uint8, *shape) for shape in shapes)
    inputs = (condition > 100, *quantised(parts[0], 0.1), *quantised(parts[1], 0.07, 9), scale(0.09), zero(np.uint8))
    for axis in range(3):
        assert check_slices(contrib("QLinearWhere", *inputs, weights=(2, 3, 5, 6, 7, 8)), axis, threads=2).all_exact


@settings(max_examples=20)
@given(st.tuples(SIDES, SIDES, SIDES), st.integers(-3, 2), st.sampled_from((11, 13)), KINDS, THREADS)
def test_quantised_softmax(shape: tuple[int, ...], axis: int, opset: int, kind: type, threads: int) -> None:
    inputs = (*quantised(numbers(kind, *shape), 0.05), scale(1 / 256), zero(kind, 0))
    line = range(axis % 3, 3 if opset < 13 else axis % 3 + 1)
    for cut in range(3):
        outcome = check_slices(contrib("QLinearSoftmax", *inputs, axis=axis, opset=opset), cut, threads=threads)
        assert outcome.all_refused if cut in line else outcome.all_exact


@settings(max_examples=40)
@given(st.data())
def test_quantised_products_by_rows(data: st.DataObject) -> None:
    rows, columns, depth = data.draw(SIDES), data.draw(SIDES), data.draw(st.sampled_from((3, 64, 300)))
    turned = data.draw(st.tuples(st.booleans(), st.booleans()))
    kind = data.draw(KINDS)
    left = numbers(kind, *((depth, rows) if turned[0] else (rows, depth)))
    right = small(
        np.int8 if kind is np.int8 else data.draw(KINDS), *((columns, depth) if turned[1] else (depth, columns))
    )
    bias = data.draw(st.sampled_from((None, (columns,), (1, columns), (rows, columns))))
    added = None if bias is None else numbers(np.int8, *bias).astype(np.int32)
    result = (scale(2.0 ** np.ceil(np.log2(np.sqrt(depth)))), zero(kind)) if data.draw(st.booleans()) else ()
    is_by_column = data.draw(st.booleans())
    scales = np.full(columns, 0.5, np.float32) if is_by_column else scale(0.5)
    points = np.full(columns, 1, right.dtype) if is_by_column else zero(right.dtype.type)
    attributes = {"transA": int(turned[0]), "transB": int(turned[1]), "alpha": 0.5}
    op = contrib("QGemm", *quantised(left), right, scales, points, added, *result, **attributes)
    assert check_slices(op, 0, threads=data.draw(THREADS)).all_exact
    assert check_slices(op, 1).all_refused


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("is_constant", [False, True])
def test_products_of_integers_that_give_floats(threads: int, is_constant: bool) -> None:
    left, right = numbers(np.uint8, 3, 65, 129), numbers(np.int8, 129, 39)
    scales = np.linspace(0.01, 0.02, 39, dtype=np.float32)
    inputs = (left, right, scale(0.013), scales, zero(np.uint8), np.full(39, 2, np.int8), scales - 1)
    op = contrib("MatMulIntegerToFloat", *inputs, weights=(1, 2, 3, 4, 5, 6) if is_constant else ())
    assert check_slices(op, 0, threads=threads).all_exact
    assert check_slices(op, 1, threads=threads).all_exact
    assert check_slices(op, 2).all_refused


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_quantised_attention_is_cut_along_the_batch(threads: int, unidirectional: int) -> None:
    x, w = numbers(np.uint8, 5, 33, 24), numbers(np.int8, 24, 96)
    bias, points = np.linspace(-1, 1, 96, dtype=np.float32), (zero(np.uint8, 128), zero(np.int8, 0))
    inputs = (x, w, bias, scale(0.02), scale(0.01), None, *points)
    op = contrib("QAttention", *inputs, num_heads=4, unidirectional=unidirectional)
    assert check_slices(op, 0, threads=threads).all_exact
    assert check_slices(op, 1).all_refused
    lengths = np.array([33, 20, 5, 33, 1], np.int32)
    for mask in (lengths, (np.arange(33) < lengths[:, None]).astype(np.int32)):
        assert check_slices(
            contrib("QAttention", *inputs[:5], mask, *points, num_heads=4), 0, threads=threads
        ).all_exact
    bounds = np.concatenate([lengths, lengths * 0])  # where each item ends, then where it begins
    assert check_slices(contrib("QAttention", *inputs[:5], bounds, *points, num_heads=4), 0).all_refused


@pytest.mark.parametrize("op_type", ["QuantizeLinear", "DequantizeLinear"])
@pytest.mark.parametrize("domain", ["", CONTRIB])
@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint16, np.int16])
def test_quantising_with_one_scale_or_one_per_channel(op_type: str, domain: str, kind: type) -> None:
    x = numbers(kind, 4, 9, 33)
    given = (x.astype(np.int32) / 20).astype(np.float32) if op_type == "QuantizeLinear" else x
    for scales in (scale(0.1), np.linspace(0.1, 0.2, 9, dtype=np.float32)):
        inputs = (given, scales, np.full(scales.shape, 3, kind))
        op = OneOp(op_type, inputs, {"axis": 1}, (1, 2), domain, 1 if domain else 21)
        for axis in range(3):
            outcome = check_slices(op, axis, threads=2)
            assert outcome.all_refused if axis == 1 and scales.ndim else outcome.all_exact


def test_what_is_quantised_by_the_range_of_all_its_elements_is_refused() -> None:
    x = np.linspace(-1, 3, 60, dtype=np.float32).reshape(6, 10)
    dynamic = OneOp("DynamicQuantizeLinear", (x,), outputs=(True, True, True))
    product = contrib("DynamicQuantizeMatMul", x, numbers(np.uint8, 10, 7), scale(0.1), zero(np.uint8))
    assert check_slices(dynamic, 0).all_refused
    assert check_slices(product, 0).all_refused
    weights = [numbers(np.int8, 1, 10, 32), numbers(np.int8, 1, 8, 32)]
    scales = (scale(0.01).reshape(1), zero(np.int8, 0).reshape(1)) * 2
    inputs = (np.tile(x[:, None], (1, 4, 1)), *weights, *(None,) * 5, *scales)
    network = contrib("DynamicQuantizeLSTM", *inputs, weights=(1, 2, 8, 9, 10, 11), hidden_size=8)
    assert all(check_slices(network, axis).all_refused for axis in range(4))
