"""Inputs that are shapes, axes or sizes get values with which the runtime runs the op that reads them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from remat_cli.onnx_io.read.load import DimBindings, load
from remat_cli.onnx_io.read.told_inputs import REDUCTIONS, told_inputs
from remat_cli.runtime.sessions.feeds import make_feeds

X = (2, 3, 4, 4)
NAMES = {TensorProto.INT64: np.int64, TensorProto.FLOAT: np.float32, TensorProto.INT32: np.int32}
I64, F32, I32 = TensorProto.INT64, TensorProto.FLOAT, TensorProto.INT32


def model(op, inputs, made, **attributes):
    """One op: `inputs` are (type, shape), None for one that is left out; `made` is the declared result."""
    ports = [None if port is None else (f"i{place}", *port) for place, port in enumerate(inputs)]
    node = helper.make_node(op, ["" if port is None else port[0] for port in ports], ["y"], **attributes)
    outputs = [helper.make_tensor_value_info("y", inputs[0][0] if op != "ConstantOfShape" else F32, made)]
    given = [helper.make_tensor_value_info(*port) for port in ports if port is not None]
    graph = helper.make_graph([node], "g", given, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def run(proto):
    """Outputs for what was told, and random numbers for the rest."""
    told = told_inputs(ir.from_proto(proto))
    random = np.random.default_rng(0)
    feeds = {}
    for port in proto.graph.input:
        tensor = port.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        feeds[port.name] = told.get(port.name, random.standard_normal(shape).astype(NAMES[tensor.elem_type]))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return told, session.run(None, feeds)[0]


CASES = {
    "reshape": ("Reshape", [(F32, X), (I64, [2])], [6, 16], {}, (6, 16)),
    "reshape, nothing declared": ("Reshape", [(F32, X), (I64, [3])], None, {}, (96, 1, 1)),
    "expand": ("Expand", [(F32, [3, 1]), (I64, [3])], [2, 3, 6], {}, (2, 3, 6)),
    "expand, nothing declared": ("Expand", [(F32, [3, 1]), (I64, [3])], None, {}, (1, 3, 1)),
    "constant": ("ConstantOfShape", [(I64, [2])], [4, 5], {}, (4, 5)),
    "tile": ("Tile", [(F32, [2, 3]), (I64, [2])], [4, 9], {}, (4, 9)),
    "sizes": ("Resize", [(F32, X), None, None, (I64, [4])], [2, 3, 8, 6], {}, (2, 3, 8, 6)),
    "sizes of axes": ("Resize", [(F32, X), None, None, (I64, [2])], [2, 3, 8, 8], {"axes": [2, 3]}, (2, 3, 8, 8)),
    "sizes, nothing declared": ("Resize", [(F32, X), None, None, (I64, [2])], None, {"axes": [2, 3]}, X),
    "scales": ("Resize", [(F32, X), None, (F32, [4])], [2, 3, 8, 8], {}, (2, 3, 8, 8)),
    "pads": ("Pad", [(F32, X), (I64, [8])], [2, 3, 6, 9], {"mode": "reflect"}, (2, 3, 6, 9)),
    "pads, less than there was": ("Pad", [(F32, X), (I64, [8])], [2, 3, 3, 2], {}, (2, 3, 3, 2)),
    "pads, nothing declared": ("Pad", [(F32, X), (I64, [8])], None, {"mode": "edge"}, X),
    "pads of axes": ("Pad", [(F32, X), (I64, [2]), None, (I64, [1])], None, {}, X),
    "pieces": ("Split", [(F32, [5, 2]), (I64, [1])], [5, 2], {}, (5, 2)),
    "squeeze": ("Squeeze", [(F32, [1, 3, 1]), (I64, [1])], None, {}, (3, 1)),
    "unsqueeze": ("Unsqueeze", [(F32, [3]), (I64, [2])], None, {}, (1, 1, 3)),
    "image": ("Col2Im", [(F32, [1, 5, 5]), (I64, [2]), (I64, [2])], [1, 1, 5, 5], {}, (1, 1, 5, 5)),
    "image with pads": (
        *("Col2Im", [(F32, [1, 5, 15]), (I64, [2]), (I64, [2])], [1, 1, 5, 5]),
        *({"pads": [0, 1, 0, 1]}, (1, 1, 5, 5)),
    ),
    "image with strides": (
        *("Col2Im", [(F32, [1, 9, 4]), (I64, [2]), (I64, [2])], [1, 1, 5, 5]),
        *({"strides": [2, 2]}, (1, 1, 5, 5)),
    ),
    "image of three axes": (
        *("Col2Im", [(F32, [1, 10, 12]), (I64, [3]), (I64, [3])], [1, 2, 3, 4, 5]),
        *({}, (1, 2, 3, 4, 5)),
    ),
    "image, nothing declared": ("Col2Im", [(F32, [1, 5, 6]), (I64, [2]), (I64, [2])], None, {}, (1, 5, 1, 6)),
    "ratio": ("Dropout", [(F32, X), (F32, [])], X, {}, X),
    "cumsum": ("CumSum", [(F32, [4]), (I64, [])], [4], {}, (4,)),
    "divided": ("Div", [(I32, [4]), (I32, [4])], [4], {}, (4,)),
    **{f"Reduce{n}": (f"Reduce{n}", [(F32, X), (I64, [2])], None, {"keepdims": 0}, (4, 4)) for n in REDUCTIONS},
}


@pytest.mark.parametrize("name", CASES)
def test_the_op_runs(name):
    op, inputs, made, attributes, shape = CASES[name]
    _, found = run(model(op, inputs, made, **attributes))
    assert found.shape == tuple(shape)


def test_real_numbers_are_left_to_chance():
    told = told_inputs(ir.from_proto(model("Div", [(F32, [4]), (F32, [4])], [4])))
    assert told == {}


def test_a_shape_is_found_behind_a_cast():
    nodes = [helper.make_node("Cast", ["s"], ["s64"], to=I64), helper.make_node("Reshape", ["x", "s64"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", F32, X), helper.make_tensor_value_info("s", I32, [2])],
        [helper.make_tensor_value_info("y", F32, [8, 12])],
    )
    told, found = run(onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))
    assert told["s"].tolist() == [8, 12]
    assert (told["s"].dtype, found.shape) == (np.int32, (8, 12))


def decoder(length: int | str = 5) -> onnx.ModelProto:
    """Attention whose lengths are sums of a mask, as builders of language models write it."""
    sizes = {
        "q": [2, length, 16],
        "k": [2, length, 8],
        "v": [2, length, 8],
        "past_k": [2, 1, 0, 8],
        "past_v": [2, 1, 0, 8],
    }
    nodes = [
        helper.make_node("Cast", ["mask"], ["numbers"], to=I32),
        helper.make_node("ReduceSum", ["numbers", "axis"], ["sum"], keepdims=0),
        helper.make_node("Sub", ["sum", "one"], ["last"]),
        helper.make_node("Shape", ["mask"], ["shape"], start=1),
        helper.make_node("Cast", ["shape"], ["total"], to=I32),
        helper.make_node(
            "GroupQueryAttention",
            [*sizes, "last", "total"],
            ["y", "made_k", "made_v"],
            domain="com.microsoft",
            num_heads=2,
            kv_num_heads=1,
        ),
    ]
    ports = [helper.make_tensor_value_info(name, F32, shape) for name, shape in sizes.items()]
    ports.append(helper.make_tensor_value_info("mask", I64, [2, length]))
    made = [helper.make_tensor_value_info(name, F32, None) for name in ("y", "made_k", "made_v")]
    constants = [
        onnx.numpy_helper.from_array(np.array([1], kind), name) for name, kind in (("axis", "i8"), ("one", "i4"))
    ]
    graph = helper.make_graph(nodes, "decoder", ports, made, constants)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def test_masks_that_are_counted_are_ones():
    told, made = run(decoder())
    assert told["mask"].tolist() == [[1] * 5] * 2
    assert made.shape == (2, 5, 16)


def test_masks_that_are_counted_are_ones_at_every_size(tmp_path):
    onnx.save(decoder("length"), tmp_path / "decoder.onnx")
    source = load(tmp_path / "decoder.onnx", DimBindings({"length": 3}, {}))
    specs = source.inputs_at({"length": 7})
    assert make_feeds(specs, 0)["mask"].tolist() == [[1] * 7] * 2
    assert [spec.name for spec in specs if spec.is_counted] == ["mask"]
