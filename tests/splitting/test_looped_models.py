"""Loops cut what tiles of one size cut: ops of many kinds over ranges of sizes, with the bits of the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.values.profile import OpCost, Profile, without_costs
from remat_cli.core.values.sizes import SizeBound, SizeFamily, SizeRange
from remat_cli.runtime.sessions._ort import pack_all
from remat_cli.runtime.sessions.feeds import GivenFeeds
from remat_cli.runtime.sessions.session import SessionSettings
from remat_cli.runtime.verify.family import see_at_sizes
from remat_cli.splitting.loops.loop_bits import Tiling, refusal
from remat_cli.splitting.loops.loop_estimate import LAUNCH_NS, LoopEstimate
from remat_cli.splitting.loops.loop_regions import find_loops
from remat_cli.splitting.loops.loops import looped as loops
from remat_cli.splitting.loops.tile_bytes import tile_bytes
from tests.helpers import NOWHERE, to_bytes
from tests.splitting.looped_model import LoopedModel, session_of

Nodes = list[onnx.NodeProto]
SMALL_VALUES = 1024  # bytes of shapes and bounds
RELU = helper.make_node("Relu", ["a"], ["b"])


class Build:
    """Nodes one after the other, each reading what the one before makes, and their weights."""

    def __init__(self) -> None:
        self.nodes: Nodes = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(0)

    def weight(self, array: Sequence[int] | np.ndarray, kind: type = np.int64) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array, kind), name))
        return name

    def normal(self, *shape: int) -> str:
        return self.weight(self._rng.standard_normal(shape) / 4, np.float32)

    def op(self, op_type: str, *reads: str, **attributes: object) -> str:
        made = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(reads), [made], name=f"{op_type}_{made}", **attributes))
        return made

    def conv(self, read: str, made: int, channels: int, kernel: int = 3, **attributes: object) -> str:
        attributes = {"pads": [kernel // 2] * 4} | attributes
        return self.op("Conv", read, self.normal(made, channels, kernel, kernel), **attributes)

    def model(self, dims: Sequence[str | int], last: str, opset: int = 17) -> onnx.ModelProto:
        self.nodes.append(helper.make_node("Identity", [last], ["y"], name="last"))
        ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)]
        outs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "g", ports, outs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


Make = Callable[[Build], str]
PICTURE = (1, 3, "h", "w")


def auto_padded(mode: str, stride: int) -> Make:
    """As tf2onnx and Paddle write it: a convolution and a pool that pad as they see fit."""

    def make(build: Build) -> str:
        made = build.op("Relu", build.conv("x", 8, 3))
        own = {"auto_pad": mode, "kernel_shape": [2, 2], "strides": [stride] * 2}
        beside = build.op("MaxPool", made, **own)
        made = build.op("Conv", made, build.normal(8, 8, 2, 2), **own)
        return build.conv(build.op("Concat", made, beside, axis=1), 4, 16)

    return make


def spread(kernel: int, stride: int, **attributes: object) -> Make:
    """The head of a detector: convolutions, and two that enlarge."""

    def make(build: Build) -> str:
        made = build.op("Relu", build.conv("x", 8, 3, strides=[2, 2]))
        own = {"strides": [stride] * 2, **attributes}
        made = build.op("ConvTranspose", made, build.normal(8, 8, kernel, kernel), **own)
        made = build.op("Relu", build.op("BatchNormalization", made, *(build.weight(np.ones(8), np.float32),) * 4))
        return build.op("Sigmoid", build.op("ConvTranspose", made, build.normal(8, 1, kernel, kernel), **own))

    return make


def resized(mode: str, coordinates: str, **attributes: object) -> Make:
    def make(build: Build) -> str:
        made = build.conv("x", 8, 3)
        half = build.op("MaxPool", made, kernel_shape=[2, 2], strides=[2, 2])
        own = {"mode": mode, "coordinate_transformation_mode": coordinates, **attributes}
        twice = build.op("Resize", half, "", build.weight([1, 1, 2, 2], np.float32), **own)
        return build.conv(build.op("Add", made, twice), 4, 8)

    return make


def resized_to_sizes(build: Build) -> str:
    """As torch writes `interpolate(x, size=y.shape[2:])`."""
    made = build.conv("x", 8, 3)
    half = build.op("MaxPool", made, kernel_shape=[2, 2], strides=[2, 2])
    rows = build.op("Slice", build.op("Shape", made), build.weight([2]), build.weight([4]))
    sizes = build.op(
        "Concat", build.op("Slice", build.op("Shape", half), build.weight([0]), build.weight([2])), rows, axis=0
    )
    own = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    twice = build.op("Resize", half, "", "", sizes, **own)
    return build.conv(build.op("Add", made, twice), 4, 8)


def pooled(op_type: str, **attributes: object) -> Make:
    def make(build: Build) -> str:
        made = build.op("Relu", build.conv("x", 8, 3))
        made = build.op(op_type, made, **({"kernel_shape": [3, 3], "strides": [2, 2]} | attributes))
        return build.conv(made, 4, 8)

    return make


def squeezed(build: Build) -> str:
    """Each channel is weighted by its mean: what makes it is whole for that, and all behind it is not."""
    made = build.conv(build.op("Relu", build.conv("x", 16, 3)), 16, 16)
    mean = build.op("Sigmoid", build.conv(build.op("GlobalAveragePool", made), 16, 16, 1))
    made = build.op("Add", build.op("Mul", made, mean), made)
    return build.conv(build.op("Relu", build.conv(made, 16, 16)), 4, 16)


def around(build: Build) -> str:
    """What windows look at is read once more behind all of them, whole: of it a tile has more rows than its own."""
    made = build.op("Relu", build.conv("x", 8, 3))
    inner = build.op("Relu", build.conv(made, 8, 8, 3))
    mean = build.op("ReduceMean", build.conv(inner, 8, 8), axes=[2, 3])
    return build.op("Mul", made, mean)


def halves(build: Build) -> str:
    """Of halves of the channels one is changed, and both are joined: the Split makes rows for the window of both."""
    made = build.op("Relu", build.conv("x", 8, 3))
    one, other = "half", "other"
    build.nodes.append(helper.make_node("Split", [made, build.weight([4, 4])], [one, other], name="split", axis=1))
    changed = build.op("Relu", build.conv(other, 4, 4))
    return build.conv(build.op("Concat", one, changed, axis=1), 4, 8)


def padded(mode: str) -> Make:
    """As keras and GANs write it: a Pad of its own before each convolution."""

    def make(build: Build) -> str:
        made = build.conv("x", 8, 3)
        pads = build.weight([0, 0, 1, 1, 0, 0, 1, 1])
        made = build.op("Relu", build.op("Pad", made, pads, mode=mode))
        return build.conv(made, 4, 8, pads=[0] * 4)

    return make


def blocked(op_type: str) -> Make:
    """Pixels into channels, or back, between convolutions."""

    def make(build: Build) -> str:
        made = build.op(op_type, build.conv("x", 16, 3), blocksize=2)
        return build.conv(made, 4, 64 if op_type == "SpaceToDepth" else 4)

    return make


def dilated(build: Build) -> str:
    made = build.op("Relu", build.conv("x", 8, 3, dilations=[2, 2], pads=[2] * 4))
    return build.conv(made, 4, 8, strides=[2, 2], dilations=[3, 3], pads=[3] * 4)


STEPS = SizeRange("h", 8, 96, 8), SizeRange("w", 8, 40, 8)


def cut_to_fit(build: Build) -> str:
    """A convolution that pads more than it needs, cut to the size of what it reads, as torch writes it."""
    made = build.op("Relu", build.conv("x", 8, 3))
    wide = build.op("Tanh", build.conv(made, 8, 8, pads=[2] * 4))
    for axis in (2, 3):
        length = build.op("Gather", build.op("Shape", made), build.weight([axis]))
        wide = build.op("Slice", wide, build.weight([0]), length, build.weight([axis]), build.weight([1]))
    return build.conv(build.op("Add", made, wide), 4, 8)


CASES: dict[str, tuple[Make, str]] = {
    **{
        f"{mode} {stride}": (auto_padded(mode, stride), "Conv")
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for stride in (1, 2)
    },
    "spread 2": (spread(2, 2), "ConvTranspose"),
    "spread 4": (spread(4, 4), "ConvTranspose"),
    "spread 4 by 2": (spread(4, 2, pads=[1] * 4), "ConvTranspose"),
    "spread 3 by 2": (spread(3, 2, pads=[1] * 4, output_padding=[1, 1]), "ConvTranspose"),
    "spread 3 by 1": (spread(3, 1, pads=[1] * 4), "ConvTranspose"),
    "spread 3 by 2 of its own": (spread(3, 2, auto_pad="SAME_UPPER"), "ConvTranspose"),
    "spread 4 by 2 of its own": (spread(4, 2, auto_pad="SAME_LOWER"), "ConvTranspose"),
    "spread dilated": (spread(2, 2, dilations=[2, 2]), "ConvTranspose"),
    "nearest asymmetric": (resized("nearest", "asymmetric", nearest_mode="floor"), "Resize"),
    "nearest half_pixel": (resized("nearest", "half_pixel"), "Resize"),
    "linear half_pixel": (resized("linear", "half_pixel"), "Resize"),
    "linear asymmetric": (resized("linear", "asymmetric"), "Resize"),
    "linear pytorch": (resized("linear", "pytorch_half_pixel"), "Resize"),
    "to sizes": (resized_to_sizes, "Resize"),
    "max ceil": (pooled("MaxPool", ceil_mode=1), "MaxPool"),
    "average ceil": (pooled("AveragePool", ceil_mode=1), "AveragePool"),
    "average padded": (pooled("AveragePool", pads=[1] * 4, count_include_pad=1), "AveragePool"),
    "squeezed": (squeezed, "Conv"),
    "around": (around, "Conv"),
    "halves": (halves, "Split"),
    "pad constant": (padded("constant"), "Pad"),
    "pad reflect": (padded("reflect"), "Pad"),
    "pad edge": (padded("edge"), "Pad"),
    "depth": (blocked("DepthToSpace"), "DepthToSpace"),
    "space": (blocked("SpaceToDepth"), "SpaceToDepth"),
    "dilated": (dilated, "Conv"),
    "cut to fit": (cut_to_fit, "Slice"),
}
SEQUENCE = [{"h": h, "w": w} for h, w in ((96, 40), (16, 8), (8, 8), (96, 40), (88, 24), (48, 16), (72, 40), (64, 32))]


@pytest.mark.parametrize("name", CASES)
def test_pictures_in_rows_have_the_bits_of_the_whole(name):
    make, wanted = CASES[name]
    build = Build()
    looped = LoopedModel(build.model(PICTURE, make(build)), SizeFamily(STEPS))
    assert wanted in looped.cut
    looped.check(SEQUENCE, rows=4)


def of_sound(build: Build) -> str:
    """Windows along frames, which are columns, and far apart along bins, of which there are always as many."""
    made = build.op("Relu", build.conv("x", 8, 3))
    wide = build.op("Conv", made, build.normal(8, 8, 5, 1), dilations=[3, 1], pads=[6, 0, 6, 0])
    made = build.op("Relu", build.op("Add", made, wide))
    return build.conv(made, 4, 8, 3, strides=[1, 2])


def test_pictures_of_a_sound_run_in_columns_with_the_bits_of_the_whole():
    build = Build()
    looped = LoopedModel(build.model((1, 3, 16, "n"), of_sound(build)), SizeFamily((SizeRange("n", 4, 90),)))
    assert {axis for region in looped.regions for axis in region.axes.values()} == {3}
    assert {"Conv", "Relu", "Add"} <= looped.cut
    looped.check([{"n": size} for size in (90, 4, 5, 90, 47, 16, 33, 90)], rows=6)


def of_pictures(build: Build) -> str:
    """A classifier: convolutions, a mean over each picture, and a product."""
    made = build.op("Relu", build.conv("x", 16, 3))
    made = build.op("Relu", build.conv(build.op("MaxPool", made, kernel_shape=[2, 2], strides=[2, 2]), 16, 16))
    made = build.op("Flatten", build.op("GlobalAveragePool", made))
    return build.op("Gemm", made, build.normal(16, 10))


def normalised(build: Build) -> str:
    made = build.conv("x", 16, 3)
    ones = build.weight(np.ones(16), np.float32)
    return build.conv(build.op("Relu", build.op("InstanceNormalization", made, ones, ones)), 4, 16)


def recurrent(op_type: str, gates: int) -> Make:
    """Words [batch, length, 8], as exporters write it: transposed, a recurrent layer, and back."""

    def make(build: Build) -> str:
        made = build.op("Transpose", "x", perm=[1, 0, 2])
        weights = build.normal(1, gates * 16, 8), build.normal(1, gates * 16, 16)
        made = build.op("Squeeze", build.op(op_type, made, *weights, hidden_size=16), build.weight([1]))
        made = build.op("MatMul", made, build.normal(16, 8))
        return build.op("Tanh", build.op("Transpose", made, perm=[1, 0, 2]))

    return make


def attention(build: Build) -> str:
    query, key, value = (build.op("MatMul", "x", build.normal(8, 8)) for _ in range(3))
    scores = build.op("MatMul", query, build.op("Transpose", key, perm=[0, 2, 1]))
    return build.op("MatMul", build.op("MatMul", build.op("Softmax", scores), value), build.normal(8, 8))


def of_heads(build: Build) -> str:
    """Four heads, as torch writes them."""
    shape = build.weight([0, 0, 4, 4])
    parts = (build.op("Reshape", build.op("MatMul", "x", build.normal(8, 16)), shape) for _ in range(3))
    turns = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    query, key, value = (build.op("Transpose", each, perm=turn) for each, turn in zip(parts, turns, strict=True))
    joined = build.op("MatMul", build.op("Softmax", build.op("MatMul", query, key)), value)
    return build.op("Reshape", build.op("Transpose", joined, perm=[0, 2, 1, 3]), build.weight([0, 0, 16]))


def pooled_by_attention(build: Build) -> str:
    """One column: how much each word counts, of which a mean is made."""
    hidden = build.op("Tanh", build.op("MatMul", "x", build.normal(8, 64)))
    shares = build.op("Softmax", build.op("MatMul", hidden, build.normal(64, 1)), axis=1)
    return build.op("MatMul", build.op("Transpose", shares, perm=[0, 2, 1]), hidden)


BATCHES = {
    "pictures": (of_pictures, ("b", 3, 16, 16), {"Conv", "GlobalAveragePool", "Flatten", "Gemm"}),
    "normalised": (normalised, ("b", 3, 16, 16), {"Conv", "InstanceNormalization"}),
    "LSTM": (recurrent("LSTM", 4), ("b", 12, 8), {"LSTM", "MatMul", "Tanh"}),
    "GRU": (recurrent("GRU", 3), ("b", 12, 8), {"GRU", "MatMul", "Tanh"}),
    "attention": (attention, ("b", 12, 8), {"MatMul", "Softmax"}),
    "heads": (of_heads, ("b", "n", 8), {"MatMul", "Softmax", "Transpose"}),
    "one column": (pooled_by_attention, ("b", 12, 8), {"MatMul", "Softmax", "Tanh"}),
    "pictures of any size": (of_pictures, ("b", 3, "h", "w"), {"Conv", "GlobalAveragePool", "Flatten", "Gemm"}),
    "attention of any length": (attention, ("b", "n", 8), {"MatMul", "Softmax"}),
    "one column of any length": (pooled_by_attention, ("b", "n", 8), {"MatMul", "Softmax", "Tanh"}),
}
RANGES = {
    "b": SizeRange("b", 1, 12),
    "h": SizeRange("h", 8, 24, 8),
    "w": SizeRange("w", 8, 24, 8),
    "n": SizeRange("n", 1, 24),
}


@pytest.mark.parametrize("name", BATCHES)
def test_items_of_a_batch_have_the_bits_of_the_whole(name):
    make, dims, wanted = BATCHES[name]
    build = Build()
    family = SizeFamily(tuple(RANGES[dim] for dim in dims if isinstance(dim, str)))
    looped = LoopedModel(build.model(dims, make(build)), family, along_batch=True)
    assert wanted <= looped.cut
    rng = np.random.default_rng(0)
    sizes = [{each.name: int(rng.choice(each.sizes)) for each in family.ranges} for _ in range(6)]
    low, high = ({each.name: each.sizes[at] for each in family.ranges} for at in (0, -1))
    every = [high, low, *sizes, low, high]
    looped.check(every, rows=3)
    looped.proved(2).check(every, rows=2)  # without what threads share where an item is alone in its tile


def test_what_makes_less_of_what_would_be_joined_runs_in_the_loop_too():
    """Eight channels are large, the four behind them are not: joined are these, as bytes."""

    def narrowed(build: Build) -> str:
        made = build.op("Relu", build.conv(build.op("Relu", build.conv("x", 8, 3)), 4, 8))
        is_seen = build.op("Greater", made, build.weight(np.zeros(1), np.float32))
        return build.op("GlobalMaxPool", build.op("Cast", is_seen, to=TensorProto.FLOAT))

    build = Build()
    family = SizeFamily((SizeRange("h", 16, 96, 8), SizeRange("w", 16, 80, 8)))
    model = LoopedModel(build.model(PICTURE, narrowed(build)), family, least_bytes=4 * 8 * 96 * 80)
    (region,) = model.regions
    assert model.cut == {"Conv", "Relu", "Greater"}
    assert region.windows is not None
    model.check([{"h": 96, "w": 80}, {"h": 16, "w": 16}, {"h": 88, "w": 24}], 24)


def test_what_is_whole_before_and_behind_a_loop_is_not_joined_by_it():
    """A skip connection, made of what is whole, is read again behind a mean: in the loop it would be there twice."""
    build = Build()
    whole = [build.op("CumSum", build.conv("x", 4, 3), build.weight(2)) for _ in range(2)]
    skip = build.op("Concat", *whole, axis=1)
    inner = build.op("Relu", build.conv(skip, 8, 8))
    mean = build.op("ReduceMean", build.conv(inner, 8, 8), axes=[2, 3])
    looped = LoopedModel(build.model(PICTURE, build.op("Add", skip, mean)), SizeFamily(STEPS))
    inside = {name for region in looped.regions for op in region.ops for name in looped.sized.view.makes[op]}
    assert inner in inside
    assert skip not in inside
    looped.check(SEQUENCE, rows=4)


def test_the_runtime_is_told_no_more_of_shapes_than_it_knew():
    """Neither of what a loop joins nor by a shape that was written down, which is computed anew in each run."""
    build = Build()
    made = build.op("Relu", build.conv("x", 8, 3))
    mean = build.op("ReduceMean", build.conv(made, 4, 8), axes=[2, 3])
    shape = build.op("Concat", build.op("Shape", mean), axis=0)
    flat = build.op("Reshape", build.op("Add", mean, mean), shape)
    looped = LoopedModel(build.model(PICTURE, build.op("Mul", made, build.op("ReduceSum", flat))), SizeFamily(STEPS))
    names = [name for region in looped.regions for name in region.axes]
    told = replace(looped.sized, told={})
    tilings = [Tiling(4) for _ in looped.regions]
    written = {
        known: loops(sized, looped.regions, tilings).model for known, sized in ((True, looped.sized), (False, told))
    }
    for known, model in written.items():
        dims = [
            dim for node in model.graph if node.op_type in ("If", "Loop") for each in node.outputs for dim in each.shape
        ]
        assert any(isinstance(dim, int) for dim in dims) is known
        (reshape,) = [node for node in model.graph if node.outputs[0].name == flat]
        assert (reshape.inputs[1].const_value is not None) is known
    assert names
    sessions = [session_of(to_bytes(each)) for each in (looped.named, written[False])]
    for sizes in SEQUENCE:
        whole, ours = (session.run(None, looped.feeds(sizes))[0] for session in sessions)
        assert whole.tobytes() == ours.tobytes()


@pytest.mark.parametrize("is_copy", [True, False])
def test_what_is_made_again_runs_in_tiles_at_short_sizes_too(is_copy):
    """An item of two numbers is no whole packet: only where the op itself runs whole has it the bits of the whole."""
    build = Build()
    looped = LoopedModel(
        build.model(("b", 2), build.op("Elu", build.op("Relu", "x"))), SizeFamily((SizeRange("b", 2, 8, 2),)), 0, True
    )
    (region,) = looped.regions
    (elu,) = (op for op in region.ops if looped.sized.view.graph.ops[op].op_type == "Elu")
    asked = replace(region, copies={elu} if is_copy else set())
    short = SizeBound((region.length,), 8)
    found = refusal(looped.sized, asked, Tiling(1), looped.family, whole=short)
    assert (found is not None and found[0] == elu) is is_copy


@pytest.mark.parametrize("is_known", [True, False])
def test_in_a_loop_the_runtime_is_told_no_more_of_channels_than_it_knew_outside(is_known):
    """A pool whose channels it knows would take another form there, and have other bits."""
    build = Build()
    made = build.conv("x", 16, 3)
    lengths = [build.op("Gather", build.op("Shape", made), build.weight([axis])) for axis in range(4)]
    halves = build.op("Concat", lengths[0], build.weight([2, 8]), *lengths[2:], axis=0)
    apart = build.op("Transpose", build.op("Reshape", made, halves), perm=[0, 2, 1, 3, 4])
    mixed = build.op("Reshape", apart, build.op("Concat", *lengths, axis=0))
    pooled = build.op("AveragePool", mixed, kernel_shape=[2, 2], strides=[2, 2])
    model = build.model(("b", 3, 16, 16), build.op("Flatten", pooled))
    looped = LoopedModel(model, SizeFamily((SizeRange("b", 1, 4),)), along_batch=True)
    sized = looped.sized if is_known else replace(looped.sized, told={})
    written = loops(sized, looped.regions, [Tiling(1) for _ in looped.regions]).model
    inside = [node for node in written.graph.all_nodes() if node.graph is not written.graph]
    views = [node for node in inside if node.op_type == "Reshape" and node.inputs[1].name.startswith("remat/shape/")]
    pools = [node for node in inside if node.op_type == "AveragePool"]
    assert len(views) >= 2
    assert pools
    assert all((node.inputs[1].const_value is not None) is is_known for node in views)
    assert all(isinstance(node.inputs[0].shape[1], int) is is_known for node in pools)
    sessions = [session_of(to_bytes(each)) for each in (looped.named, written)]
    for count in (4, 1, 3):
        whole, ours = (session.run(None, looped.feeds({"b": count}))[0] for session in sessions)
        assert whole.tobytes() == ours.tobytes()


@pytest.mark.parametrize("is_known", [True, False])
def test_products_stay_apart_from_sums_in_a_loop_where_the_runtime_knows_no_shape_of_them_outside(is_known):
    """It would fuse them in the loop only, and a single row of a fused product has other bits."""
    build = Build()
    flat = build.op("Reshape", "x", build.weight([-1, 64]))
    made = build.op("Add", build.op("MatMul", flat, build.normal(64, 256)), build.normal(256))
    made = build.op("Tanh", build.op("MatMul", build.op("Relu", made), build.normal(256, 8)))
    looped = LoopedModel(build.model((1, "n", 64), made), SizeFamily((SizeRange("n", 1, 64),)))
    sized = replace(looped.sized, told={flat: (None, 64)} if is_known else {})
    written = loops(sized, looped.regions, [Tiling(8) for _ in looped.regions]).model
    sessions = [ort.InferenceSession(to_bytes(each)) for each in (looped.named, written)]
    (body,) = (node.attributes["body"].as_graph() for node in written.graph if node.op_type == "Loop")
    first, last = (node.inputs[0].producer() for node in body if node.op_type == "MatMul")
    assert first.inputs[1].name.startswith("remat/loop/copied") is not is_known
    assert last.op_type == "Relu"
    for count in (64, 1, 2, 64, 9):
        fed = {"x": np.random.default_rng(count).standard_normal((1, count, 64)).astype(np.float32)}
        whole, ours = (session.run(None, fed)[0] for session in sessions)
        assert whole.tobytes() == ours.tobytes()


def test_products_are_scaled_apart_in_a_loop_by_what_outside_is_computed_from_a_shape():
    """The runtime would make the square root of a length that it knows part of the product, which has other bits."""
    build = Build()
    queries = build.op("MatMul", "x", build.normal(48, 48))
    length = build.op("Slice", build.op("Shape", queries), build.weight([-1]), build.weight([9]))
    root = build.op("Sqrt", build.op("Sqrt", build.op("Cast", length, to=TensorProto.FLOAT)))
    keys = build.op("Mul", build.op("Transpose", "x", perm=[0, 2, 1]), root)
    scores = build.op("MatMul", build.op("Mul", queries, root), keys)
    model = build.model(("b", "n", 48), build.op("MatMul", build.op("Softmax", scores, axis=-1), "x"))
    ranges = SizeFamily((SizeRange("b", 1, 4), SizeRange("n", 1, 64)))
    looped = LoopedModel(model, ranges, along_batch=True)
    assert {"Cast", "Sqrt"}.isdisjoint(looped.cut)
    written = loops(looped.sized, looped.regions, [Tiling(1) for _ in looped.regions]).model
    sessions = [ort.InferenceSession(to_bytes(each)) for each in (looped.named, written)]
    for sizes in ({"b": 4, "n": 64}, {"b": 1, "n": 1}, {"b": 3, "n": 40}):
        whole, ours = (session.run(None, looped.feeds(sizes))[0] for session in sessions)
        assert whole.tobytes() == ours.tobytes()


def test_what_only_a_loop_reads_is_made_in_it_where_what_that_is_made_of_is_kept_anyway():
    """Four channels are read again behind the loop: what is made of them, as large, need not be whole beside them."""

    def read_again(build: Build) -> str:
        few = build.conv("x", 4, 3)
        many = build.op("Relu", build.conv(build.op("Abs", few), 8, 4))
        again = build.conv(many, 4, 8)
        return build.op("Mul", build.op("GlobalMaxPool", again), few)

    build = Build()
    family = SizeFamily((SizeRange("h", 16, 96, 8), SizeRange("w", 16, 80, 8)))
    model = LoopedModel(build.model(PICTURE, read_again(build)), family, least_bytes=4 * 8 * 96 * 80)
    assert model.cut == {"Abs", "Conv", "Relu"}
    model.check([{"h": 96, "w": 80}, {"h": 16, "w": 16}, {"h": 88, "w": 24}], 24)


@pytest.mark.parametrize("most", [2, 3])
@pytest.mark.parametrize("name", ["pictures of any size", "LSTM", "heads"])
def test_a_batch_of_two_is_cut_as_well(name, most):
    make, dims, wanted = BATCHES[name]
    build, few = Build(), SizeRange("b", 1, most)
    family = SizeFamily(tuple(few if dim == "b" else RANGES[dim] for dim in dims if isinstance(dim, str)))
    looped = LoopedModel(build.model(dims, make(build)), family, along_batch=True).proved(1)
    assert looped.cut & wanted
    ends = [{each.name: each.sizes[at] for each in family.ranges} for at in (-1, 0)]
    looped.check([*ends, ends[0] | {"b": 1}, ends[0]], rows=1)


@pytest.mark.parametrize(("rows", "is_asked"), [(4, False), (2, True)])
def test_sizes_of_products_are_asked_only_where_a_tile_has_fewer_matrices_than_there_are_threads(rows, is_asked):
    build, asked = Build(), list[None]()
    looped = LoopedModel(build.model(("b", "n", 8), of_heads(build)), SizeFamily((RANGES["b"], RANGES["n"])), 0, True)
    (region,) = looped.regions  # four matrices for each item, two items in the shortest of the larger tiles
    watched = replace(looped.sized, look=lambda: asked.append(None))
    assert refusal(watched, region, Tiling(rows), looped.family) is None
    assert (len(asked) > len(RANGES["n"].sizes)) is is_asked


def distances(build: Build) -> str:
    """How far each of a batch's rows is from the nearest kept ones: all differences at once."""
    apart = build.op("Sub", build.op("Unsqueeze", "x", build.weight([2])), build.normal(1, 1, 50, 16))
    squares = build.op("ReduceSum", build.op("Pow", apart, build.weight(2, np.float32)), build.weight([3]), keepdims=0)
    build.op("TopK", build.op("Sqrt", squares), build.weight([4]), axis=2, largest=0)
    build.nodes[-1].output.append("which")
    return build.nodes[-1].output[0]


