"""Convolutions by output channels: any shape, groups, on any number of threads; and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from remat_cli.splitting.tiles.op_view import Slab
from tests.splitting.sliced_op import Array, OneOp, Outcome, check_slices
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


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("sizes", [(200,), (16, 20, 20)])
def test_usual_convolutions_are_never_refused_by_channels(group: int, sizes: tuple[int, ...]) -> None:
    op = OneOp("Conv", (drawn(1, 8, *sizes), drawn(32, 8 // group, *[3] * len(sizes))), {"group": group}, weights=(1,))
    assert check_slices(op, 1, [Slab(1, 0, 8), Slab(1, 8, 32), Slab(1, 16, 24)]).all_exact


def test_convolutions_of_images_are_refused() -> None:
    """The runtime may lay out a slab in blocks."""
    op = OneOp("Conv", (drawn(1, 8, 20, 20), drawn(32, 8, 3, 3)), weights=(1,))
    assert check_channels(op).all_refused


def test_one_channel_alone_and_parts_of_groups_are_refused() -> None:
    conv = OneOp("Conv", (drawn(1, 8, 9), drawn(6, 8, 3)), weights=(1,))
    assert check_slices(conv, 1, [Slab(1, 0, 1), Slab(1, 5, 6)]).all_refused
    grouped = OneOp("Conv", (drawn(1, 8, 9), drawn(6, 4, 3)), {"group": 2}, weights=(1,))
    assert check_slices(grouped, 1, [Slab(1, 0, 2), Slab(1, 2, 4)]).all_refused
    spread = OneOp("ConvTranspose", (drawn(1, 8, 9, 9), drawn(8, 3, 2, 2)), {"group": 2}, weights=(1,))
    assert check_slices(spread, 1).all_refused


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "LpPool"])
def test_pools_by_channels(kind: str) -> None:
    op = OneOp(kind, (drawn(2, 5, 9, 8),), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]})
    assert check_channels(op).all_exact


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize(("channels", "size", "kernel", "stride"), [(32, 8, 8, 1), (16, 32, 16, 2), (64, 7, 7, 1)])
def test_depthwise_weight_gradients_are_cut_by_images(
    channels: int, size: int, kernel: int, stride: int, threads: int
) -> None:
    batch = 4
    inputs = drawn(1, batch * channels, size, size), drawn(batch * channels, 1, kernel, kernel)
    attributes = {"pads": [1] * 4, "dilations": [stride] * 2, "group": batch * channels}
    slabs = [Slab(1, image * channels, stop * channels) for image, stop in ((0, 1), (1, 3), (2, 4))]
    assert check_slices(OneOp("Conv", inputs, attributes), 1, slabs, threads).all_exact
