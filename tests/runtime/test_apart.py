"""What opens sessions on heavy models does so in a process of its own, with the same answers and errors."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.base.errors import RuntimeFailure
from remat_cli.runtime.sessions import apart
from remat_cli.runtime.sessions.apart import apart_if_heavy, files_beside, is_heavy
from remat_cli.runtime.sessions.session import SessionSettings, optimize, outputs_of, run_each

SIDE = 64
FEEDS = {"x": np.ones((1, SIDE), np.float32)}


@apart_if_heavy
def where(model: Path, beside: str) -> tuple[int, str, str]:
    return os.getpid(), str(model), beside


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A product with a weight of 16 KiB."""
    weight = numpy_helper.from_array(np.eye(SIDE, dtype=np.float32), "w")
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, SIDE])] for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], "product")], "g", *ports, [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "inside.onnx")
    onnx.save(model, tmp_path / "beside.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    return tmp_path / "inside.onnx"


@pytest.fixture
def heavy(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(apart, "WORTH_A_PROCESS_BYTES", 4 * SIDE * SIDE)
    return path


def test_weights_inside_and_beside_count(path, heavy):
    assert files_beside(path.with_name("beside.onnx")) == {"w.bin"}
    assert files_beside(path) == set()
    assert is_heavy(path)
    assert is_heavy(path.with_name("beside.onnx"))
    path.with_name("w.bin").write_bytes(b"")
    assert not is_heavy(path.with_name("beside.onnx"))
    assert not is_heavy(path.with_name("missing.onnx"))


def test_a_file_name_of_any_length_is_found(tmp_path):
    name = "w" * 200
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=name)
    (tmp_path / "model.onnx").write_bytes(tensor.SerializeToString())
    assert files_beside(tmp_path / "model.onnx") == {name}


def test_a_light_model_stays_in_this_process(path):
    assert where(path, "x") == (os.getpid(), str(path), "x")


def test_a_heavy_one_does_not(heavy, monkeypatch):
    monkeypatch.chdir(heavy.parent)
    process, model, beside = where(Path("inside.onnx"), "x")
    assert process != os.getpid()
    assert (model, beside) == (str(heavy), "x")


def test_answers_and_errors_are_the_same(path, heavy):
    (there,) = outputs_of(path, [FEEDS], SessionSettings())
    assert np.array_equal(there["y"], FEEDS["x"])
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(RuntimeFailure, match=r"ONNX Runtime refuses inside\.onnx"):
        outputs_of(path, [FEEDS], SessionSettings())


def test_who_asked_says_of_which_run_a_failure_is(heavy):
    told: list[int] = []

    @contextlib.contextmanager
    def around(number: int):
        told.append(number)
        yield

    wrong = {"x": np.ones((1, SIDE + 1), np.float32)}
    with pytest.raises(RuntimeFailure):
        run_each(heavy, [FEEDS, wrong, FEEDS], SessionSettings(), around)
    assert told == [1]
    assert [set(types) for types in run_each(heavy, [FEEDS, FEEDS], SessionSettings(), around)] == [{"product"}] * 2


def test_what_the_optimiser_leaves_alone_stays_where_it_is(path):
    beside, target = path.with_name("beside.onnx"), path.with_name("optimised.onnx")
    optimize(beside, target, "basic")
    assert files_beside(target) == {"w.bin"}
    elsewhere = path.parent / "elsewhere"
    elsewhere.mkdir()
    optimize(beside, elsewhere / "optimised.onnx", "basic")
    assert files_beside(elsewhere / "optimised.onnx") == {"optimised.onnx.data"}
