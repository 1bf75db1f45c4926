"""The steady form: same nodes, same order, same bits, same interface, and a way back."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.base.errors import ModelError
from remat_cli.onnx_io.read.load import DimBindings, load, save
from remat_cli.onnx_io.write.steady import EARLY_KEY, can_be_steady, form_of, seen_through, steady, weight_bytes_of
from remat_cli.ort_rules.steady import BODY, PREFIX, SteadyForm
from tests.helpers import run_profiled

FORMS = (SteadyForm(), SteadyForm((2**19 + 256,)), SteadyForm((2**19 + 256,), ("y",)))
SIZE = 2**12


def small_model(output_type: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Two inputs, two outputs, a large weight, a small one, and a subgraph that reads an outer value."""
    value = helper.make_tensor_value_info
    branch = helper.make_graph(
        [helper.make_node("Neg", ["a"], ["n"], name="neg")], "t", [], [value("n", TensorProto.FLOAT, None)]
    )
    other = helper.make_graph(
        [helper.make_node("Abs", ["a"], ["p"], name="abs")], "e", [], [value("p", TensorProto.FLOAT, None)]
    )
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"], name="mul"),
        helper.make_node("Add", ["a", "small"], ["b"], name="add"),
        helper.make_node("If", ["flag"], ["c"], name="choose", then_branch=branch, else_branch=other),
        helper.make_node("Sub", ["b", "c"], ["d"], name="sub"),
        helper.make_node("Cast", ["d"], ["y"], name="cast", to=output_type),
        helper.make_node("ReduceSum", ["b"], ["z"], name="sum", keepdims=0),
    ]
    weights = [
        numpy_helper.from_array(np.arange(SIZE, dtype=np.float32), "w"),
        numpy_helper.from_array(np.float32([3]), "small"),
    ]
    inputs = [value("x", TensorProto.FLOAT, [2, SIZE]), value("flag", TensorProto.BOOL, [])]
    outputs = [value("y", output_type, [2, SIZE]), value("z", TensorProto.FLOAT, [])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


FEEDS = {"x": np.linspace(-1, 1, 2 * SIZE, dtype=np.float32).reshape(2, SIZE), "flag": np.array(True)}


def opened() -> ir.Model:
    return ir.from_proto(small_model())


def test_weights_that_are_to_stay_outside_do_however_small():
    def of_body(model):
        body = next(node for node in model.graph if node.name == BODY).attributes["then_branch"].as_graph()
        return set(body.initializers), set(model.graph.initializers)

    inner, outer = of_body(steady(opened(), FORMS[0]))
    assert "small" in inner - outer
    inner, outer = of_body(steady(opened(), FORMS[0], {"small"}))
    assert "small" in outer - inner
    assert "w" in outer - inner


def test_small_weights_that_are_inputs_too_stay_outside(tmp_path):
    """A caller may replace their values; so do those that nobody reads, such as counts of batch norms."""
    proto = small_model()
    proto.graph.initializer.append(numpy_helper.from_array(np.int64(7), "count"))
    proto.graph.input.extend(
        [
            helper.make_tensor_value_info("small", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("count", TensorProto.INT64, []),
        ]
    )
    save(steady(ir.from_proto(proto), FORMS[0]), tmp_path / "steady.onnx")
    session = ort.InferenceSession(str(tmp_path / "steady.onnx"), providers=["CPUExecutionProvider"])
    plain = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for more in ({}, {"small": np.float32([5])}):
        pairs = zip(session.run(None, FEEDS | more), plain.run(None, FEEDS | more), strict=True)
        assert all(np.array_equal(*pair) for pair in pairs)


def test_weights_that_bodies_pack_go_inside_however_large():
    """Kernels in a body of a body pack nothing from the main graph, and bits would be others."""
    model = steady(opened(), FORMS[0], {"w"}, {"w"})
    body = next(node for node in model.graph if node.name == BODY).attributes["then_branch"].as_graph()
    assert "w" in set(body.initializers) - set(model.graph.initializers)
    assert "w" in seen_through(model).graph.initializers


@pytest.mark.parametrize("form", FORMS)
def test_bits_order_and_interface_stay(form, tmp_path):
    path = tmp_path / "steady.onnx"
    save(steady(opened(), form), path)
    onnx.checker.check_model(str(path), full_check=True)
    plain_order, plain, _ = run_profiled(small_model().SerializeToString(), FEEDS, exact=True)
    order, outputs, _ = run_profiled(path, FEEDS, exact=True)
    assert [name for name in order if not name.startswith(PREFIX)] == plain_order
    assert all(np.array_equal(one, other) for one, other in zip(plain, outputs, strict=True))
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [(each.name, each.type, each.shape) for each in session.get_outputs()] == [
        ("y", "tensor(float)", [2, SIZE]),
        ("z", "tensor(float)", []),
    ]
    for _ in range(3):
        again = session.run(None, FEEDS)
        assert all(np.array_equal(one, other) for one, other in zip(plain, again, strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_there_is_a_way_back(form, tmp_path):
    path = tmp_path / "steady.onnx"
    save(steady(opened(), form), path)
    model = ir.load(path)
    assert form_of(model) == form
    back, before = seen_through(model), opened()
    assert form_of(back) is None
    assert [node.name for node in back.graph] == [node.name for node in before.graph]
    assert [node.op_type for node in back.graph] == [node.op_type for node in before.graph]
    assert set(back.graph.initializers) == set(before.graph.initializers)
    ports = [(value.name, value.type, value.shape) for value in (*back.graph.inputs, *back.graph.outputs)]
    assert ports == [(value.name, value.type, value.shape) for value in (*before.graph.inputs, *before.graph.outputs)]
    save(back, path)
    _, outputs, _ = run_profiled(path, FEEDS, exact=True)
    _, plain, _ = run_profiled(small_model().SerializeToString(), FEEDS, exact=True)
    assert all(np.array_equal(one, other) for one, other in zip(plain, outputs, strict=True))


def test_a_model_is_read_through_the_form(tmp_path):
    path = tmp_path / "steady.onnx"
    save(steady(opened(), FORMS[1]), path)
    source = load(path, DimBindings())
    assert [node.name for node in source.ir.graph] == ["mul", "add", "choose", "sub", "cast", "sum"]
    assert [port.name for port in source.interface.outputs] == ["y", "z"]


def test_a_form_without_its_metadata_is_refused_by_name(tmp_path):
    path = tmp_path / "stripped.onnx"
    model = steady(opened(), FORMS[1])
    model.metadata_props.clear()
    save(model, path)
    with pytest.raises(ModelError, match="took its remat metadata out: use the model that it was made from"):
        load(path, DimBindings())


def test_the_model_that_is_given_stays_as_it_is():
    model = opened()
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    steady(model, FORMS[1])
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_large_weights_stay_outside():
    model = steady(opened(), FORMS[0])
    body = next(node for node in model.graph if node.name == BODY).attributes["then_branch"].as_graph()
    assert "w" in model.graph.initializers
    assert "small" in body.initializers


@pytest.mark.parametrize("form", FORMS)
def test_constants_are_counted(form):
    model = opened()
    own = [value for name, value in steady(model, form).graph.initializers.items() if name.startswith(PREFIX)]
    assert sum(value.const_value.nbytes for value in own) == weight_bytes_of(model, form)


def test_only_early_outputs_say_their_shape_inside():
    body = next(node for node in steady(opened(), FORMS[2]).graph if node.name == BODY).attributes["then_branch"]
    early, _ = body.as_graph().outputs
    assert early.shape == ir.Shape([2, SIZE])
    body = next(node for node in steady(opened(), FORMS[1]).graph if node.name == BODY).attributes["then_branch"]
    late, _ = body.as_graph().outputs
    assert not any(isinstance(dim, int) for dim in late.shape)


@pytest.mark.parametrize("told", ["7", "x", "0,,1", "-1"])
def test_early_outputs_that_are_none_are_not_read(told):
    model = steady(opened(), FORMS[2])
    model.metadata_props[EARLY_KEY] = told
    assert set(form_of(model).early) <= {"y", "z"}


def test_what_cannot_be_written():
    assert can_be_steady(opened())
    assert not can_be_steady(ir.from_proto(small_model(TensorProto.BFLOAT16)))
    old = small_model()
    old.opset_import[0].version = 10
    assert not can_be_steady(ir.from_proto(old))
    passed_on = small_model()
    passed_on.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [SIZE]))
    assert not can_be_steady(ir.from_proto(passed_on))
    without_inputs = small_model()
    del without_inputs.graph.node[:]
    without_inputs.graph.node.append(helper.make_node("Neg", ["w"], ["y"], name="neg"))
    del without_inputs.graph.output[1:]
    assert not can_be_steady(ir.from_proto(without_inputs))


@pytest.mark.parametrize("opset", [11, 12, 13, 21])
def test_every_opset_with_sequences_will_do(opset, tmp_path):
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], name="relu")],
        "g",
        [value("x", TensorProto.FLOAT, [2, 3])],
        [value("y", TensorProto.FLOAT, [2, 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    path = tmp_path / "steady.onnx"
    save(steady(ir.from_proto(model), FORMS[1]), path)
    onnx.checker.check_model(str(path), full_check=True)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(session.run(None, {"x": given})[0], np.maximum(given, 0))


@pytest.mark.parametrize("shape", [[2, 8], []])
def test_an_input_that_the_runtime_cannot_count_is_not_converted(shape, tmp_path):
    """Else it would copy all of a float16 input, and run an op that no plan has."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape) for name in ("x", "y")]
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], name="wide", to=TensorProto.FLOAT),
        helper.make_node("Exp", ["a"], ["b"], name="exp"),
        helper.make_node("Cast", ["b"], ["y"], name="narrow", to=TensorProto.FLOAT16),
    ]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    path, loaded = tmp_path / "steady.onnx", tmp_path / "loaded.onnx"
    before = sum(1 for node in steady(model, FORMS[1]).graph.all_nodes())
    save(steady(model, FORMS[1]), path)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(loaded)
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    assert sum(1 for node in ir.load(loaded).graph.all_nodes()) == before
    feed = np.ones(shape, np.float16)
    assert np.array_equal(session.run(None, {"x": feed})[0], np.exp(feed.astype(np.float32)).astype(np.float16))
