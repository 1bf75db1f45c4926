"""Training steps of models as exporters write them when they simplify nothing: sequences, types that nobody wrote."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from remat_cli.autodiff.forward import Rebatch
from remat_cli.autodiff.reverse import Recorder
from remat_cli.autodiff.rules import RULES
from remat_cli.autodiff.step import build_step
from remat_cli.autodiff.tape import Call, Tape
from remat_cli.base.errors import ModelError
from remat_cli.core.values.training import TrainOptions
from tests.autodiff.rule_case import runtime

RNG = np.random.default_rng(5)
HEAD = '<ir_version: 8, opset_import: ["" : 18]>\nnet (float[4, 6] x) => (float y)\n<float[6, 6] w'
ENDS = "square = Mul(joined, joined)\n y = ReduceMean<keepdims = 0>(square)"
CUT = "h = MatMul(x, w)\n s = SplitToSequence<axis = -1>(h, sizes)\n"
GRADIENTS = TrainOptions(loss_output="y", optimizer=None)


def model_of(constants: str, text: str, **weights: np.ndarray) -> ir.Model:
    """The body as a model with a random weight, without a type for anything inside."""
    proto = onnx.parser.parse_model(f"{HEAD}{constants}>\n{{\n {text}\n {ENDS}\n}}")
    weights["w"] = RNG.standard_normal((6, 6)).astype(np.float32)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    del proto.graph.value_info[:]
    return ir.from_proto(proto)


def check(model: ir.Model) -> ir.Model:
    """The step's loss is the model's, and its gradient is the slope along a random direction."""
    x = RNG.standard_normal((4, 6)).astype(np.float32)
    proto = ir.to_proto(model)
    step = build_step(model, GRADIENTS)
    loss, grad = runtime(ir.to_proto(step.model), {**step.state, "x": x})
    np.testing.assert_allclose(loss, runtime(proto, {"x": x})[0], rtol=1e-6)
    direction = RNG.standard_normal((6, 6)).astype(np.float32)
    ahead, behind = (
        runtime(ir.to_proto(step.model), {"x": x, "w": step.state["w"] + sign * np.float32(1e-2) * direction})[0]
        for sign in (1, -1)
    )
    assert (ahead - behind) / 2e-2 == pytest.approx(float((grad * direction).sum()), rel=1e-2, abs=1e-3)
    return step.model


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [("int64[3] sizes = {1, 3, 2}", 3), ("int64 sizes = {4}", 2), ("int64 sizes = {2}", 3)],
)
def test_parts_of_a_split_that_is_a_sequence_get_their_gradients(sizes: str, parts: int) -> None:
    text = "a = SequenceAt(s, last)\n b = SequenceAt(s, first)\n c = Tanh(b)\n joined = Concat<axis = 1>(a, c)"
    step = check(model_of(f", {sizes}, int64 first = {{0}}, int64 last = {{-1}}", CUT + text))
    assert not [node for node in step.graph if "Sequence" in node.op_type]
    split = next(node for node in step.graph if node.op_type == "Split")
    assert len(split.outputs) == parts


@pytest.mark.parametrize(
    "text",
    [
        "s = SplitToSequence<axis = 1, keepdims = 0>(h)\n a = SequenceAt(s, one)\n joined = Exp(a)",
        "s = SplitToSequence<axis = 1>(h)\n joined = ConcatFromSequence<axis = 0>(s)",
        "e = Exp(h)\n s = SequenceConstruct(h, e)\n joined = ConcatFromSequence<axis = 1>(s)",
        "e = Exp(h)\n s = SequenceConstruct(h, e)\n joined = ConcatFromSequence<axis = 1, new_axis = 1>(s)",
        "s = SequenceConstruct(h, h)\n n = SequenceLength(s)\n f = CastLike(n, h)\n joined = Mul(h, f)",
    ],
)
def test_other_ways_with_sequences(text: str) -> None:
    check(model_of(", int64 one = {1}", "h = MatMul(x, w)\n " + text))


def test_shapes_that_are_computed_as_exporters_do_need_no_declared_types() -> None:
    text = (
        "h = MatMul(x, w)\n d = Shape(h)\n u = Gather(d, first)\n m = Concat<axis = 0>(u, six)\n e = Expand(half, m)\n"
        " f = CastLike(e, h)\n k = Mul(h, f)\n r = Reshape(k, m)\n i = Identity(r)\n joined = CastLike(i, x)"
    )
    step = check(model_of(", int64[1] six = {6}, int64[1] first = {0}, double half = {0.5}", text))
    assert "Shape" not in {node.op_type for node in step.graph}
    made = [value for node in step.graph for value in node.outputs if value.name]
    assert all(value.dtype not in (None, ir.DataType.UNDEFINED) for value in made)


def test_another_batch_goes_through_a_sequence() -> None:
    constants = ", int64 sizes = {3}, int64 first = {0}, int64[2] shape = {4, 3}"
    model = model_of(constants, CUT + "a = SequenceAt(s, first)\n joined = Reshape(a, shape)")
    model.graph.inputs[0].shape = ir.Shape([2, 6])
    step = build_step(model, GRADIENTS, batch=Rebatch(4, 2))
    loss, _ = runtime(ir.to_proto(step.model), {**step.state, "x": np.ones((2, 6), np.float32)})
    assert np.isfinite(loss)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("t = SequenceInsert(s, h)\n joined = SequenceAt(t, far)", r"\(SequenceInsert\) reads a sequence of tensors"),
        ("joined = SequenceAt(s, far)", r"\(SequenceAt\): there is no tensor 7 among 3"),
        (
            "n = ReduceMax<keepdims = 0>(x)\n i = Cast<to = 7>(n)\n joined = SequenceAt(s, i)",
            "its indices are computed",
        ),
    ],
)
def test_what_cannot_be_spelt_out_says_so(text: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        build_step(model_of(", int64 sizes = {2}, int64 far = {7}", CUT + text), GRADIENTS)


@pytest.mark.parametrize("op_type", ["Add", "CastLike", "LayerNormalization", "Cast", "Concat"])
def test_what_reads_a_value_of_unknown_type_is_written_all_the_same(op_type: str) -> None:
    tape, number = Tape(), ir.Value(name="n", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    unknown = tape.ops("Mystery", (number,), 1, domain="somebody")[0]
    attributes = {"Cast": {"to": 1}, "Concat": {"axis": 0}}.get(op_type, {})
    inputs = (unknown,) if op_type == "Cast" else (unknown, number)
    result = tape.op(op_type, *inputs, **attributes)
    assert result.dtype in (None, ir.DataType.FLOAT)
    again = tape.op("Relu", tape.op("CastLike", unknown, unknown))
    assert again.dtype is None


def test_an_op_of_unknown_type_on_the_way_is_not_passed_over() -> None:
    recorder, number = Recorder(Tape(), RULES), ir.Value(name="n", type=ir.TensorType(ir.DataType.FLOAT))
    recorder.active.add(number)
    unknown = recorder.run(Call("who", "Mystery", (number,), {}, domain="somebody"), [""])[0]
    assert recorder.without_rule([recorder.op("Relu", unknown)]) == {"somebody:Mystery": 1}


@pytest.mark.parametrize("axis", [0, 1])
def test_a_large_table_is_looked_up_where_all_is_constant(axis: int) -> None:
    table = np.arange(200 * 3).reshape((200, 3) if axis == 0 else (3, 200))
    places = RNG.integers(-200, 200, (6, 2) if axis == 0 else (2, 6))
    text = (
        f"g = GatherElements<axis = {axis}>(table, places)\n f = CastLike(g, w)\n r = Reshape(f, shape)\n"
        " k = MatMul(r, w)\n q = ReduceSum<keepdims = 0>(x)\n joined = Add(k, q)"
    )
    check(model_of(", int64[2] shape = {2, 6}", text, table=table, places=places))
