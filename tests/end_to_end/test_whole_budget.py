"""At 100 % of what a model needs it is a plan itself, however few bytes it has and of whatever type they are."""

from __future__ import annotations

from pathlib import Path

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper

import remat_cli

pytestmark = pytest.mark.usefixtures("cache")


Port = tuple[str, int, list[int]]
MODELS: dict[str, tuple[str, dict, list[Port], Port]] = {
    "bool": (
        "And",
        {},
        [("a", TensorProto.BOOL, [4, 1, 1, 2]), ("b", TensorProto.BOOL, [3, 2, 1])],
        ("y", TensorProto.BOOL, [4, 3, 2, 2]),
    ),
    "int8": ("Identity", {}, [("a", TensorProto.INT8, [3])], ("y", TensorProto.INT8, [3])),
    "string": (
        "Equal",
        {},
        [("a", TensorProto.STRING, [2]), ("b", TensorProto.STRING, [1])],
        ("y", TensorProto.BOOL, [2]),
    ),
    "no bytes": ("Neg", {}, [("a", TensorProto.FLOAT, [0])], ("y", TensorProto.FLOAT, [0])),
    "scalar": ("ReduceMean", {"keepdims": 0}, [("a", TensorProto.FLOAT, [12])], ("y", TensorProto.FLOAT, [])),
    "float8 inside": (
        "Cast",
        {"to": TensorProto.FLOAT8E4M3FNUZ},
        [("a", TensorProto.FLOAT, [5])],
        ("y", TensorProto.FLOAT8E4M3FNUZ, [5]),
    ),
    "int4": ("Cast", {"to": TensorProto.FLOAT}, [("a", TensorProto.INT4, [5])], ("y", TensorProto.FLOAT, [5])),
    "uint2": ("Cast", {"to": TensorProto.UINT2}, [("a", TensorProto.UINT4, [5])], ("y", TensorProto.UINT2, [5])),
    "float8": ("Cast", {"to": TensorProto.FLOAT}, [("a", TensorProto.FLOAT8E5M2, [5])], ("y", TensorProto.FLOAT, [5])),
}


def model_file(folder: Path, name: str) -> Path:
    op, attributes, inputs, output = MODELS[name]
    graph = helper.make_graph(
        [helper.make_node(op, [port[0] for port in inputs], ["y"], name="op", **attributes)],
        "one_op",
        [helper.make_tensor_value_info(*port) for port in inputs],
        [helper.make_tensor_value_info(*output)],
    )
    path = folder / "model.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25 if "int" in name else 19)], ir_version=11),
        path,
    )
    return path


LIKE_OTHERS = {"int8", "int4", "float8"}
"""Types that are held, read and written as others of the fast tests."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LIKE_OTHERS else ()) for name in MODELS]
)
def test_the_model_itself_is_a_plan(tmp_path, name):
    path = model_file(tmp_path, name)
    found = remat_cli.compile(path, budget="100%", output=tmp_path / "out.onnx", intra_op_threads=1, verify="fast")
    assert found.exit_code == 0
    assert found.verification is not None
    assert found.verification.passed
    assert found.solution.recomputed_ops == 0


def test_as_many_bytes_as_it_needs_are_as_good_as_100_percent(tmp_path):
    path = tmp_path / "model.onnx"
    nodes = [helper.make_node("Exp", ["x"], ["t"]), helper.make_node("Tanh", ["t"], ["u"])]
    nodes += [helper.make_node("Add", ["t", "u"], ["v"]), helper.make_node("Mul", ["u", "v"], ["y"])]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "small", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), path)
    peak = remat_cli.inspect(path).peak_bytes
    rest = {"budget_scope": "live", "intra_op_threads": 1, "force": True, "verify": "fast"}
    found = [remat_cli.compile(path, budget=text, output=tmp_path / "out.onnx", **rest) for text in ("100%", f"{peak}")]
    assert [each.exit_code for each in found] == [0, 0]
    first = found[0].solution
    times = {"seconds": first.seconds, "seconds_to_best": first.seconds_to_best}
    assert first == msgspec.structs.replace(found[1].solution, **times, facts=first.facts)  # known to the second one
    with_less = remat_cli.compile(path, budget=f"{peak - 1}", output=tmp_path / "out.onnx", **rest)
    assert with_less.exit_code in (3, 4)
