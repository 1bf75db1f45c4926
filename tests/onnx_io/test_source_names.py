"""Ops and tensors of an optimised model are told by what the user's file calls them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from remat_cli.core.schedule.graph import Graph, Op, Tensor
from remat_cli.core.values.told_names import ToldNames
from remat_cli.onnx_io.read.source_names import SCOPES_KEY, module_of, told_names

SHAPE = (1, 16, 8, 8)


def source(scopes: bool = False) -> ir.Model:
    """A convolution, its activation and what joins both."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["conv_out"], "conv_a", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv_out"], ["relu_out"], "relu_a"),
        helper.make_node("Concat", ["relu_out", "relu_out"], ["joined"], "join", axis=1),
    ]
    if scopes:
        entry = nodes[0].metadata_props.add()
        entry.key, entry.value = SCOPES_KEY, "['', 'enc', 'enc.1', 'conv2d_3']"
    value = helper.make_tensor_value_info
    inputs = [value("x", onnx.TensorProto.FLOAT, SHAPE)]
    outputs = [value("joined", onnx.TensorProto.FLOAT, (1, 32, 8, 8))]
    weight = numpy_helper.from_array(np.zeros((16, 16, 3, 3), np.float32), "w")
    return ir.from_proto(helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, [weight])))


def optimised() -> Graph:
    """What the runtime makes of it: both fused, in a layout of its own."""
    tensor = [("x", None), ("reorder", 0), ("reorder_token_1", 1), ("reorder_token_2", 2), ("joined", 3)]
    return Graph(
        ops=(
            Op("ReorderInput", "ReorderInput", (0,), (1,)),
            Op("relu_out_nchwc", "Conv", (1,), (2,)),
            Op("join", "Concat", (2,), (3,)),
            Op("ReorderOutput", "ReorderOutput", (3,), (4,)),
        ),
        tensors=tuple(Tensor(name, "float", SHAPE, 4096, producer) for name, producer in tensor),
        weights=(),
    )


def test_what_is_fused_and_moved_has_the_names_of_the_file():
    names = told_names(source(), optimised())
    assert names.ops == {
        "ReorderInput": "layout of x",
        "relu_out_nchwc": "conv_a",
        "ReorderOutput": "layout of joined",
    }
    assert names.tensors == {"reorder": "x", "reorder_token_1": "relu_out", "reorder_token_2": "joined"}


def test_a_module_of_the_network_is_told_with_a_type():
    assert told_names(source(scopes=True), optimised()).op("relu_out_nchwc") == "enc.1 (Conv)"


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("/enc/enc.1/Conv", "enc.1"),
        ("/layer1/layer1.0/conv1/Conv", "layer1.0.conv1"),
        ("/Conv", ""),
        ("Conv_17", ""),
        ("", ""),
    ],
)
def test_modules_stand_in_the_names_that_torch_wrote_before(name, module):
    assert module_of(ir.node("Conv", inputs=[], name=name)) == module


@pytest.mark.parametrize("text", ["nonsense", "[", "17", "['', 'only']", "[" * 500])
def test_scopes_that_cannot_be_read_are_no_module(text):
    assert module_of(ir.node("Conv", inputs=[], name="c", metadata_props={SCOPES_KEY: text})) == ""


def test_a_name_that_is_not_known_stays():
    assert told_names(source(), Graph((Op("own", "Mul", (), (0,)),), (Tensor("t", "float", (1,), 4, 0),), ())).ops == {}


def test_what_the_runtime_makes_of_several_nodes_is_told_by_the_one_that_it_names():
    graph = Graph((Op("join/SplitFusion", "Split", (), (0,)),), (Tensor("split_token_3", "float", (1,), 4, 0),), ())
    names = told_names(source(), graph)
    assert names.op("join/SplitFusion") == "join"
    assert names.tensor("split_token_3") == "part 1 of join"


def test_tiles_and_parts_are_told_by_what_they_are_part_of():
    names = ToldNames({"a_nchwc": "enc.1 (Conv)"}, {"t_1": "relu"})
    assert names.op("a_nchwc/tile_3") == "enc.1 (Conv), tile 3"
    assert names.tensor("t_1/tile_1/tail/cut") == "relu, tile 1 tail cut"
    assert names.op("other/tile_3") == "other, tile 3"
    assert names.op("other/conv") == "other/conv"
