"""Convolutions by output channels: any shape, groups, blocked ones, on any number of threads; and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from remat_cli.splitting.op_view import Slab
from tests.splitting.sliced_op import NCHWC, Array, OneOp, Outcome, block_size, check_slices
from tests.splitting.test_rules_window import can_run, windows

THREADS = st.sampled_from((1, 2, 4, 8))
FEW = st.integers(1, 5)
CHANNELS = st.sampled_from((1, 2, 3, 8, 16, 33, 64))


def drawn(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def check_channels(op: OneOp, threads: int = 1) -> Outcome:
    return check_slices(op, 1, threads=threads)


@st.composite
def convolutions(draw: st.DrawFn) -> OneOp:
    dimensions = draw(st.integers(1, 3))
    attributes, sizes = draw(windows(dimensions, pads_below_kernel=False))
    group, each_in, each_out = draw(st.one_of(st.tuples(st.just(1), CHANNELS, CHANNELS), st.tuples(CHANNELS, FEW, FEW)))
    inputs = [drawn(draw(st.integers(1, 2)), group * each_in, *sizes)]
    inputs += [drawn(group * each_out, each_in, *attributes["kernel_shape"])]
    inputs += [drawn(group * each_out)] if draw(st.booleans()) else []
    return OneOp("Conv", tuple(inputs), {**attributes, "group": group}, weights=(1, 2))


@settings(max_examples=80)
@given(convolutions(), THREADS)
def test_convolutions_of_any_shape_by_channels(op: OneOp, threads: int) -> None:
    assume(can_run(op))
    check_channels(op, threads)


@pytest.mark.slow
@settings(max_examples=2000)
@given(convolutions(), THREADS)
def test_many_convolutions_of_any_shape_by_channels(op: OneOp, threads: int) -> None:
    assume(can_run(op))
    check_channels(op, threads)


@settings(max_examples=60)
@given(st.data())
def test_transposed_convolutions_of_any_shape_by_channels(data: st.DataObject) -> None:
    dimensions = data.draw(st.integers(1, 3))
    attributes, sizes = data.draw(windows(dimensions, pads_below_kernel=True))
    inputs, outputs = data.draw(CHANNELS), data.draw(CHANNELS)
    x, w = drawn(data.draw(st.integers(1, 2)), inputs, *sizes), drawn(inputs, outputs, *attributes["kernel_shape"])
    op = OneOp("ConvTranspose", (x, w, drawn(outputs)), attributes, weights=(1, 2))
    assume(can_run(op))
    check_channels(op, data.draw(THREADS))


@settings(max_examples=60)
@given(st.data())
def test_blocked_convolutions_of_any_shape_by_channels(data: st.DataObject) -> None:
    block = block_size()
    attributes, sizes = data.draw(windows(2, pads_below_kernel=False))
    group = data.draw(st.integers(1, 2))
    channels, out = group * block * data.draw(st.integers(1, 4)), group * block * data.draw(st.integers(1, 6))
    if group == 1 and data.draw(st.booleans()):
        channels = 3
    x, w = drawn(2, channels, *sizes), drawn(out, channels // group, *attributes["kernel_shape"])
    attributes |= {"group": group, "activation": "Relu"}
    op = OneOp("Conv", (x, w, drawn(out)), attributes, weights=(1, 2), domain=NCHWC, opset=1)
    edges = [(0, out // 2 // 16 * 16), (out // 2 // 16 * 16, out), (0, 16), (out // 16 * 16 - 16, out // 16 * 16)]
    slabs = [Slab(1, start, stop) for start, stop in edges if 0 <= start < stop <= out]
    outcome = check_slices(op, 1, slabs, data.draw(THREADS))
    assert outcome.all_exact or group > 1


@pytest.mark.parametrize("threads", [1, 2, 4, 8])
def test_blocked_depthwise_convolution_with_a_sum_by_channels(threads: int) -> None:
    channels = 48
    inputs = (drawn(2, channels, 13, 11), drawn(channels, 1, 3, 3), drawn(channels), drawn(2, channels, 7, 6))
    attributes = {"group": channels, "pads": [1, 1, 1, 1], "strides": [2, 2], "activation": "Relu"}
    op = OneOp("Conv", inputs, attributes, weights=(1, 2), domain=NCHWC, opset=1)
    assert check_slices(op, 1, [Slab(1, 0, 16), Slab(1, 16, 48), Slab(1, 32, 48)], threads).all_exact
    assert check_slices(op, 1, [Slab(1, 0, 5), Slab(1, 1, 16)], threads).all_refused


@pytest.mark.parametrize("group", [1, 4])
def test_usual_convolutions_are_never_refused_by_channels(group: int) -> None:
    w = drawn(32, 8 // group, 3, 3)
    fused: dict[str, Any] = {"pads": [1] * 4, "activation": "Relu", "group": group}
    inputs = (drawn(1, 8, 20, 20), w, drawn(32), drawn(1, 32, 20, 20))
    op = OneOp("FusedConv", inputs, fused, weights=(1, 2), domain="com.microsoft", opset=1)
    slabs = [Slab(1, 0, 8), Slab(1, 8, 32), Slab(1, 16, 24)]
    assert check_slices(op, 1, slabs).all_exact


def test_one_channel_alone_and_parts_of_groups_are_refused() -> None:
    conv = OneOp("Conv", (drawn(1, 8, 9, 9), drawn(6, 8, 3, 3)), weights=(1,))
    assert check_slices(conv, 1, [Slab(1, 0, 1), Slab(1, 5, 6)]).all_refused
    grouped = OneOp("Conv", (drawn(1, 8, 9, 9), drawn(6, 4, 3, 3)), {"group": 2}, weights=(1,))
    assert check_slices(grouped, 1, [Slab(1, 0, 2), Slab(1, 2, 4)]).all_refused
    spread = OneOp("ConvTranspose", (drawn(1, 8, 9, 9), drawn(8, 3, 2, 2)), {"group": 2}, weights=(1,))
    assert check_slices(spread, 1).all_refused


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "LpPool"])
def test_pools_by_channels(kind: str) -> None:
    op = OneOp(kind, (drawn(2, 5, 9, 8),), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]})
    assert check_channels(op).all_exact
