"""Convolutions and pooling in slabs: odd sizes, strides, dilations, padding on one side, groups, batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from remat_cli.splitting.rules.table import slice_op
from remat_cli.splitting.tiles.op_view import OpView, Slab
from tests.splitting.sliced_op import NCHWC, OneOp, block_size, check_slices, compare, run, slabs_along, view_of

CONTRIB = "com.microsoft"


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def with_zeros(*shape: int) -> np.ndarray:
    """Values among which both zeros are common."""
    drawn = np.random.default_rng(1).integers(-2, 3, shape).astype(np.float32)
    return np.where(np.random.default_rng(2).random(shape) < 0.3, np.float32(-0.0), drawn)


def some_slabs(axis: int, extent: int) -> list[Slab]:
    bounds = {(0, extent), (0, 1), (extent - 1, extent), (extent // 3, 2 * extent // 3), (extent // 2, extent)}
    return [Slab(axis, start, stop) for start, stop in sorted(bounds) if start < stop]


def can_run(op: OneOp) -> bool:
    """Whether the runtime takes the op as a whole: some forms of `auto_pad` give negative padding, an error."""
    try:
        run(op)
    except Exception:  # the runtime's errors have no common class of their own
        return False
    return True


@st.composite
def windows(draw: st.DrawFn, dimensions: int, pads_below_kernel: bool) -> tuple[dict[str, list[int]], list[int]]:
    """Attributes of a windowed op, and sizes of an input on which it makes something."""
    columns: dict[str, list[int]] = {key: [] for key in ("kernel_shape", "strides", "dilations", "before", "after")}
    sizes = []
    for _ in range(dimensions):
        kernel, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 2))
        most = kernel - 1 if pads_below_kernel else 3
        columns["kernel_shape"].append(kernel)
        columns["strides"].append(draw(st.integers(1, 3)))
        columns["dilations"].append(dilation)
        columns["before"].append(draw(st.integers(0, most)))
        columns["after"].append(draw(st.integers(0, most)))
        sizes.append((kernel - 1) * dilation + draw(st.integers(1, 12)))
    columns["pads"] = columns.pop("before") + columns.pop("after")
    return columns, sizes


@settings(max_examples=60)
@given(st.data())
def test_convolutions_of_any_shape(data):
    dimensions = data.draw(st.integers(1, 3))
    attributes, sizes = data.draw(windows(dimensions, pads_below_kernel=False))
    group, per_group, out = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)))
    if data.draw(st.booleans()):
        del attributes["pads"]
        attributes |= {"auto_pad": data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))}
        attributes |= {"dilations": [1] * dimensions}
    x = values(data.draw(st.integers(1, 3)), group * per_group, *sizes)
    w = values(group * out, per_group, *attributes["kernel_shape"])
    inputs = (x, w, values(group * out)) if data.draw(st.booleans()) else (x, w)
    op = OneOp("Conv", inputs, {**attributes, "group": group}, weights=(1, 2))
    check_slices(op, data.draw(st.sampled_from([0, *range(2, dimensions + 2)])))


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])
def test_usual_convolutions_are_never_refused(auto_pad):
    attributes: dict[str, Any] = {"strides": [2, 2], "auto_pad": auto_pad}
    if auto_pad == "NOTSET":
        attributes |= {"pads": [1, 1, 1, 1]}
    op = OneOp("Conv", (values(3, 5, 14, 13), values(6, 5, 3, 3), values(6)), attributes, weights=(1, 2))
    for axis in (0, 2, 3):
        assert check_slices(op, axis).all_exact


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("stride", "is_sliced"), [(2, True), (4, False)])
def test_strides_beyond_the_window_where_the_runtime_pads(auto_pad, stride, is_sliced):
    attributes = {"kernel_shape": [1, 2], "strides": [stride, 1], "auto_pad": auto_pad}
    ops = [OneOp("Conv", (values(2, 3, 16, 12), values(4, 3, 1, 2)), attributes, weights=(1,))]
    deep = {"kernel_shape": [1, 2, 2], "strides": [stride, 1, 1], "auto_pad": auto_pad}
    ops += [OneOp("AveragePool", (values(2, 3, 16, 9, 8),), deep)]
    for op in ops:
        assert check_slices(op, 0).all_exact
        outcome = check_slices(op, 2)
        assert outcome.all_exact if is_sliced else outcome.all_refused


@settings(max_examples=60)
@given(st.data())
def test_blocked_convolutions_of_any_shape(data):
    block = block_size()
    attributes, sizes = data.draw(windows(2, pads_below_kernel=False))
    group = data.draw(st.integers(1, 2))
    channels, out = group * block * data.draw(st.integers(1, 2)), group * block * data.draw(st.integers(1, 3))
    if group == 1 and data.draw(st.booleans()):
        channels = 3
    x, w = values(2, channels, *sizes), values(out, channels // group, *attributes["kernel_shape"])
    attributes |= {"group": group, "activation": "Relu"}
    op = OneOp("Conv", (x, w, values(out)), attributes, weights=(1, 2), domain=NCHWC, opset=1)
    axis = data.draw(st.sampled_from([0, 2, 3]))
    outcome = check_slices(op, axis)
    is_padded_point = attributes["kernel_shape"] == [1, 1] and any(attributes["pads"])
    assert outcome.all_refused or not (is_padded_point and axis)


@pytest.mark.parametrize("axis", [0, 2, 3])
def test_blocked_depthwise_convolution_with_a_sum(axis):
    block = block_size()
    channels = 2 * block
    inputs = (values(2, channels, 13, 11), values(channels, 1, 3, 3), values(channels), values(2, channels, 7, 6))
    attributes = {"group": channels, "pads": [1, 1, 1, 1], "strides": [2, 2], "activation": "Relu"}
    op = OneOp("Conv", inputs, attributes, weights=(1, 2), domain=NCHWC, opset=1)
    assert check_slices(op, axis).all_exact
    assert check_slices(op, axis, threads=2).all_exact


@pytest.mark.parametrize("axis", [0, 2, 3])
def test_fused_convolution_with_a_sum(axis):
    inputs = (values(2, 5, 13, 11), values(7, 5, 3, 3), values(7), values(2, 7, 13, 11))
    attributes = {"pads": [1, 1, 1, 1], "activation": "Relu"}
    op = OneOp("FusedConv", inputs, attributes, weights=(1, 2), domain=CONTRIB, opset=1)
    assert check_slices(op, axis).all_exact


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("channels", "kernel"), [(64, 3), (512, 1)])
def test_long_sums_are_cut_only_into_many_positions(channels, kernel, threads):
    pad = kernel // 2
    inputs = (values(1, channels, 96, 40), values(6, channels, kernel, kernel))
    op = OneOp("Conv", inputs, {"pads": [pad] * 4}, weights=(1,))
    few = [Slab(2, 0, 1), Slab(2, 30, 31), Slab(2, 95, 96)]
    many = [Slab(2, 0, 40), Slab(2, 31, 70), Slab(2, 45, 96)]
    assert check_slices(op, 2, few, threads).all_refused
    assert check_slices(op, 2, many, threads).all_exact


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("filters", "channels", "size", "kernel"), [(64, 64, 8, 3), (64, 256, 7, 1), (16, 128, 14, 5), (17, 33, 9, 3)]
)
def test_several_images_are_cut_out_of_a_batch_however_long_sums_are(filters, channels, size, kernel, threads):
    """Threads take whole images where there are several, and share one that is alone."""
    picture, weights = values(6, channels, size, size), values(filters, channels, kernel, kernel)
    pads = {"pads": [kernel // 2] * 4}
    several = [Slab(0, 0, 2), Slab(0, 1, 3), Slab(0, 2, 6), Slab(0, 0, 5)]
    for constants in ((), (1,)):
        op = OneOp("Conv", (picture, weights), pads, constants)
        assert check_slices(op, 0, several, threads=threads).all_exact
        assert check_slices(op, 0, [Slab(0, 0, 1), Slab(0, 3, 4)], threads=threads).all_refused


@settings(max_examples=40)
@given(st.data())
def test_long_sums_have_the_bits_of_the_whole_wherever_threads_share_them_out_alike(data):
    """Slabs of a few rows, which a bound for all numbers of threads would refuse."""
    threads, kernel = data.draw(st.sampled_from([1, 2, 4])), data.draw(st.sampled_from([1, 3]))
    channels = data.draw(st.sampled_from([130, 256, 300] if kernel == 1 else [15, 32, 64]))
    picture = values(
        data.draw(st.integers(1, 2)), channels, data.draw(st.integers(4, 40)), data.draw(st.integers(3, 60))
    )
    weights = values(data.draw(st.sampled_from([8, 17, 64, 100])), channels, kernel, kernel)
    op = OneOp("Conv", (picture, weights), {"pads": [kernel // 2] * 4}, weights=(1,))
    whole = run(op, threads)
    view = replace(view_of(op, whole), threads=threads, own_threads=threads)
    axis = data.draw(st.sampled_from([0, 2, 3]))
    found = [(slab, slice_op(view, slab)) for slab in slabs_along(axis, whole[0].shape[axis])]
    compare(op, whole, [(slab, cut) for slab, cut in found if cut is not None], threads)


def test_rows_that_two_threads_share_evenly_are_cut_however_few():
    """160 positions are 80 for each of two threads, and 144 are 80 and 64: only those of more than 64 add up alike."""
    op = OneOp("Conv", (values(1, 256, 40, 40), values(64, 256, 1, 1)), weights=(1,))
    whole = run(op, 2)
    view = replace(view_of(op, whole), threads=2, own_threads=2)
    slabs = [Slab(2, 0, 4), Slab(2, 33, 37), Slab(2, 0, 3)]
    found = [(slab, slice_op(view, slab)) for slab in slabs]
    assert [cut is not None for _, cut in found] == [True, True, False]
    compare(op, whole, [(slab, cut) for slab, cut in found if cut is not None], 2)


def test_frames_of_a_sound_are_cut_out_of_a_batch():
    """A transform of few positions and long sums, as detectors of speech begin."""
    frames, waves = values(24, 1, 832), values(258, 1, 256)
    op = OneOp("Conv", (frames, waves), {"strides": [128]}, (1,))
    assert check_slices(op, 0, [Slab(0, 0, 2), Slab(0, 5, 24)], threads=2).all_exact


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize(("filters", "channels", "size"), [(8, 3, 32), (8, 8, 16), (70, 4, 8)])
def test_images_as_groups_are_cut_out_of_a_weight_gradient_two_at_a_time(filters, channels, size, threads):
    batch = 6
    pictures, gradients = values(1, batch, channels, size, size), values(batch * filters, 1, 1, size, size)
    op = OneOp("Conv", (pictures, gradients), {"pads": [0, 1, 1] * 2, "group": batch})
    several = [Slab(1, first * filters, stop * filters) for first, stop in ((0, 2), (1, 4), (2, 6))]
    assert check_slices(op, 1, several, threads=threads).all_exact
    assert check_slices(op, 1, [Slab(1, 1, 2 * filters)], threads=threads).all_refused
    if size * size > 128:  # terms of one run
        assert check_slices(op, 1, [Slab(1, 0, filters)], threads=threads).all_refused


def test_a_product_that_is_not_single_precision_is_refused():
    inputs = (values(1, 3, 8, 8).astype(np.float64), values(4, 3, 3, 3).astype(np.float64))
    view = view_of(OneOp("Conv", inputs, weights=(1,)), [np.zeros((1, 4, 6, 6))])  # has no kernel: cannot be run
    assert slice_op(view, Slab(2, 0, 3)) is None


@pytest.mark.parametrize("size", [8, 31])
def test_large_depthwise_kernels_with_several_results_are_refused(size):
    inputs = (values(1, 8, 64, size), values(16, 1, 7, 7))
    attributes = {"pads": [3] * 4, "group": 8, "strides": [2, 2]}
    assert check_slices(OneOp("Conv", inputs, attributes, weights=(1,)), 2).all_refused


@settings(max_examples=120)
@given(st.data())
def test_pooling_of_any_shape(data):
    kind = data.draw(st.sampled_from(["MaxPool", "AveragePool", "LpPool"]))
    dimensions = data.draw(st.integers(1, 3))
    attributes, sizes = data.draw(windows(dimensions, pads_below_kernel=True))
    opset = data.draw(st.sampled_from([11, 18, 19, 22] if kind != "LpPool" else [18, 22]))
    attributes |= {"ceil_mode": data.draw(st.integers(0, 1))}
    if kind == "AveragePool":
        attributes |= {"count_include_pad": data.draw(st.integers(0, 1))}
        if opset < 19:
            del attributes["dilations"]
    if data.draw(st.integers(0, 3)) == 0:
        del attributes["pads"]
        attributes |= {"auto_pad": data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))}
    op = OneOp(kind, (with_zeros(2, 2, *sizes),), attributes, opset=opset)
    assume(can_run(op))
    check_slices(op, data.draw(st.sampled_from([0, *range(2, dimensions + 2)])))


@settings(max_examples=60)
@given(st.data())
def test_blocked_pooling_of_any_shape(data):
    kind = data.draw(st.sampled_from(["MaxPool", "AveragePool"]))
    attributes, sizes = data.draw(windows(2, pads_below_kernel=True))
    attributes |= {"ceil_mode": data.draw(st.integers(0, 1))}
    if kind == "AveragePool":
        attributes |= {"count_include_pad": data.draw(st.integers(0, 1))}
    if kind == "AveragePool" or data.draw(st.booleans()):
        attributes |= {"dilations": [1, 1]}
    x = with_zeros(2, 2 * block_size(), *sizes)
    check_slices(OneOp(kind, (x,), attributes, domain=NCHWC, opset=1), data.draw(st.sampled_from([0, 2, 3])))


@pytest.mark.parametrize("opset", [11, 19, 22])
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_usual_pooling_is_never_refused(kind, opset):
    for ceil in (0, 1):
        attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": ceil}
        op = OneOp(kind, (values(2, 3, 14, 12),), attributes, opset=opset)
        assert check_slices(op, 0).all_exact
        assert check_slices(op, 2).all_exact
        assert check_slices(op, 3).all_exact == (kind == "AveragePool")


def test_pooling_with_indices_is_refused():
    op = OneOp("MaxPool", (values(1, 2, 8, 8),), {"kernel_shape": [2, 2]}, outputs=(True, True))
    assert check_slices(op, 2).all_refused


@pytest.mark.parametrize(("divisor", "axis", "is_cut"), [(63, 0, True), (252, 0, True), (63, 1, False), (10, 0, False)])
def test_pooling_whose_indices_are_read_as_places_in_an_image(divisor, axis, is_cut):
    image = values(6, 4, 9, 7)
    nodes = [
        helper.make_node("MaxPool", ["x"], ["y", "i"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Mod", ["i", "n"], ["place"], name="mod"),
    ]
    ends = [helper.make_tensor_value_info("x", 1, image.shape)]
    outputs = [helper.make_tensor_value_info("y", 1, None), helper.make_tensor_value_info("place", 7, None)]
    number = numpy_helper.from_array(np.array(divisor, np.int64), "n")
    graph = helper.make_graph(nodes, "g", ends, outputs, [number])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    node = next(iter(ir.from_proto(model).graph))
    made = (6, 4, 4, 3)
    sliced = slice_op(OpView(node, (image.shape,), (made, made), (False,), 21), Slab(axis, 2, 4))
    assert (sliced is not None) is is_cut
    if is_cut:
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        free = onnx.ModelProto.FromString(model.SerializeToString())
        free.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
        part = ort.InferenceSession(free.SerializeToString(), providers=["CPUExecutionProvider"])
        whole, some = session.run(None, {"x": image}), part.run(None, {"x": image[2:4]})
        assert all(one[2:4].tobytes() == other.tobytes() for one, other in zip(whole, some, strict=True))


def test_both_zeros_survive_in_maxima():
    for kernel in (2, 3):
        op = OneOp("MaxPool", (with_zeros(2, 3, 11, 10),), {"kernel_shape": [kernel, kernel]})
        assert check_slices(op, 2).all_exact
        assert check_slices(op, 3).all_refused  # measured: differs


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_maxima_of_integers_have_one_zero(kind):
    x = np.random.default_rng(3).integers(-2 if kind is np.int8 else 0, 3, (2, 3, 11, 50)).astype(kind)
    op = OneOp("MaxPool", (x,), {"kernel_shape": [3, 3], "pads": [1] * 4, "dilations": [1, 2]})
    for axis in (0, 2, 3):
        assert check_slices(op, axis, threads=4).all_exact


def test_rows_too_wide_for_the_buffer_are_not_cut_across():
    op = OneOp("AveragePool", (values(1, 1, 5, 2060),), {"kernel_shape": [3, 3], "pads": [1] * 4}, opset=11)
    assert check_slices(op, 2).all_exact
    assert check_slices(op, 3, some_slabs(3, 2060)).all_refused


@pytest.mark.parametrize("kind", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("domain", ["", NCHWC])
def test_global_pooling_is_cut_along_the_batch_only(kind, domain):
    x = values(4, 2 * block_size(), 9, 7)
    op = OneOp(kind, (x,), domain=domain, opset=1 if domain else 21)
    assert check_slices(op, 0).all_exact
    assert check_slices(op, 2).all_refused


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_instance_normalisation_is_cut_along_batch_and_channels_as_far_as_lines_begin_alike(threads):
    op = OneOp("InstanceNormalization", (values(4, 3, 9, 7), values(3), values(3)), weights=(1, 2))
    assert check_slices(op, 0, threads=threads).all_exact
    assert check_slices(op, 1, [Slab(1, 1, 2)], threads).all_refused  # in the second item they begin elsewhere
    assert check_slices(op, 2).all_refused
    one = OneOp("InstanceNormalization", (values(1, 40, 9, 7), values(40), values(40)), weights=(1, 2))
    assert check_slices(one, 1, threads=threads).all_exact


@settings(max_examples=60)
@given(st.data())
def test_transposed_convolutions_of_any_shape(data):
    dimensions = data.draw(st.integers(1, 3))
    kernel = [data.draw(st.integers(1, 4)) for _ in range(dimensions)]
    strides = [data.draw(st.integers(1, 3)) for _ in range(dimensions)]
    dilations = [data.draw(st.integers(1, 2)) for _ in range(dimensions)]
    extra = [data.draw(st.integers(0, stride - 1)) for stride in strides]
    reach = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    pads = [data.draw(st.integers(0, r)) for r in reach] + [data.draw(st.integers(0, r)) for r in reach]
    sizes = [data.draw(st.integers(4, 9)) for _ in range(dimensions)]
    group = data.draw(st.integers(1, 2))
    sizes = [s + r * 2 for s, r in zip(sizes, reach, strict=True)]
    attributes = {"strides": strides, "dilations": dilations, "pads": pads, "output_padding": extra, "group": group}
    inputs = (values(2, 4, *sizes), values(4, data.draw(st.integers(1, 3)), *kernel))
    op = OneOp("ConvTranspose", inputs, attributes, weights=(1,))
    check_slices(op, data.draw(st.sampled_from([0, *range(2, dimensions + 2)])))


def test_usual_transposed_convolutions_are_never_refused():
    for kernel, pad, extra in ((2, 0, 0), (4, 1, 0), (3, 1, 1)):
        attributes = {"strides": [2, 2], "pads": [pad] * 4, "output_padding": [extra] * 2}
        inputs = (values(2, 6, 9, 7), values(6, 4, kernel, kernel), values(4))
        for axis in (0, 2, 3):
            assert check_slices(OneOp("ConvTranspose", inputs, attributes, weights=(1, 2)), axis).all_exact


@settings(max_examples=40)
@given(st.data())
def test_transposed_convolutions_whose_padding_the_runtime_chooses(data):
    mode = data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER"]))
    kernel, stride = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    attributes = {
        "strides": [stride, 1],
        "auto_pad": mode,
        "output_padding": [data.draw(st.integers(0, stride - 1)), 0],
    }
    op = OneOp("ConvTranspose", (values(2, 4, 9, 6), values(4, 3, kernel, 3)), attributes, weights=(1,))
    assert check_slices(op, 0).all_exact
    outcome = check_slices(op, 2)
    assert outcome.all_exact or kernel + attributes["output_padding"][0] < stride  # else nothing is cut off


def test_transposed_convolutions_to_a_wanted_size_are_cut_by_items():
    wanted = {"strides": [2, 2], "output_shape": [18, 12], "auto_pad": "SAME_UPPER"}
    op = OneOp("ConvTranspose", (values(4, 4, 9, 6), values(4, 3, 3, 3)), wanted, weights=(1,))
    assert check_slices(op, 0).all_exact
    assert check_slices(op, 2).all_refused


def test_transposed_convolution_with_long_sums_or_a_wanted_size():
    inputs = (values(1, 256, 12, 9), values(256, 4, 2, 2))
    assert check_slices(OneOp("ConvTranspose", inputs, {"strides": [2, 2]}, weights=(1,)), 2).all_refused
    inputs = (values(1, 8, 12, 9), values(8, 4, 2, 2))
    op = OneOp("ConvTranspose", inputs, {"strides": [2, 2], "output_shape": [23, 18]}, weights=(1,))
    assert check_slices(op, 2).all_refused
