"""What a cut took out of the layout in blocks is put back where ops would else be fused in another way."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.schedule.graph import TensorType
from remat_cli.onnx_io.read.laid_out import as_laid_out
from remat_cli.onnx_io.read.layout_scene import declared_shapes, layout_scene, whole_names
from remat_cli.onnx_io.write.markers import MARK, marked
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
    laid = as_laid_out(model, types, shapes, block)
    made = {node.name: laid.observed[node.name][0].shape for node in laid.model.graph}
    assert made["conv_b"] == (1, channels, SIZE, SIZE)
    assert made["y/reorder_output"] == (1, CHANNELS, SIZE, SIZE)
    assert laid.covers["conv_b"] == ("conv_b", "add")
    assert (laid.grown_bytes > 0) == (channels > CHANNELS)