@pytest.mark.parametrize(
    ("least_bytes", "length", "rows"),
    [(4 * 12 * 20 * 50 * 16, 50, 7), (4 * 12 * 20 * 50, 20, 3)],  # differences in part, and distances too
)
def test_loops_along_a_length_that_does_not_vary_have_the_bits_of_the_whole(least_bytes, length, rows):
    build = Build()
    model = build.model(("b", 20, 16), distances(build))
    looped = LoopedModel(model, SizeFamily((RANGES["b"],)), least_bytes, along_fixed=True)
    assert [str(region.length) for region in looped.regions] == [str(length)]
    assert {"Sub", "Pow", "ReduceSum"} <= looped.cut
    looped.check([{"b": size} for size in (12, 1, 2, 7, 12, 1)], rows)


def test_few_rows_of_products_cost_more_time_than_whole_items():
    build = Build()
    model, family = build.model(("b", "n", 8), of_heads(build)), SizeFamily((RANGES["b"], RANGES["n"]))
    by_item, by_row = (LoopedModel(model, family, 4 * 12 * 4 * 24 * 24, along_batch=each) for each in (True, False))
    costs = tuple(OpCost(op.name, 1_000_000) for op in by_item.sized.view.graph.ops)
    profile = Profile("cpu", "", NOWHERE, costs, 0, 0)
    (item,), (row,) = by_item.regions, by_row.regions
    extra = [
        LoopEstimate(each.sized, [region], [Tiling(rows)], profile).extra_ns
        for each, region, rows in ((by_item, item, 3), (by_row, row, 6), (by_row, row, 3))
    ]
    launches = [4 * len(item.ops), 4 * len(row.ops), 8 * len(row.ops)]  # of twelve items, of 24 rows
    slower = [each - count * LAUNCH_NS for each, count in zip(extra, launches, strict=True)]
    assert slower[0] == 0 < slower[1] < slower[2]


