"""A compiled file says what not to do to it, and tells whether somebody did."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from remat_cli.onnx_io.read.load import save
from remat_cli.onnx_io.write.as_written import GRAPH_KEY, NOTE, condition_of, signed
from remat_cli.onnx_io.write.packed import ENTRY
from remat_cli.onnx_io.write.steady import steady
from remat_cli.ort_rules.steady import SteadyForm
from tests.onnx_io.test_steady import small_model


@pytest.fixture
def path(tmp_path):
    """A file in the steady form with an ONNX Runtime optimiser's open dimensions, as `compile` writes it."""
    model = ir.from_proto(small_model())
    for value in (value for node in model.graph for value in node.outputs if value.name == "a"):
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["r3d0", 2**12])
    save(signed(steady(model, SteadyForm((2**19 + 256,)))), tmp_path / "compiled.onnx")
    return tmp_path / "compiled.onnx"


def nodes_of(graph):
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from nodes_of(attribute.g)


def node_of(proto, op_type):
    return next(node for node in nodes_of(proto.graph) if node.op_type == op_type)


def test_the_file_says_it_where_tools_look(path):
    proto = onnx.load(path)
    assert proto.doc_string == proto.graph.doc_string == NOTE
    assert GRAPH_KEY in {entry.key for entry in proto.metadata_props}


def test_what_the_original_said_stays_and_nothing_is_said_twice():
    model = ir.from_proto(small_model())
    model.doc_string = "a net"
    assert signed(signed(model)).doc_string == f"{NOTE} a net"
    assert model.doc_string == "a net"


def test_it_is_as_written(path):
    assert condition_of(path).is_as_written
    assert condition_of(path).warnings == ()


def test_a_file_that_says_nothing_is_not_judged(tmp_path):
    onnx.save(small_model(), tmp_path / "other.onnx")
    found = condition_of(tmp_path / "other.onnx")
    assert (found.is_as_written, found.has_packed, found.warnings) == (None, None, ())
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    assert condition_of(tmp_path / "broken.onnx").is_as_written is None


def saved(proto):
    return proto


def inferred(proto):
    return onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)


def renamed(proto):
    """Another name for everything but inputs and outputs, another producer, other metadata."""
    proto.producer_name, proto.ir_version = "tool", 10
    kept = {port.name for port in (*proto.graph.input, *proto.graph.output)}

    def name(old):
        return old if old in kept or not old else f"new/{old}"

    def rename(graph):
        for value in (*graph.initializer, *graph.value_info, *graph.output):
            value.name = name(value.name)
        for node in graph.node:
            node.name = f"new/{node.name}"
            node.input[:] = map(name, node.input)
            node.output[:] = map(name, node.output)
            for attribute in node.attribute:
                rename(attribute.g)

    rename(proto.graph)
    return proto


def as_fields(proto):
    """Weights as numbers in place of bytes."""
    for weight in proto.graph.initializer:
        array = numpy_helper.to_array(weight)
        weight.CopyFrom(helper.make_tensor(weight.name, weight.data_type, array.shape, array.ravel().tolist()))
    return proto


@pytest.mark.parametrize("tool", [saved, inferred, renamed, as_fields])
def test_what_changes_nothing_does_not_matter(path, tool):
    onnx.save(tool(onnx.load(path)), path)
    assert condition_of(path).is_as_written


def with_data_file(proto, path):
    onnx.save(proto, path, save_as_external_data=True, location="w.data", size_threshold=0, convert_attribute=False)


def test_where_weights_lie_does_not_matter_but_what_they_are_does(path):
    with_data_file(onnx.load(path), path)
    assert condition_of(path).is_as_written
    data = path.with_name("w.data")
    data.write_bytes(bytes([data.read_bytes()[0] ^ 1]) + data.read_bytes()[1:])
    assert condition_of(path).is_as_written is False


def other_op(proto):
    node_of(proto, "Add").op_type = "Sub"


def other_attribute(proto):
    node_of(proto, "LSTM").attribute[0].i += 1


def other_input(proto):
    node_of(proto, "Sub").input[:] = reversed(node_of(proto, "Sub").input)


def bodies(graph):
    for node in nodes_of(graph):
        yield from (attribute.g for attribute in node.attribute if attribute.HasField("g"))


def other_order(proto):
    """The sum, which is ready once there is something to add up, is put before the choice."""
    body = next(body for body in bodies(proto.graph) if any(node.name == "cast" for node in body.node))
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in body.node]
    names = [node.name for node in nodes]
    nodes.insert(names.index("choose"), nodes.pop(names.index("sum")))
    del body.node[:]
    body.node.extend(nodes)


def other_weight(proto):
    weight = next(each for each in proto.graph.initializer if each.name == "w")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) + np.float32(1), "w"))


def other_opset(proto):
    proto.opset_import[0].version += 1


def known_shape(proto):
    """A dimension is said that was hidden."""
    for graph in bodies(proto.graph):
        for value in graph.value_info:
            if any(dim.dim_param == "r3d0" for dim in value.type.tensor_type.shape.dim):
                value.type.tensor_type.shape.dim[0].dim_value = 2
                return
    raise AssertionError


@pytest.mark.parametrize(
    "change", [other_op, other_attribute, other_input, other_order, other_weight, other_opset, known_shape]
)
def test_what_changes_something_is_seen(path, change):
    proto = onnx.load(path)
    change(proto)
    onnx.save(proto, path)
    found = condition_of(path)
    assert found.is_as_written is False
    assert "compile last" in found.warnings[0]


def test_packed_copies_that_are_lost_are_noticed(path, tmp_path):
    """onnx reads and writes no entries of external data that it does not know."""
    save(signed(ir.load(path), packed_weights=1), path)
    proto = onnx.load(path)
    with_data_file(proto, path)
    assert condition_of(path).has_packed is False
    assert "lost the packed copies" in condition_of(path).warnings[-1]
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].external_data.add(key=f"{ENTRY}0", value="1|0;4;0")
    path.write_bytes(proto.SerializeToString())
    assert condition_of(path).has_packed
    assert condition_of(path).warnings == ()
