"""Inputs that have a default: a caller may give others in the next run, so that nothing of them is written down."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from remat_cli.onnx_io.read.interface import fixed_value
from remat_cli.onnx_io.read.op_facts import may_train
from remat_cli.onnx_io.write.opset import lowered
from remat_cli.splitting.recast.taken_branches import with_taken_branches
from remat_cli.splitting.tiles.build import split_model
from tests.helpers import to_bytes
from tests.splitting.random_models import Sample, Sketch
from tests.splitting.split_case import Case, make_case, run_default
from tests.splitting.test_propose import proposer, share

ROWS, WIDTH, INNER = 64, 32, 256
KINDS = {
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(bool): TensorProto.BOOL,
}


def with_defaults(model: onnx.ModelProto, names: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """The model, some of whose constants are inputs too."""
    for name, value in names.items():
        model.graph.input.append(helper.make_tensor_value_info(name, KINDS[value.dtype], value.shape))
    return model


def layer(sketch: Sketch, held: str, inner: int = INNER) -> str:
    """A layer that is wide inside."""
    up = sketch.add("MatMul", [held, sketch.weight(WIDTH, inner)], (ROWS, inner))
    up = sketch.add("Sin", [sketch.add("Erf", [up], (ROWS, inner))], (ROWS, inner))
    down = sketch.add("MatMul", [up, sketch.weight(inner, WIDTH)], (ROWS, WIDTH))
    return sketch.add("Add", [down, held], (ROWS, WIDTH))


def read_by(op_type: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model with an op that reads a default, wide layers around it, and what a caller may give in its place."""
    sketch = Sketch(np.random.default_rng(0))
    held = layer(sketch, sketch.input("x", (ROWS, WIDTH)))
    shape, attributes = (ROWS, WIDTH), {}
    default, other = np.array([ROWS], np.int64), np.array([5], np.int64)
    if op_type == "Slice":
        reads = [held, sketch.constant(np.zeros(1, np.int64)), named := sketch.constant(default)]
    elif op_type == "TopK":
        reads, attributes = [held, named := sketch.constant(default)], {"axis": 0}
    elif op_type == "CumSum":
        default, other = np.array(1, np.int64), np.array(0, np.int64)
        reads = [held, named := sketch.constant(default)]
    elif op_type == "Where":
        default, other = np.ones((ROWS, 1), bool), np.arange(ROWS).reshape(ROWS, 1) % 3 == 0
        reads = [named := sketch.constant(default), held, sketch.constant(np.zeros((ROWS, WIDTH), np.float32))]
    elif op_type == "Reshape":
        default, other = np.array([ROWS, WIDTH], np.int64), np.array([-1, WIDTH * 2], np.int64)
        reads = [held, named := sketch.constant(default)]
    else:
        default = sketch.rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
        other, reads = -2 * default, [held, named := sketch.constant(default)]
    if op_type == "TopK":
        made, _ = sketch.add_several(op_type, reads, [shape, shape], **attributes)
    else:
        made = sketch.add(op_type, reads, shape, **attributes)
    inner = INNER // 2 if default.shape == (1,) else INNER  # so that a plan need not cut what is left whole
    last = sketch.add("Exp", [made], shape) if op_type == "Reshape" else layer(sketch, made, inner)
    return with_defaults(sketch.model([last]), {named: default}), {named: other}


@pytest.mark.parametrize("op_type", ["Add", "CumSum", "Reshape", "Slice", "TopK", "Where"])
def test_what_a_caller_gives_in_place_of_a_default_is_what_tiles_read(op_type):
    model, given = read_by(op_type)
    feeds = {"x": np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float32)}
    case = make_case(Sample(model, feeds))
    looking, count = proposer(case), 0
    wanted = [run_default(model.SerializeToString(), {**feeds, **more}) for more in ({}, given)]
    assert wanted[0][0].shape != wanted[1][0].shape or not np.array_equal(wanted[0][0], wanted[1][0])
    for percent in (85, 60, 40):
        for each in [*looking.propose(share(case, percent)), *looking.propose_needy(share(case, percent))]:
            split, count = to_bytes(case.lean(split_model(each.view, each.order, each.parts))), count + 1
            for more, (outputs,) in zip(({}, given), wanted, strict=True):
                (found,) = run_default(split, {**feeds, **more})
                assert found.shape == outputs.shape, (percent, each.form)
                assert found.tobytes() == outputs.tobytes(), (percent, each.form)
    assert count


def _case(op_type: str) -> Case:
    model, _ = read_by(op_type)
    return make_case(Sample(model, {"x": np.zeros((ROWS, WIDTH), np.float32)}))


def test_rules_know_no_value_of_a_default():
    case = _case("CumSum")
    op = next(op for op in case.view.ops if op.node.op_type == "CumSum")
    assert op.constant(1) is None
    assert (op.is_fixed(1), op.defaults[1]) == (False, True)


def test_a_default_is_no_fixed_value():
    model = ir.from_proto(read_by("Add")[0])
    default = next(value for value in model.graph.inputs if value.name != "x")
    weight = next(value for value in model.graph.initializers.values() if not value.is_graph_input())
    assert default.const_value is not None
    assert fixed_value(default) is None
    assert fixed_value(weight) is weight.const_value
    assert fixed_value(None) is None


def test_branches_that_a_default_chooses_are_not_taken_for_all_sizes():
    """Also where the numbers that are compared are known of the file."""
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op_type, ["x"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )
        for name, op_type in (("then", "Sin"), ("else", "Erf"))
    }
    sketch = Sketch(np.random.default_rng(0))
    sketch.input("x", (4,))
    named = sketch.constant(np.array(3, np.int64))
    flag = sketch.add("Greater", [named, sketch.constant(np.array(1, np.int64))], ())
    model = sketch.model([sketch.add("If", [flag], (4,), **branches)])
    assert [node.op_type for node in with_taken_branches(ir.from_proto(model)).graph] == ["Sin"]
    open_model = ir.from_proto(with_defaults(model, {named: np.array(3, np.int64)}))
    assert with_taken_branches(open_model) is open_model


def test_a_dropout_that_a_caller_may_switch_on_may_train():
    nodes = [helper.make_node("Dropout", ["x", "ratio", "training"], ["y"], name="d")]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    weights = [
        onnx.numpy_helper.from_array(np.array(0.5, np.float32), "ratio"),
        onnx.numpy_helper.from_array(np.array(False), "training"),
    ]
    graph = helper.make_graph(nodes, "dropout", ports[:1], ports[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert not may_train(ir.from_proto(model).graph.node(0))
    assert may_train(ir.from_proto(with_defaults(model, {"training": np.array(False)})).graph.node(0))


def test_a_default_becomes_no_attribute_of_an_older_operator_set():
    """An Unsqueeze of opset 12 says its axes as an attribute, which no caller could change."""
    sketch = Sketch(np.random.default_rng(0))
    sketch.input("x", (4,))
    named = sketch.constant(np.array([0], np.int64))
    model = sketch.model([sketch.add("Unsqueeze", ["x", named], (1, 4))])
    assert lowered(ir.from_proto(model), 12).graph.opset_imports[""] == 12
    kept = lowered(ir.from_proto(with_defaults(model, {named: np.array([0], np.int64)})), 12)
    assert kept.graph.opset_imports[""] > 12
    assert len(kept.graph.node(0).inputs) == 2
