"""Random ops without a seed: equal numbers while models are compared, and a file that draws as the user's does."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from remat_cli.cli import main
from remat_cli.onnx_io.read.seeds import give_seeds, seeded_copy, without_seeds

ROWS, WIDTH, HIDDEN = 1024, 64, 256
FEW = {("Dropout", f"n={ROWS}"), ("Bernoulli", f"n=1..{ROWS}")}
DRAWS = {
    "RandomNormalLike": [
        helper.make_node("RandomNormalLike", ["h"], ["n"]),
        helper.make_node("Add", ["h", "n"], ["y"]),
    ],
    "Dropout": [helper.make_node("Dropout", ["h", "ratio", "train"], ["y"])],
    "Bernoulli": [helper.make_node("Sigmoid", ["h"], ["p"]), helper.make_node("Bernoulli", ["p"], ["y"])],
}


def random_model(op_type: str) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {f"w{at}": (rng.standard_normal(shape) / 8).astype(np.float32) for at, shape in enumerate(SHAPES)}
    weights |= {"ratio": np.array(0.1, np.float32), "train": np.array(True)}
    layers = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w1"], ["h"]),
    ]
    port = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in "xy"}
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph([*layers, *DRAWS[op_type]], "g", [port["x"]], [port["y"]], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


SHAPES = ((WIDTH, HIDDEN), (HIDDEN, WIDTH))


@pytest.mark.parametrize("op_type", DRAWS)
def test_seeds_come_and_go(op_type, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(random_model(op_type), path)
    model = ir.load(path)
    assert give_seeds(model)
    assert not give_seeds(model)
    bare = ir.to_proto(without_seeds(model))
    assert not [a.name for node in bare.graph.node for a in node.attribute if a.name == "seed"]
    feeds = {"x": np.ones((3, WIDTH), np.float32)}
    runs = []
    for _ in range(2):
        session = ort.InferenceSession(str(seeded_copy(path, tmp_path / "copy.onnx")))
        runs.append([session.run(None, feeds)[0] for _ in range(2)])
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0][0], runs[0][1])


def test_a_seed_of_the_users_stays(tmp_path):
    proto = random_model("RandomNormalLike")
    proto.graph.node[3].attribute.append(helper.make_attribute("seed", 7.0))
    model = ir.from_proto(proto)
    assert not give_seeds(model)
    assert without_seeds(model) is model


@pytest.mark.parametrize(
    ("op_type", "dim"),
    [
        pytest.param(op_type, dim, marks=() if (op_type, dim) in FEW else pytest.mark.slow)
        for op_type in DRAWS
        for dim in (f"n={ROWS}", f"n=1..{ROWS}")
    ],
)
def test_a_random_model_is_compiled_and_verified(op_type, dim, tmp_path, capsys):
    """Its outputs differ from run to run; what is verified is that they are the same for the same numbers."""
    path, written = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(random_model(op_type), path)
    words = ["--dim", dim, "--budget", "90%", "--format", "json", "-q", "--verify", "fast", "-o", str(written)]
    assert main(["compile", str(path), *words]) == 0
    seen = json.loads(capsys.readouterr().out)["verification"]
    assert seen["outputs_identical"]
    assert any("random ops without a seed" in note for note in seen["notes"])
    nodes = [node for node in onnx.load(written).graph.node if node.op_type == op_type]
    assert not [a.name for node in nodes for a in node.attribute if a.name == "seed"]
    assert main(["verify", str(written.with_suffix(".plan.json")), "--verify", "fast"]) == 0
    assert "outputs identical              yes" in capsys.readouterr().out