def test_what_a_convolution_takes_for_itself_is_the_same_for_one_item_as_for_all():
    build = Build()
    spread = build.op("ConvTranspose", build.op("Relu", "x"), build.normal(8, 8, 4), strides=[2])
    model = LoopedModel(build.model(("b", 8, 32), build.op("Abs", spread)), SizeFamily((RANGES["b"],)), 0, True)
    (region,) = model.regions
    ops = model.sized.view.graph.ops
    assert {ops[op].op_type for op in region.ops} >= {"Relu", "ConvTranspose"}
    taken = {"ConvTranspose": 100_000, "Abs": 12_000}
    profile = Profile(
        "cpu", "", NOWHERE, tuple(OpCost(op.name, 1, workspace_bytes=taken.get(op.op_type, 0)) for op in ops), 0, 0
    )
    held = tile_bytes(model.sized, region, Tiling(1), sorted(region.ops), profile)
    item = 4 * 8 * (32 + 66)  # what it reads and makes
    assert held == 100_000 + item


@pytest.mark.parametrize("parts", [2, 4])
def test_lists_of_tiles_are_joined_one_after_the_other(tmp_path, parts):
    """So that beside all results there is one list at most; what it holds is foretold."""
    build = Build()
    made = build.op("Exp", build.op("Concat", *["x"] * 2 * parts, axis=1))
    names = [f"part{at}" for at in range(parts)]
    build.nodes.append(helper.make_node("Split", [made], names, axis=1, name="split"))
    last = build.op("Concat", *(build.op("ReduceMax", build.op("Neg", name), axes=[0]) for name in names), axis=1)
    small = LoopedModel(build.model(["n", 64], last, opset=13), SizeFamily((SizeRange("n", 1, 1024),)))
    (region,) = find_loops(small.sized, small.sized.sizes[made])
    path = tmp_path / "loops.onnx"
    path.write_bytes(to_bytes(loops(small.sized, [region], [Tiling(8)]).model))
    held = see_at_sizes(path, [GivenFeeds(pack_all(small.feeds({"n": 1024})))], SessionSettings(exact=True)).peak_bytes
    costs = without_costs(op.name for op in small.sized.view.graph.ops)
    foretold = LoopEstimate(small.sized, [region], [Tiling(8)], costs).peak_bytes
    assert foretold == (parts + 1) * small.sized.sizes[names[0]]
    assert foretold <= held[0] <= foretold + SMALL_VALUES


