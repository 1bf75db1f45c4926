"""Products between Reshapes that lay rows flat and fold them again: the same bits with the lengths as they were."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.values.sizes import Dim, Term, number
from remat_cli.splitting.loops.flattened import without_flattening

BATCH, SEQ = (Dim((Term((name,)),)) for name in ("batch", "seq"))
ROWS = Dim((Term(("batch", "seq")),))
MOST = {"batch": 6, "seq": 40}
DICE = np.random.default_rng(0)


def built(op="MatMul", read=(48,), made=(64,), matrices=1, ends=("y",), added=None, **attributes):
    """`x` with these lengths behind batch and length, laid flat, multiplied, folded to such lengths; with its dims.

    What is `added` to the product has that shape.
    """
    rows, columns = int(np.prod(read)), int(np.prod(made))
    weights = [
        ("flat", np.array([-1, rows])),
        ("tail", np.array(made)),
        ("zero", np.array([0])),
        ("two", np.array([2])),
    ]
    matrix = (columns, rows) if attributes.get("transB") else (rows, columns)
    numbers = [("w", matrix)] if added is None else [("w", matrix), ("c", added)]
    weights = [(name, array.astype(np.int64)) for name, array in weights]
    weights += [(name, DICE.standard_normal(shape).astype(np.float32)) for name, shape in numbers]
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], "asked"),
        helper.make_node("Slice", ["shape", "zero", "two"], ["lengths"], "lengths"),
        helper.make_node("Concat", ["lengths", "tail"], ["folded"], "folded", axis=0),
        helper.make_node("Reshape", ["x", "flat"], ["list"], "lay"),
    ]
    for number_ in range(matrices):
        reads, made_ = ["list", *(name for name, _ in numbers)], [f"p{number_}"]
        if added is not None and op == "MatMul":
            nodes.append(helper.make_node(op, reads[:2], ["m"], "matrix"))
            nodes.append(helper.make_node("Add", [reads[2], "m"], made_, f"product{number_}"))
        else:
            nodes.append(helper.make_node(op, reads, made_, f"product{number_}", **attributes))
        nodes.append(helper.make_node("Reshape", [f"p{number_}", "folded"], [f"f{number_}"], f"fold{number_}"))
    nodes += [helper.make_node("Relu", ["f0"], ["y"], "relu"), helper.make_node("Relu", ["list"], ["z"], "other")]
    nodes = nodes if "z" in ends else nodes[:-1]
    port = helper.make_tensor_value_info
    inputs = [port("x", TensorProto.FLOAT, ["batch", "seq", *read])]
    outputs = [port(name, TensorProto.FLOAT, None) for name in ends]
    stored = [numpy_helper.from_array(array, name) for name, array in weights]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))
    dims = {"x": (BATCH, SEQ, *map(number, read)), "list": (ROWS, number(rows))}
    types = {}
    for number_ in range(matrices):
        dims |= {f"p{number_}": (ROWS, number(columns)), f"f{number_}": (BATCH, SEQ, *map(number, made))}
        types[f"product{number_}"] = types["matrix"] = (TensorType("float", (240, columns)),)
        types[f"fold{number_}"] = (TensorType("float", (6, 40, *made)),)
    return model, dims, types | {"lay": (TensorType("float", (240, rows)),)}


def outputs(model, feed):
    return ort.InferenceSession(ir.to_proto(model).SerializeToString()).run(None, {"x": feed})


@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
@pytest.mark.parametrize("read", [(48,), (3, 16), (1, 300)], ids=str)
@pytest.mark.parametrize("made", [(64,), (4, 16, 1)], ids=str)
def test_a_product_keeps_its_lengths_and_bits(op, read, made):
    model, dims, types = built(op, read, made)
    found = without_flattening(model, dims, types, MOST)
    kinds = [node.op_type for node in found.model.graph]
    assert "Gemm" not in kinds
    assert kinds.count("Reshape") == (len(read) > 1) + (len(made) > 1)
    product = next(node for node in found.model.graph if node.op_type == "MatMul")
    assert found.dims[product.outputs[0].name] == (BATCH, SEQ, number(int(np.prod(made))))
    assert found.types[product.name] == (TensorType("float", (6, 40, int(np.prod(made)))),)
    for batch, seq in ((6, 40), (1, 1), (2, 1), (1, 7), (5, 13)):
        feed = DICE.standard_normal((batch, seq, *read)).astype(np.float32)
        (one,), (other,) = outputs(model, feed), outputs(found.model, feed)
        assert one.shape == other.shape == (batch, seq, *made)
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("added", [(64,), (1, 64), (1,), ()], ids=str)
@pytest.mark.parametrize(("op", "read"), [("Gemm", (48,)), ("Gemm", (256,)), ("MatMul", (48,)), ("MatMul", (256,))])
def test_what_a_dense_layer_adds_is_added_behind_the_product(op, read, added):
    model, dims, types = built(op, read, added=added, **({"transB": 1} if op == "Gemm" else {}))
    found = without_flattening(model, dims, types, MOST)
    assert [node.op_type for node in found.model.graph] == ["MatMul", "Add", "Relu"]
    assert set(found.model.graph.initializers) >= {"w/turned" if op == "Gemm" else "w", "c"}
    made = {value.name for node in found.model.graph for value in node.outputs[:1] if node.op_type != "Relu"}
    assert [found.dims[name] for name in made] == [(BATCH, SEQ, number(64))] * 2
    for batch, seq in ((6, 40), (1, 1), (2, 1), (5, 13)):
        feed = DICE.standard_normal((batch, seq, *read)).astype(np.float32)
        (one,), (other,) = outputs(model, feed), outputs(found.model, feed)
        assert one.tobytes() == other.tobytes()


def test_what_is_added_between_two_runs_of_a_deep_product_has_other_bits_so_that_it_stays():
    model, dims, types = built("Gemm", (257,), added=(64,))
    assert without_flattening(model, dims, types, MOST).model is model
    plain, dims, types = built("Gemm", (300,), transB=1)
    found = without_flattening(plain, dims, types, MOST)
    feed = DICE.standard_normal((5, 13, 300)).astype(np.float32)
    assert [node.op_type for node in found.model.graph] == ["MatMul", "Relu"]
    assert outputs(plain, feed)[0].tobytes() == outputs(found.model, feed)[0].tobytes()


def test_a_list_that_others_read_stays_for_them():
    model, dims, types = built(matrices=3, ends=("y", "z", "f1", "p2"))
    found = without_flattening(model, dims, types, MOST)
    products = [node for node in found.model.graph if node.op_type == "MatMul"]
    assert sorted(each.inputs[0].name for each in products) == [
        "list",
        "x",
        "x",
    ]  # of p2 an output is made
    assert [(value.name, value.dtype) for value in found.model.graph.outputs] == [
        (name, ir.DataType.FLOAT) for name in ("y", "z", "f1", "p2")
    ]
    feed = DICE.standard_normal((3, 5, 48)).astype(np.float32)
    for one, other in zip(outputs(model, feed), outputs(found.model, feed), strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    "changed",
    [
        {"op": "Gemm", "alpha": 0.5},
        {"op": "Gemm", "beta": 0.5, "added": (64,)},
        {"op": "Gemm", "added": (240, 64)},
        {"added": (240, 64)},
        {"added": (64,), "read": (300,)},
        {"op": "Gemm", "transA": 1},
        {"ends": ("p0",)},
    ],
    ids=str,
)
def test_what_is_no_plain_product_stays(changed):
    model, dims, types = built(**changed)
    assert without_flattening(model, dims, types, MOST).model is model


def test_a_gemm_of_another_type_than_float_stays():
    model, dims, types = built("Gemm")
    half = ir.tensor(np.zeros((48, 64), np.float16), name="w")
    model.graph.initializers["w"].const_value = half
    assert without_flattening(model, dims, types, MOST).model is model


def test_lengths_that_are_not_those_before_stay():
    model, dims, types = built()
    assert without_flattening(model, dims | {"f0": (SEQ, BATCH, number(64))}, types, MOST).model is model
    one = {"x": (number(1), SEQ, number(48)), "list": (SEQ, number(48)), "f0": (number(1), SEQ, number(64))}
    assert without_flattening(model, dims | one, types, MOST).model is not model
    assert without_flattening(model, {}, types, MOST).model is model
