"""Graphs of which nothing is left to run: outputs that are constants, weights or inputs. Every command takes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import remat_cli
from remat_cli import RematError

CONSTANT = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "c")
NODES = {
    "constant": ([helper.make_node("Constant", [], ["y"], value=CONSTANT)], ["y"]),
    "folded": ([helper.make_node("Add", ["c", "c"], ["y"])], ["y"]),
    "shape": ([helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Cast", ["s"], ["y"], to=1)], ["y"]),
    "weight": ([], ["c"]),
    "input": ([], ["x"]),
    "both": ([helper.make_node("Exp", ["c"], ["y"])], ["x", "c", "y"]),
}


pytestmark = pytest.mark.usefixtures("cache")


def model_file(folder: Path, name: str, has_input: bool = True) -> Path:
    nodes, outputs = NODES[name]
    shapes = {"y": [2]} if name == "shape" else {}
    ports = [helper.make_tensor_value_info(o, TensorProto.FLOAT, shapes.get(o, [2, 3])) for o in outputs]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])] if has_input else []
    graph = helper.make_graph(nodes, name, inputs, ports, [CONSTANT])
    path = folder / f"{name}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def outputs_of(path: str | Path) -> list[bytes]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    fed = {each.name: np.full((2, 3), 7, np.float32) for each in session.get_inputs()}
    return [found.tobytes() for found in session.run(None, fed)]


ALL_KINDS = {"shape", "both"}
"""Between them: a constant that is folded, a weight, an input, and sizes of an input."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ALL_KINDS else pytest.mark.slow) for name in NODES]
)
def test_every_command_takes_it(tmp_path, name):
    path = model_file(tmp_path, name)
    seen = remat_cli.inspect(path)
    assert (seen.peak_step, seen.peak_op, seen.alive) == (None, None, ())
    assert seen.peak_bytes == seen.fixed_bytes > 0
    assert remat_cli.profile(path).exit_code == 0
    found = remat_cli.compile(path, budget="50%", output=tmp_path / "out.onnx", intra_op_threads=1, verify="fast")
    assert found.exit_code == 0
    assert found.output is not None
    assert outputs_of(found.output) == outputs_of(path)
    assert found.verification is not None
    assert found.verification.rounds_of_learning == 0  # the first prediction holds
    assert remat_cli.verify(found.plan, verify="fast").exit_code == 0
    assert remat_cli.run(found.plan).exit_code == 0
    assert remat_cli.inspect(found.plan).fits


@pytest.mark.parametrize("budget", [pytest.param("100%", marks=pytest.mark.slow), "min"])
def test_without_inputs_too(tmp_path, budget):
    path = model_file(tmp_path, "folded", has_input=False)
    found = remat_cli.compile(path, budget=budget, output=tmp_path / "out.onnx", intra_op_threads=1)
    assert (found.exit_code, outputs_of(found.output)) == (0, outputs_of(path))


def test_there_is_nothing_to_place_on_two_devices(tmp_path):
    with pytest.raises(RematError, match="no op to place; leave --device out"):
        remat_cli.compile(
            model_file(tmp_path, "input"),
            budget="1MiB",
            device=["cpu:1threads", "cpu:2threads"],
            output=tmp_path / "out.onnx",
        )


def test_there_is_nothing_to_train(tmp_path):
    with pytest.raises(RematError, match="nothing to train"):
        remat_cli.train(model_file(tmp_path, "input"), loss="mse", output=tmp_path / "step.onnx")


def test_pictures_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    path = model_file(tmp_path, "folded")
    remat_cli.inspect(path, svg=tmp_path / "memory.svg")
    assert (tmp_path / "memory.svg").read_bytes().startswith(b"<?xml")
