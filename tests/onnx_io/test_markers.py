"""What a cut took out of the layout in blocks is put back where ops would else be fused in another way."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.schedule.graph import TensorType
from remat_cli.onnx_io.read.laid_out import all_laid_out
from remat_cli.onnx_io.read.layout_scene import (
    carry_whole_names,
    declared_shapes,
    differing_ops,
    in_turn,
    layout_scene,
    run_once,
    whole_names,
)
from remat_cli.onnx_io.read.to_graph import INPUTS, to_graph
from remat_cli.onnx_io.write.markers import MARK, marked, with_sums_in_turn
from remat_cli.ort_rules.layout import whole_layout

CHANNELS, SIZE = 16, 32
SHAPE = [1, CHANNELS, SIZE, SIZE]


def residual(*, is_cut: bool) -> ir.Model:
    """Two convolutions and their sum; `is_cut`: what is added goes through a Slice that leaves all of it."""
    rng = np.random.default_rng(0)
    arrays = {
        "wa": rng.standard_normal((CHANNELS, 3, 3, 3)),
        "wb": rng.standard_normal((CHANNELS, CHANNELS, 3, 3)),
        "ba": rng.standard_normal(CHANNELS),
        "bb": rng.standard_normal(CHANNELS),
    }
    weights = [numpy_helper.from_array(each.astype(np.float32), name) for name, each in arrays.items()]
    numbers = {"s": [0], "e": [SIZE], "axes": [2]}
    weights += [numpy_helper.from_array(np.array(each, np.int64), name) for name, each in numbers.items()]
    nodes = [
        helper.make_node("Conv", ["x", "wa", "ba"], ["a"], name="conv_a", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "wb", "bb"], ["b"], name="conv_b", pads=[1, 1, 1, 1]),
        helper.make_node("Slice", ["a", "s", "e", "axes"], ["cut"], name="cut"),
        helper.make_node("Add", ["b", "cut" if is_cut else "a"], ["y"], name="add"),
    ]
    nodes = [node for node in nodes if is_cut or node.name != "cut"]
    kind = TensorProto.FLOAT
    x, y = (
        helper.make_tensor_value_info(name, kind, shape) for name, shape in (("x", [1, 3, SIZE, SIZE]), ("y", SHAPE))
    )
    inside = [helper.make_tensor_value_info(name, kind, SHAPE) for name in ("a", "b", "cut") if is_cut or name != "cut"]
    graph = helper.make_graph(nodes, "residual", [x], [y], weights, value_info=inside)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def outputs(model: ir.Model) -> np.ndarray:
    x = np.random.default_rng(1).standard_normal((1, 3, SIZE, SIZE)).astype(np.float32)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.fixture(scope="module")
def layout():
    whole = residual(is_cut=False)
    return whole_layout(layout_scene(whole, declared_shapes(whole)))


def test_a_marked_cut_has_the_bits_of_the_whole(layout):
    cut = residual(is_cut=True)
    new = marked(cut, layout)
    onnx.checker.check_model(ir.to_proto(new))
    marks = [node for node in new.graph if MARK in node.metadata_props]
    assert [node.inputs[0].name for node in marks] == ["cut"]
    assert not any(MARK in node.metadata_props for node in cut.graph)
    scene = layout_scene(new, declared_shapes(new))
    assert not layout.differing(scene, whole_names(new))
    assert np.array_equal(outputs(new), outputs(residual(is_cut=False)))


def test_what_lies_in_the_layout_gets_no_mark(layout):
    new = marked(residual(is_cut=False), layout)
    assert not any(MARK in node.metadata_props for node in new.graph)


@pytest.mark.parametrize(("block", "channels"), [(16, 16), (8, 16), (32, 32)])
def test_values_in_blocks_are_as_large_as_their_padded_channels(block, channels):
    model = residual(is_cut=False)
    shapes = declared_shapes(model)
    types = {name: TensorType("float", shape) for name, shape in shapes.items()}
    laid = next(all_laid_out(model, types, shapes, [block]))
    made = {node.name: laid.observed[node.name][0].shape for node in laid.model.graph}
    assert made["conv_b"] == (1, channels, SIZE, SIZE)
    assert made["y/reorder_output"] == (1, CHANNELS, SIZE, SIZE)
    assert laid.covers["conv_b"] == ("conv_b", "add")
    assert (laid.grown_bytes > 0) == (channels > CHANNELS)


@pytest.mark.parametrize(("blocks", "kept"), [((16, 8, 1), 2), ((8, 16), 1), ((32, 16, 8, 1), 4)])
def test_blocks_of_which_nothing_else_comes_are_counted_once(blocks, kept):
    """Of 16 channels those of 16 and 8 make the same; those of 32, which are half empty, two orders of their own."""
    model = residual(is_cut=False)
    shapes = declared_shapes(model)
    types = {name: TensorType("float", shape) for name, shape in shapes.items()}
    found = list(all_laid_out(model, types, shapes, blocks))
    alone = [next(all_laid_out(model, types, shapes, [block])) for block in blocks]
    forms = {tuple(sorted(each.observed.items())) for each in alone}
    assert {tuple(sorted(each.observed.items())) for each in found} == forms
    assert len(found) == kept
    assert max(each.grown_bytes for each in found) == max(each.grown_bytes for each in alone)


def two_branches(first: str, channels: int = CHANNELS) -> ir.Model:
    """The sum of two convolutions of the input, of which `first` stands first in the file."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), f"{kind}{name}")
        for name in "ab"
        for kind, shape in (("w", (channels, 3, 3, 3)), ("b", (channels,)))
    ]
    nodes = [
        helper.make_node("Conv", ["x", f"w{each}", f"b{each}"], [each], name=f"conv_{each}", pads=[1, 1, 1, 1])
        for each in sorted("ab", key=lambda each: each != first)
    ]
    nodes.append(helper.make_node("Add", ["b", "a"], ["y"], name="add"))
    shapes = {"x": [1, 3, SIZE, SIZE], **{each: [1, channels, SIZE, SIZE] for each in "yab"}}
    x, y, *inside = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    graph = helper.make_graph(nodes, "branches", [x], [y], weights, value_info=inside)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def test_of_two_convolutions_the_one_that_takes_in_their_sum_without_blocks_goes_first():
    whole, turned = two_branches("a"), two_branches("b")
    known = whole_layout(layout_scene(whole, declared_shapes(whole)))
    assert known.fused == {"conv_a", "conv_b", "add"}  # one where there are no blocks, the other in them
    assert in_turn(turned, known) == (("conv_a", "conv_b"),)
    assert differing_ops(known, turned, declared_shapes(turned)) >= {"add"}
    mended = with_sums_in_turn(turned, known)
    assert [node.name for node in mended.graph] == ["conv_a", "conv_b", "add"]
    assert not differing_ops(known, mended, declared_shapes(mended))
    onnx.checker.check_model(ir.to_proto(mended))


