"""Models whose large weights stay in their files: read without contents, written piece by piece, the same bytes."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.base.errors import ModelError
from remat_cli.onnx_io.read import mapped
from remat_cli.onnx_io.read.load import DimBindings, load, read_proto
from remat_cli.onnx_io.read.mapped import is_inside, model_of, parsed
from remat_cli.onnx_io.read.untrusted import all_tensors, external_files
from remat_cli.onnx_io.read.wire import LEAST_BYTES, _varint
from remat_cli.onnx_io.write.contents import inline
from remat_cli.onnx_io.write.save import save

SIDE = 128  # a square of so many floats is just large enough
WEIGHTS = ("w", "half", "nibbles", "flags", "in_branch")


def weights() -> dict[str, onnx.TensorProto]:
    """Large ones of several types, one that is not large, one whose elements are numbers of the message."""
    random = np.random.default_rng(0)
    square = random.standard_normal((SIDE, SIDE)).astype(np.float32)
    packed = random.integers(0, 255, LEAST_BYTES, np.uint8).tobytes()
    made = {
        "w": numpy_helper.from_array(square, "w"),
        "half": numpy_helper.from_array(np.tile(square, (1, 2)).astype(np.float16), "half"),
        "nibbles": helper.make_tensor("nibbles", TensorProto.INT4, [2 * LEAST_BYTES], packed, raw=True),
        "flags": numpy_helper.from_array(np.tile(square, (4, 1)) > 0, "flags"),
        "small": numpy_helper.from_array(square[:2], "small"),
        "numbers": helper.make_tensor("numbers", TensorProto.FLOAT, [SIDE, SIDE], square.ravel().tolist()),
    }
    made["w"].doc_string = "of the first layer"
    return made


def model() -> onnx.ModelProto:
    """A branch has a large weight of its own; other weights are there and hardly read."""
    inner = helper.make_graph(
        [helper.make_node("MatMul", ["x", "in_branch"], ["t"], "T")],
        "then",
        [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, (1, SIDE))],
        [numpy_helper.from_array(np.eye(SIDE, dtype=np.float32), "in_branch")],
    )
    other = helper.make_graph(
        [helper.make_node("MatMul", ["x", "numbers"], ["e"], "E")],
        "else",
        [],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, (1, SIDE))],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "A"),
        helper.make_node("ReduceSum", ["a"], ["s"], "S", keepdims=0),
        helper.make_node("Cast", ["s"], ["c"], "C", to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["y"], "F", then_branch=inner, else_branch=other),
    ]
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, SIDE])] for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", *ports, list(weights().values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mapped, "LEAST_FILE_BYTES", 0)
    onnx.save(model(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def inside(path: Path, proto: onnx.ModelProto) -> set[str]:
    return {tensor.name for tensor in all_tensors(proto.graph) if is_inside(path, tensor)}


def read(path: Path) -> ir.Model:
    return model_of(parsed(path), path)


def test_large_weights_stay_in_the_file(path):
    proto = parsed(path)
    assert inside(path, proto) == set(WEIGHTS)
    assert len(proto.SerializeToString()) < path.stat().st_size / 4
    assert external_files(path, proto) == []
    assert not inside(path, parsed(path, whole=True))


def test_their_contents_are_those_of_the_file(path):
    wanted = {tensor.name: numpy_helper.to_array(tensor) for tensor in all_tensors(model().graph)}
    for graph in read(path).graphs():
        for name, value in graph.initializers.items():
            assert np.array_equal(value.const_value.numpy(), wanted[name])


def test_what_is_written_is_what_was_read(path):
    """Streamed or serialised at once, a model file has the same bytes."""
    at_once = ir.to_proto(ir.from_proto(model())).SerializeToString(deterministic=True)
    assert b"".join(map(bytes, inline(read(path)))) == at_once


def test_weights_in_memory_are_streamed_too():
    held = ir.from_proto(model())
    for value in held.graph.initializers.values():
        value.const_value = ir.tensor(value.const_value.numpy(), dtype=value.dtype, name=value.name)
    at_once = ir.to_proto(held).SerializeToString(deterministic=True)
    assert b"".join(map(bytes, inline(held))) == at_once


def test_a_model_may_take_the_place_of_the_file_it_was_read_from(path):
    found = read(path)
    found.graph.doc_string = "another one, whose weights lie elsewhere in it"
    save(found, path)
    assert ir.from_proto(onnx.load(path)).graph.doc_string == found.graph.doc_string
    wanted = {tensor.name: numpy_helper.to_array(tensor) for tensor in all_tensors(model().graph)}
    for again in (found, read(path)):
        assert all(np.array_equal(v.const_value.numpy(), wanted[n]) for n, v in again.graph.initializers.items())


def test_reading_and_writing_hold_no_weights(path, tmp_path):
    count = 8 * 2**20
    proto = model()
    proto.graph.initializer.extend(numpy_helper.from_array(np.full(count, i, np.int8), f"v{i}") for i in range(4))
    onnx.save(proto, path)
    del proto
    tracemalloc.start()
    save(load(path, DimBindings()).ir, tmp_path / "out.onnx")
    save(load(path, DimBindings()).ir, tmp_path / "beside.onnx", external=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < count
    assert (tmp_path / "out.onnx").stat().st_size > 4 * count


@pytest.mark.parametrize("count", [LEAST_BYTES + 4, 2 * LEAST_BYTES])
def test_contents_that_are_not_what_the_shape_takes_are_left_to_the_checks(path, count):
    wrong = TensorProto(name="wrong", data_type=TensorProto.FLOAT, dims=[SIDE, SIDE], raw_data=bytes(count))
    proto = model()
    proto.graph.initializer.append(wrong)
    onnx.save(proto, path)
    assert "wrong" not in inside(path, parsed(path))


def test_an_unknown_element_type_is_refused_as_ever(path):
    proto = model()
    proto.graph.initializer[0].data_type = 999
    onnx.save(proto, path)
    with pytest.raises(ModelError, match="unknown element type 999"):
        load(path, DimBindings())


@pytest.mark.parametrize("left", [0.3, 0.9, 0.9999])
def test_a_file_that_is_cut_off_is_no_model(path, left):
    data = path.read_bytes()
    path.write_bytes(data[: int(left * len(data))])
    with pytest.raises(ModelError, match="is not an ONNX model, or it is cut off"):
        read_proto(path)


def test_nonsense_is_no_model(path):
    path.write_bytes(b"\xff" * 1000)
    with pytest.raises(ModelError, match="is not an ONNX model"):
        read_proto(path)


def test_a_file_whose_graphs_lie_in_each_other_without_end_is_no_model(path):
    content = bytes(LEAST_BYTES)
    for _ in range(500):
        for field in (11, 5, 1):  # a graph of an attribute of a node
            content = bytes([field << 3 | 2]) + _varint(len(content)) + content
    path.write_bytes(bytes([7 << 3 | 2]) + _varint(len(content)) + content)
    with pytest.raises(ModelError, match="is not an ONNX model"):
        read_proto(path)


def test_a_file_may_be_a_link_or_have_several_names(path, tmp_path):
    """Download caches and package installers make such files."""
    (tmp_path / "cache").mkdir()
    linked, second = tmp_path / "cache" / "link.onnx", tmp_path / "second.onnx"
    linked.symlink_to(path)
    os.link(path, second)
    for name in (linked, second):
        found = load(name, DimBindings()).ir.graph.initializers["w"].const_value
        assert np.array_equal(found.numpy(), numpy_helper.to_array(weights()["w"]))


def test_weights_of_an_old_opset_are_converted_with_it(path):
    old = helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"], "A")],
            "g",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, SIDE]),
                helper.make_tensor_value_info("w", TensorProto.FLOAT, [SIDE, SIDE]),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, SIDE])],
            [weights()["w"]],
        ),
        opset_imports=[helper.make_opsetid("", 6)],
        ir_version=3,
    )
    onnx.save(old, path)
    source = load(path, DimBindings())
    assert source.converted
    found = source.ir.graph.initializers["w"].const_value
    assert np.array_equal(found.numpy(), numpy_helper.to_array(weights()["w"]))
