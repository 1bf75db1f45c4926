"""What the runtime refuses is said of the user's file, with what to do next, and of no file that remat made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import remat_cli
from remat_cli.base.errors import ModelError, RematError, RuntimeFailure
from remat_cli.cli import main
from remat_cli.compiling.blame import files_named_after
from remat_cli.runtime.sessions._ort import running
from remat_cli.runtime.verify.verify_request import VerifyRequest
from tests.fuzz.mutants import mutant


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))


def model_file(folder, node, *inputs):
    graph = helper.make_graph([node], "g", list(inputs), [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), folder / "mine.onnx")
    return folder / "mine.onnx"


def test_inputs_that_were_made_up(tmp_path):
    data = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    shape = helper.make_tensor_value_info("sizes", TensorProto.INT64, [3])
    path = model_file(tmp_path, helper.make_node("Abs", ["sizes"], ["shape"]), data, shape)
    model = onnx.load(path)
    model.graph.node.append(helper.make_node("Reshape", ["x", "shape"], ["y"]))
    onnx.save(model, path)
    with pytest.raises(ModelError, match=r"fails to run .*mine\.onnx: .*made up: .*--inputs") as caught:
        remat_cli.inspect(path)
    assert "reference.onnx" not in str(caught.value)
    np.savez(tmp_path / "in.npz", x=np.ones((2, 3), np.float32), sizes=np.array([3, 2, 1]))
    assert remat_cli.inspect(path, inputs=tmp_path / "in.npz").exit_code == 0


def test_an_op_that_the_runtime_lacks(tmp_path):
    data = helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [4])
    path = model_file(tmp_path, helper.make_node("Acosh", ["x"], ["z"]), data)
    model = onnx.load(path)
    model.graph.node.append(helper.make_node("Cast", ["z"], ["y"], to=TensorProto.FLOAT))
    onnx.save(model, path)
    with pytest.raises(ModelError, match=r"cannot optimise .*mine\.onnx: ") as caught:
        remat_cli.inspect(path)
    assert "normalised" not in str(caught.value)


@pytest.mark.parametrize("name", ["proto 661", "proto 235", "proto 933"])
def test_a_model_that_the_runtime_refuses_is_bad_input(tmp_path, name, capsys):
    path = tmp_path / "mine.onnx"
    path.write_bytes(mutant(name))
    assert main(["inspect", str(path), "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: ONNX Runtime cannot optimise {path}: ")


@pytest.mark.parametrize(
    ("said", "kind", "told"),
    [
        (("fails to run ", "rewritten.onnx", ": bad"), RuntimeFailure, "run the rewritten form of /m/mine.onnx: bad"),
        (("fails to run ", "reference.onnx", ": bad"), ModelError, "run the optimised form of /m/mine.onnx: bad"),
        (
            ("refuses ", "reference.onnx", ": bad_alloc"),
            RuntimeFailure,
            "optimised form of /m/mine.onnx: bad_alloc",
        ),
        (
            ("run ", "reference.onnx", ": no progress for 3 s"),
            RuntimeFailure,
            "the optimised form of /m/mine.onnx: no progress",
        ),
        (("refuses ", "op_12.onnx", ": bad"), RuntimeFailure, "refuses one op of /m/mine.onnx: bad"),
        (("refuses ", "my_reference.onnx", ": bad"), RuntimeFailure, "refuses my_reference.onnx: bad"),
        (("no memory",), RuntimeFailure, "no memory"),
    ],
)
def test_files_that_remat_made_are_said_to_be_forms_of_the_users(said, kind, told):
    with pytest.raises(RematError) as caught, files_named_after(Path("/m/mine.onnx")):
        raise RuntimeFailure(*said)
    assert type(caught.value) is kind
    assert told in str(caught.value)


def test_what_verification_meets_names_the_users_file(tmp_path, monkeypatch):
    data = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    path = model_file(tmp_path, helper.make_node("Exp", ["x"], ["y"]), data)

    def refuse(request: VerifyRequest, *_: object) -> None:
        raise running(request.rewritten).failed("it does not feel like it")

    monkeypatch.setattr("remat_cli.compiling.one_model.verify.verify_closely", refuse)
    with pytest.raises(RuntimeFailure, match=r"the rewritten form of .*mine\.onnx: it does not feel like it"):
        remat_cli.compile(path, budget="100%", output=tmp_path / "out.onnx")
