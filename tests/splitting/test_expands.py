"""Expands that readers can do without: gone with the same bits, kept where a shape comes from nowhere else."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from remat_cli.core.values.sizes import Dim, Term
from remat_cli.splitting.loops.expands import without_expands
from remat_cli.splitting.rules.table import RULES

SEQ, ONE, HEADS = Dim((Term(("seq",)),)), Dim((), 1), Dim((), 3)
WHOLE, MASK = (HEADS, SEQ, SEQ), (ONE, ONE, SEQ)
OF_LOGIC = {"And", "Or", "Xor"}
BROADCASTERS = [op_type for (_, op_type), rule in RULES.items() if rule.takes_one_for_copies]


def expanding(op_type: str, swap: bool = False) -> ir.Model:
    """An op that reads a tensor and a mask expanded to its shape."""
    kind = TensorProto.BOOL if op_type in OF_LOGIC else TensorProto.FLOAT
    reads = ["repeated", "x"] if swap else ["x", "repeated"]
    reads = ["flag", *reads] if op_type == "Where" else reads
    made = "y" if op_type != "Alone" else "repeated"
    nodes = [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Expand", ["mask", "shape"], ["repeated"])]
    nodes += [helper.make_node(op_type, reads, ["y"])] if made == "y" else []
    port = helper.make_tensor_value_info
    inputs = [port("x", kind, [3, "seq", "seq"]), port("mask", kind, [1, 1, "seq"])]
    inputs += [port("flag", TensorProto.BOOL, [1, "seq", "seq"])] if op_type == "Where" else []
    compares = {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
    result = port(made, TensorProto.BOOL if op_type in compares else kind, [3, "seq", "seq"])
    graph = helper.make_graph(nodes, "g", inputs, [result])
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


DIMS = {"x": WHOLE, "mask": MASK, "flag": (ONE, SEQ, SEQ), "repeated": WHOLE, "y": WHOLE}


@pytest.mark.parametrize("op_type", sorted(BROADCASTERS))
@pytest.mark.parametrize("swap", [False, True])
def test_bits_stay(op_type, swap):
    model = expanding(op_type, swap)
    lean = without_expands(model, DIMS)
    assert "Expand" not in [node.op_type for node in lean.graph]
    sessions = [ort.InferenceSession(ir.to_proto(each).SerializeToString()) for each in (model, lean)]
    rng = np.random.default_rng(0)
    for seq in (1, 2, 7, 64, 129):
        feeds = {"x": rng.standard_normal((3, seq, seq)), "mask": rng.standard_normal((1, 1, seq))}
        feeds = {name: array > 0 if op_type in OF_LOGIC else array.astype(np.float32) for name, array in feeds.items()}
        feeds |= {"flag": rng.random((1, seq, seq)) > 0.5} if op_type == "Where" else {}
        whole, same = (session.run(None, feeds)[0] for session in sessions)
        assert whole.tobytes() == same.tobytes(), seq


@pytest.mark.parametrize("op_type", ["Min", "Max", "Add", "Where"])
def test_a_tensor_of_one_number_is_that_number(op_type):
    """T5 takes the least of its buckets and such a tensor, of the shape of all pairs of positions."""
    model = expanding(op_type)
    made, at = next(node for node in model.graph if node.op_type == "Expand"), 1
    filling = ir.AttrTensor("value", ir.tensor(np.array([0.3], np.float32)))
    full = ir.Node("", "ConstantOfShape", [made.inputs[at]], [filling], num_outputs=1, name="full")
    full.outputs[0].name = "full"
    model.graph.insert_before(made, full)
    made.outputs[0].replace_all_uses_with(full.outputs[0])
    model.graph.remove(made, safe=True)
    lean = without_expands(model, DIMS | {"full": WHOLE})
    assert "ConstantOfShape" not in [node.op_type for node in lean.graph]
    sessions = [ort.InferenceSession(ir.to_proto(each).SerializeToString()) for each in (model, lean)]
    rng = np.random.default_rng(0)
    for seq in (1, 2, 7, 64, 129):
        feeds = {"x": rng.standard_normal((3, seq, seq)).astype(np.float32), "mask": np.zeros((1, 1, seq), np.float32)}
        feeds |= {"flag": rng.random((1, seq, seq)) > 0.5} if op_type == "Where" else {}
        whole, same = (session.run(None, feeds)[0] for session in sessions)
        assert whole.tobytes() == same.tobytes(), seq


@pytest.mark.parametrize(
    ("op_type", "dims"),
    [
        ("Pow", DIMS),  # has other bits for one exponent than for many
        ("Alone", DIMS),
        ("Add", DIMS | {"x": (HEADS, ONE, SEQ)}),  # the shape comes from the Expand alone
        ("Add", {}),
    ],
)
def test_what_is_needed_stays(op_type, dims):
    model = expanding(op_type)
    assert without_expands(model, dims) is model


def test_of_two_expands_one_stays():
    model = expanding("Add")
    (add,), shape = [node for node in model.graph if node.op_type == "Add"], model.graph[0].outputs[0]
    other = ir.Node("", "Expand", [model.graph.inputs[1], shape], num_outputs=1, name="other")
    other.outputs[0].name = "other"
    model.graph.insert_before(add, other)
    add.replace_input_with(0, other.outputs[0])
    lean = without_expands(model, DIMS | {"other": WHOLE})
    assert [node.op_type for node in lean.graph].count("Expand") == 1


def test_what_is_repeated_gives_a_length_of_its_own():
    """A mask of a batch, expanded to pairs of positions, beside a bias of heads: T5 for batches."""
    batch = Dim((Term(("batch",)),))
    dims = {"mask": (batch, ONE, SEQ), "x": (ONE, SEQ, SEQ), "repeated": (batch, SEQ, SEQ), "y": (batch, SEQ, SEQ)}
    lean = without_expands(expanding("Add"), dims)
    assert "Expand" not in [node.op_type for node in lean.graph]
    longer = {**dims, "y": (batch, SEQ, Dim((Term(("seq",)),), 1))}
    assert "Expand" in [node.op_type for node in without_expands(expanding("Add"), longer).graph]


def test_ops_that_nothing_read_before_stay():
    """The runtime runs them, and does not fuse the product that such an op reads too."""
    model = expanding("Add")
    idle = ir.Node("", "Neg", [model.graph.inputs[0]], name="idle")
    model.graph.append(idle)
    lean = without_expands(model, DIMS)
    assert [node.op_type for node in lean.graph] == ["Add", "Neg"]