@pytest.mark.parametrize(("channels", "marks"), [(CHANNELS, ["a"]), (CHANNELS // 2, [])])
def test_the_other_convolution_is_marked_only_where_its_channels_fill_blocks(channels, marks):
    """Elsewhere pools stay out of the layout, and the sum with them, which would then not be fused at all."""
    whole = two_branches("b", channels)
    known = whole_layout(layout_scene(whole, declared_shapes(whole)))
    new = marked(whole, known)
    assert [node.inputs[0].name for node in new.graph if MARK in node.metadata_props] == marks
    assert not differing_ops(known, new, declared_shapes(new))
    assert np.array_equal(outputs(new), outputs(whole))


def test_an_op_that_sessions_fuse_may_not_run_again():
    model = two_branches("a")
    shapes = declared_shapes(model)
    known = whole_layout(layout_scene(model, shapes))
    kinds = {node.name or "": (TensorType("float", shapes[node.outputs[0].name]),) for node in model.graph}
    graph = to_graph(model, {INPUTS: (TensorType("float", shapes["x"]),), **kinds})
    assert all(op.repeatable for op in graph.ops)
    assert not any(op.repeatable for op in run_once(graph, model, known).ops)


def test_an_optimised_model_is_told_again_of_what_its_ops_are_tiles():
    before, after = two_branches("a"), two_branches("a")
    for node in before.graph:
        node.metadata_props["remat.split_of"] = f"whole_{node.name}"
    assert set(whole_names(carry_whole_names(before, after)).values()) == {"whole_conv_a", "whole_conv_b", "whole_add"}
