"""Files that say what no exporter says: one line that names it, and nothing outside the model's folder is read."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.program import InputSpec
from remat_cli.onnx_io.read.load import DimBindings, load
from remat_cli.runtime.sessions.feeds import make_feeds
from tests.onnx_io.graphs import model_of

SIZE = 16
WEIGHT = np.arange(4, dtype=np.float32)


def external(folder: Path, *, has_shapes: bool = True, data_type: int = TensorProto.FLOAT, **entries: str) -> Path:
    """A model beside its 16 bytes of data `w.bin`, in a folder of its own; a secret lies next to that."""
    inside = folder / "model"
    inside.mkdir()
    (inside / "w.bin").write_bytes(WEIGHT.tobytes())
    (folder / "secret.bin").write_bytes(WEIGHT.tobytes())
    (inside / "link.bin").symlink_to(folder / "secret.bin")
    (inside / "circle.bin").symlink_to(inside / "circle.bin")
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"], "A")], {"x": (4,)}, ["y"], {"w": WEIGHT})
    if not has_shapes:
        model.graph.output[0].type.tensor_type.ClearField("shape")
    (weight,) = model.graph.initializer
    weight.ClearField("raw_data")
    weight.data_type, weight.data_location = data_type, TensorProto.EXTERNAL
    for key, value in entries.items():
        weight.external_data.add(key=key, value=value)
    (inside / "net.onnx").write_bytes(model.SerializeToString())
    return inside / "net.onnx"


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as error:
        load(path, DimBindings())
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("has_shapes", [True, False])
@pytest.mark.parametrize("location", ["../secret.bin", "x/../w.bin", "link.bin", "/etc/hostname"])
def test_data_outside_the_folder_is_named_and_not_read(tmp_path: Path, location: str, has_shapes: bool) -> None:
    text = refusal(external(tmp_path, has_shapes=has_shapes, location=location))
    assert f"external data file {location} of tensor 'w'" in text
    assert "outside the model's folder" in text


@pytest.mark.parametrize("has_shapes", [True, False])
def test_a_pipe_outside_the_folder_is_not_even_opened(tmp_path: Path, has_shapes: bool) -> None:
    path = external(tmp_path, has_shapes=has_shapes, location="../pipe")
    os.mkfifo(tmp_path / "pipe")
    opened = threading.Event()

    def watch() -> None:
        with (tmp_path / "pipe").open("wb"):  # goes on once somebody reads
            opened.set()

    threading.Thread(target=watch, daemon=True).start()
    assert "outside" in refusal(path)
    assert not opened.wait(0.2)
    (tmp_path / "pipe").open("rb").close()


@pytest.mark.parametrize("has_shapes", [True, False])
@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"offset": str(2**70)}, "no number of bytes"),
        ({"offset": str(2**62)}, "cut off"),
        ({"offset": "-4"}, "offset '-4'"),
        ({"offset": "many"}, "offset 'many'"),
        ({"offset": "8"}, "cut off"),
        ({"length": str(2**70)}, "no number of bytes"),
        ({"length": "-1"}, "length '-1'"),
        ({"length": "4"}, "4 bytes of it, of its 16"),
        ({"length": "²"}, "no number of bytes"),
    ],
)
def test_absurd_places(tmp_path: Path, entries: dict[str, str], reason: str, has_shapes: bool) -> None:
    text = refusal(external(tmp_path, has_shapes=has_shapes, location="w.bin", **entries))
    assert reason in text
    assert "external data file w.bin" in text
    assert "tensor 'w'" in text


@pytest.mark.parametrize("location", ["", ".", "a" * 5000, "a\0b", "nothing.bin", "circle.bin"])
def test_data_files_that_cannot_be(tmp_path: Path, location: str) -> None:
    text = refusal(external(tmp_path, location=location))
    assert "does not exist" in text
    assert len(text) < 700


def test_what_is_whole_is_read(tmp_path: Path) -> None:
    path = external(tmp_path, location="w.bin", offset="0", length=str(SIZE))
    assert load(path, DimBindings()).data_files == (path.parent / "w.bin",)


def test_strings_cannot_lie_outside(tmp_path: Path) -> None:
    assert "no numbers" in refusal(external(tmp_path, data_type=TensorProto.STRING, location="w.bin"))


@pytest.mark.parametrize("place", ["tensor_in", "node_name", "Relu", "graph_name", "doc_text"])
def test_texts_that_are_not_utf_8(tmp_path: Path, place: str) -> None:
    model = model_of([helper.make_node("Relu", ["tensor_in"], ["y"], "node_name")], {"tensor_in": (4,)}, ["y"])
    model.graph.name, model.graph.node[0].doc_string = "graph_name", "doc_text"
    damaged = b"\xff\xfe" + place.encode()[2:]
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString().replace(place.encode(), damaged))
    text = refusal(tmp_path / "net.onnx")
    assert "is not UTF-8" in text
    assert repr(damaged) in text


@pytest.mark.parametrize("where", ["input", "output", "initializer"])
def test_element_types_that_do_not_exist(tmp_path: Path, where: str) -> None:
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"], "A")], {"x": (4,)}, ["y"], {"w": WEIGHT})
    (tensor,) = getattr(model.graph, where)
    if where == "initializer":
        tensor.data_type = 99
    else:
        tensor.type.tensor_type.elem_type = 99
    onnx.save(model, tmp_path / "net.onnx")
    assert f"tensor '{tensor.name}' has the unknown element type 99" in refusal(tmp_path / "net.onnx")


def test_negative_sizes_of_weights(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"], "A")], {"x": (4,)}, ["y"], {"w": WEIGHT})
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(WEIGHT, "w"))
    model.graph.initializer[0].dims[0] = -4
    onnx.save(model, tmp_path / "net.onnx")
    assert "tensor 'w' has the shape [-4]" in refusal(tmp_path / "net.onnx")


@pytest.mark.parametrize("shape", [(2**40,), (2**62, 2**62)])
def test_inputs_that_no_memory_holds(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"input 'x' of shape .* this machine has \d+: give it a smaller shape"):
        make_feeds([InputSpec("x", "float", shape)], 0)


@pytest.mark.parametrize("holds", ["map", "sequence", "optional"])
def test_maps_of_classes_are_told_with_the_option_that_leaves_them_out(tmp_path: Path, holds: str) -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["scores"], "A")], {"x": (4, 2)}, ["scores"])
    ends = [helper.make_node("ZipMap", ["scores"], ["classes"], "Z", domain="ai.onnx.ml", classlabels_int64s=[0, 1])]
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, ()))
    wrapped = {"sequence": helper.make_sequence_type_proto, "optional": helper.make_optional_type_proto}
    kind = wrapped[holds](kind) if holds in wrapped else kind
    model.graph.node.extend(ends)
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    model.graph.output.append(helper.make_value_info("classes", kind))
    onnx.save(model, tmp_path / "net.onnx")
    text = refusal(tmp_path / "net.onnx")
    assert "'classes' is a map or a sequence of maps" in text
    assert "{'zipmap': False}" in text