def skipping(scales: int, narrow: bool) -> Make:
    """Down by pools, a share for each channel of the least, which is one of all of it, and up again beside skips.

    What is skipped may have been narrow before: such a small tensor is where making it again begins.
    """

    def make(build: Build) -> str:
        made, skips, channels = "x", [], 3
        for _ in range(scales):
            made, channels = build.op("Relu", build.conv(made, 8, channels)), 8
            if narrow:
                made = build.op("Add", made, build.conv(build.op("Relu", build.conv(made, 1, 8)), 8, 1))
            skips.append(made)
            made = build.op("MaxPool", made, kernel_shape=[2, 2], strides=[2, 2])
        made = build.op("Mul", made, build.op("Sigmoid", build.op("GlobalAveragePool", made)))
        for skip in reversed(skips):
            scaled = build.weight([1, 1, 2, 2], np.float32)
            made = build.op("Resize", made, "", scaled, mode="nearest", coordinate_transformation_mode="asymmetric")
            made = build.op("Relu", build.conv(build.op("Concat", skip, made, axis=1), 8, 16))
        return build.conv(made, 2, 8)

    return make


@pytest.mark.parametrize(("scales", "narrow"), [(1, False), (2, False), (1, True), (2, True)])
def test_skip_connections_are_made_again_where_they_are_read_so_that_none_is_whole(scales, narrow):
    build = Build()
    model, family = build.model((1, 3, "h", "w"), skipping(scales, narrow)(build)), SizeFamily(STEPS)
    kept, again = (LoopedModel(model, family, 4 * 8 * 96 * 40 // 4, skips_again=each) for each in (False, True))
    assert not any(region.copies for region in kept.regions)
    (late,) = (region for region in again.regions if region.copies)
    assert late.copies <= set().union(*(region.own for region in again.regions))
    costs = without_costs(op.name for op in again.sized.view.graph.ops)
    peaks = [
        LoopEstimate(each.sized, each.regions, [Tiling(4)] * len(each.regions), costs).peak_bytes
        for each in (kept, again)
    ]
    assert peaks[1] <= peaks[0] - again.sized.sizes["t1"] + narrow * again.sized.sizes["t3"]
    sizes = [{"h": 96, "w": 40}, {"h": 8, "w": 8}, {"h": 64, "w": 16}, {"h": 96, "w": 40}, {"h": 24, "w": 32}]
    again.check(sizes, 8 if narrow else 4)  # more windows look further around a tile


def test_what_is_made_again_reads_nothing_that_is_inside_another_loop_only():
    """A picture is turned, as TensorFlow's exporter writes it, and the skip connection is made of that alone."""

    def turned(build: Build) -> str:
        few = build.op("Transpose", "x", perm=[0, 3, 1, 2])
        skip = build.op("Relu", build.conv(few, 8, 1))
        made = build.op("MaxPool", skip, kernel_shape=[2, 2], strides=[2, 2])
        made = build.op("Mul", made, build.op("Sigmoid", build.op("GlobalAveragePool", made)))
        scaled = build.weight([1, 1, 2, 2], np.float32)
        made = build.op("Resize", made, "", scaled, mode="nearest", coordinate_transformation_mode="asymmetric")
        return build.conv(build.op("Concat", skip, made, axis=1), 2, 16)

    build = Build()
    model = build.model((1, "h", "w", 1), turned(build))
    again = LoopedModel(model, SizeFamily(STEPS), 4 * 8 * 96 * 40 // 4, skips_again=True)
    assert any(region.copies for region in again.regions)
    again.check([{"h": 96, "w": 40}, {"h": 8, "w": 8}, {"h": 64, "w": 16}, {"h": 96, "w": 40}, {"h": 24, "w": 32}], 4)
