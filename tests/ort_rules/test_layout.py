"""What loading makes of convolutions is predicted for blocks of 16 channels, of 8, and for none."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from remat_cli.compiling.processor import block_here
from remat_cli.onnx_io.read.layout_scene import declared_shapes, layout_scene
from remat_cli.ort_rules.layout import LayoutOp, LayoutScene, fates, laid_out, whole_layout
from remat_cli.ort_rules.order import Wiring, depth_first_order
from tests.helpers import optimise, profile_events

SAMPLES = Path(__file__).parents[2] / "sample_models"
BLOCKED = "com.microsoft.nchwc:"
# What version 1.32.0 made of samples where an emulator played a Haswell (8), a Nehalem (8) or a Cortex-A76 (1).
ELSEWHERE = {
    ("resnet", 8): {"Conv": 2, "Conv+Relu": 7, "Conv+sum+Relu": 6, "GlobalAveragePool": 1, "ReorderOutput": 1},
    ("densenet", 8): {"Conv": 16, "Conv+Relu": 29, "Conv+sum+Relu": 4, "MaxPool": 3, "ReorderOutput": 1, "Upsample": 3},
    ("attention_unet", 8): {
        "Conv": 4,
        "Conv+Relu": 12,
        "Conv+Sigmoid": 4,
        "Conv+sum+Relu": 6,
        "MaxPool": 3,
        "ReorderInput": 3,
        "ReorderOutput": 10,
        "Upsample": 3,
    },
    ("resnet", 1): {"FusedConv+Relu": 7, "FusedConv+sum+Relu": 6},
    ("densenet", 1): {"FusedConv+Relu": 15, "FusedConv+sum+Relu": 4},
    ("inception", 1): {"FusedConv+Relu": 35, "FusedConv+Sigmoid": 1, "FusedConv+sum+Relu": 7},
    ("attention_unet", 1): {"FusedConv+Relu": 12, "FusedConv+Sigmoid": 4, "FusedConv+sum+Relu": 7},
}


def counted(ops: tuple[LayoutOp, ...]) -> Counter[str]:
    """Ops by domain and type, convolutions by what they take in."""
    found: Counter[str] = Counter()
    for op in ops:
        activation = op.attributes.get("activation") if op.is_conv else None
        kind = f"{op.op_type}{'+sum' if op.has_sum else ''}{f'+{activation}' if activation else ''}"
        found[f"{op.domain}:{kind}" if op.domain else kind] += 1
    return found


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A sample as every processor gets it, by name."""
    folder, found = tmp_path_factory.mktemp("extended"), {}

    def scene(name: str) -> LayoutScene:
        if name not in found:
            model = optimise(ir.load(SAMPLES / f"{name}.onnx"), folder, extended=True)
            found[name] = layout_scene(model, declared_shapes(model))
        return found[name]

    return scene


@pytest.mark.parametrize("name", ["resnet", "detector", "attention_unet", "densenet"])
def test_what_sessions_make_of_a_model_here_is_predicted(extended, tmp_path, name):
    block = block_here(tmp_path)
    model = optimise(ir.load(SAMPLES / f"{name}.onnx"), tmp_path)
    seen = layout_scene(model, declared_shapes(model))
    assert counted(laid_out(extended(name), block).ops) == counted(seen.ops)


@pytest.mark.parametrize(("name", "block"), ELSEWHERE, ids=str)
def test_what_they_make_of_it_elsewhere_is_predicted(extended, name, block):
    domain = BLOCKED if block > 1 else "com.microsoft:"
    found = counted(laid_out(extended(name), block).ops)
    ours = {kind.removeprefix(domain): count for kind, count in found.items() if kind.startswith(domain)}
    assert ours == ELSEWHERE[name, block]


def residual(*, is_cut: bool = False, first: int = 16) -> LayoutScene:
    """Two convolutions and a sum of what both give; `is_cut` takes what is added out of the layout."""
    skip = "cut" if is_cut else "a"
    ops = [
        LayoutOp("conv_a", "Conv", "", ("x", "wa", "ba"), ("a",)),
        *((LayoutOp("cut", "Slice", "", ("a", "s", "e"), ("cut",)),) if is_cut else ()),
        LayoutOp("conv_b", "Conv", "", ("a", "wb", "bb"), ("b",)),
        LayoutOp("add", "Add", "", ("b", skip), ("y",)),
    ]
    shape = (1, first, 8, 8)
    weights = {"wa": (first, 3, 1, 1), "ba": (first,), "wb": (first, first, 1, 1), "bb": (first,)}
    shapes = {"x": (1, 3, 8, 8), **dict.fromkeys(("a", "b", "cut", "y"), shape)}
    return LayoutScene(tuple(ops), shapes, weights, {}, frozenset({"y"}))


@pytest.mark.parametrize("block", [16, 8, 1])
def test_a_sum_moves_into_the_convolution_that_nobody_else_reads(block):
    found = fates(residual(), block, {name: name for name in ("conv_a", "conv_b", "add")})
    assert found["add"] == {(block > 1, ("conv_b", "add"))}
    assert found["conv_a"] == {(block > 1, ("conv_a",))}


