"""Values that sessions can share."""

from __future__ import annotations

import gc

import numpy as np
import onnx
import pytest

from remat_cli.runtime.sessions._ort import import_ort
from remat_cli.runtime.sessions.providers import parse_device, place_of, placed_value, unowned


def owning(array):
    """A value with a buffer of the runtime's own, as on a GPU."""
    value = import_ort().OrtValue.ortvalue_from_shape_and_type(list(array.shape), array.dtype.type)
    value.update_inplace(array)
    return value


def select_model(path):
    """`where(mask, x, -x)` with a mask that the model itself says is all false."""
    mask = onnx.numpy_helper.from_array(np.zeros(4, bool), "mask")
    ports = [onnx.helper.make_tensor_value_info(name, 1, [4]) for name in ("x", "y")]
    nodes = [onnx.helper.make_node("Neg", ["x"], ["n"]), onnx.helper.make_node("Where", ["mask", "x", "n"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", ports[:1], ports[1:], [mask])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def test_a_session_takes_an_unowned_value_as_its_weight(tmp_path):
    ort = import_ort()
    value = owning(np.array([True, False, True, False]))
    options = ort.SessionOptions()
    with pytest.raises(Exception, match="must be owned by the user"):
        options.add_initializer("mask", value)
    shared = unowned(value)
    del value
    gc.collect()
    options = ort.SessionOptions()
    options.add_initializer("mask", shared)
    session = ort.InferenceSession(select_model(tmp_path / "m.onnx"), options, providers=["CPUExecutionProvider"])
    found = session.run(None, {"x": np.arange(1, 5, dtype=np.float32)})[0]
    assert found.tolist() == [1, -2, 3, -4]


def test_on_the_host_a_value_is_the_array_itself():
    array = np.arange(3, dtype=np.float32)
    value = placed_value(array, place_of(parse_device("cpu:2threads")))
    array[1] = 7
    assert value.numpy().tolist() == [0, 7, 2]


def test_places_have_the_number_of_the_device():
    assert place_of(parse_device("cuda:1")) == ("cuda", 1)
    assert place_of(parse_device("openvino")) == ("cpu", 0)