def test_a_cut_that_keeps_a_sum_out_of_the_layout_is_told():
    whole, cut = residual(), residual(is_cut=True)
    names = {name: name for name in ("conv_a", "conv_b", "add", "cut")}
    layout = whole_layout(whole)
    assert layout.in_blocks == {"conv_a", "conv_b", "add"}
    assert layout.partners == {"conv_b"}
    assert not layout.differing(whole, names)
    assert layout.differing(cut, names) == {"conv_b", "add"}
    mark = LayoutOp("mark", "MaxPool", "", ("cut",), ("marked",), {"kernel_shape": (1, 1)})
    *before, add = cut.ops
    marked = replace(
        cut, ops=(*before, mark, replace(add, reads=("b", "marked"))), shapes=cut.shapes | {"marked": cut.shapes["a"]}
    )
    assert not layout.differing(marked, names)


@pytest.mark.parametrize(
    ("channels", "block", "is_taken"), [(16, 16, True), (8, 16, False), (8, 8, True), (12, 8, False)]
)
def test_a_pool_is_taken_where_channels_fill_whole_blocks(channels, block, is_taken):
    scene = residual(first=channels)
    pool = LayoutOp("pool", "MaxPool", "", ("y",), ("z",), {"kernel_shape": (1, 1)})
    shapes = {**scene.shapes, "z": scene.shapes["y"]}
    laid = laid_out(replace(scene, ops=(*scene.ops, pool), shapes=shapes, outputs=frozenset({"z"})), block)
    assert [op.is_blocked for op in laid.ops if op.op_type == "MaxPool"] == [is_taken]


def test_ops_that_are_gone_differ():
    whole = residual()
    layout = whole_layout(whole)
    assert layout.differing(replace(whole, ops=whole.ops[:2]), {"conv_a": "conv_a", "conv_b": "conv_b"}) >= {"add"}


def test_channels_that_no_reordering_takes_stay_as_they_are():
    layout = whole_layout(residual(first=18))
    assert layout.in_blocks == {"conv_a"}
    assert not layout.is_plain
    assert whole_layout(LayoutScene((), {}, {}, {}, frozenset())).is_plain


def test_ops_that_fusions_made_stand_where_they_can_be_computed(tmp_path):
    """They have no place in the user's file; last in the walk, they would keep all behind them out of the layout."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((32, 32, 1, 1)).astype(np.float32) for name in ("a", "b")}
    nodes, shape = list[onnx.NodeProto](), [1, 32, 8, 8]
    for name in weights:
        nodes.append(helper.make_node("Conv", ["x", name], [f"{name}_conv"], name=f"{name}_conv"))
        nodes.append(helper.make_node("Sigmoid", [f"{name}_conv"], [f"{name}_sigmoid"], name=f"{name}_sigmoid"))
        nodes.append(helper.make_node("Mul", [f"{name}_conv", f"{name}_sigmoid"], [f"{name}_act"], name=f"{name}_act"))
    nodes.append(helper.make_node("Add", ["a_act", "b_act"], ["y"], name="add"))
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in ("x", "y")]
    held = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], held)
    source = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    model = optimise(source, tmp_path, extended=True)
    assert "QuickGelu" in {node.op_type for node in model.graph}
    shapes = dict.fromkeys([value.name or "" for node in model.graph for value in node.outputs], tuple(shape))
    scene = layout_scene(model, shapes, {node.name or "": place for place, node in enumerate(source.graph)})
    made = {name: place for place, op in enumerate(scene.ops) for name in op.makes}
    assert all(made.get(name, -1) < place for place, op in enumerate(scene.ops) for name in op.reads)
    names = {op.name: op.name for op in scene.ops}
    for block in (8, 16):
        assert fates(scene, block, names)["add"] == frozenset({(True, ("add",))})


def test_ops_are_numbered_in_the_order_of_a_default_session(tmp_path):
    """Not as they stand in the file: what a sum reads as its second is walked first, so that it is reordered last."""
    rng = np.random.default_rng(0)
    shapes = {"wide": (16, 16, 3, 3), "narrow": (16, 16, 1, 1), "bias": (16,)}
    numbers = {"starts": [1, 1], "ends": [9, 9], "axes": [2, 3]}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    weights |= {name: np.array(value) for name, value in numbers.items()}
    nodes = [
        helper.make_node("Abs", ["x"], ["left"], name="left"),
        helper.make_node("Conv", ["left", "wide", "bias"], ["a"], name="a"),
        helper.make_node("Slice", ["left", *numbers], ["cut"], name="cut"),
        helper.make_node("Sqrt", ["cut"], ["right"], name="right"),
        helper.make_node("Conv", ["right", "narrow", "bias"], ["b"], name="b"),
        helper.make_node("Add", ["a", "b"], ["y"], name="y"),
    ]
    sizes = dict.fromkeys(("x", "left"), (1, 16, 10, 10)) | dict.fromkeys(("right", "a", "b", "y"), (1, 16, 8, 8))
    known = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, size) for name, size in sizes.items()]
    held = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", known[:1], known[-1:], held, value_info=known[1:-1])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = ir.from_proto(proto)
    ops = laid_out(layout_scene(model, declared_shapes(model) | sizes), block_here(tmp_path)).ops
    order = depth_first_order([Wiring(op.reads, op.makes) for op in ops])
    events, _ = profile_events(proto.SerializeToString(), {"x": np.ones(sizes["x"], np.float32)}, exact=False)
    seen = [event["args"]["op_name"] for event in events]
    assert [ops[number].op_type for number in order] == seen
    assert seen == ["Abs", "ReorderInput", "Slice", "Sqrt", "ReorderInput", "Conv", "Conv", "ReorderOutput"]
