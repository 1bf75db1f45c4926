"""What a plan may cost where nothing was said of it: twice the time for one session on the CPU, else any."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.cli import main
from remat_cli.compiling import plan
from remat_cli.onnx_io.read.load import STATE_FILE_KEY, STATE_KEY, is_training_step

pytestmark = pytest.mark.usefixtures("cache")


def chain() -> onnx.ModelProto:
    random, nodes, value = np.random.default_rng(0), [], "x"
    for number in range(4):
        nodes.append(helper.make_node("MatMul", [value, f"w{number}"], [f"a{number}"]))
        nodes.append(helper.make_node("Relu", [f"a{number}"], [f"r{number}"]))
        value = f"r{number}"
    nodes.append(helper.make_node("ReduceMean", [value], ["y"], axes=[1], keepdims=0))
    weights = [numpy_helper.from_array(random.standard_normal((16, 16), np.float32), f"w{n}") for n in range(4)]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("x", (1024, 16)), ("y", (1024,)))
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_twice_the_time(default_price: Fraction) -> None:
    assert default_price == 1


def test_what_is_too_dear_is_no_plan_unless_it_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MOST_OVERHEAD_SHARE", Fraction(-99, 100))  # no plan is a hundred times as fast
    path, written = tmp_path / "chain.onnx", tmp_path / "out.onnx"
    onnx.save(chain(), path)
    asked = ["compile", str(path), "--budget", "50%", "-o", str(written), "--verify", "fast", "--time-limit", "5s"]
    assert main([*asked, "--quiet"]) == 4
    told = capsys.readouterr().out
    assert "allow more with --max-overhead" in told
    assert not written.exists()
    assert main([*asked, "--quiet", "--max-overhead", "10000%"]) == 0
    capsys.readouterr()
    assert json.loads(written.with_name("out.plan.json").read_text())["request"]["max_overhead_percent"] == 10000


@pytest.mark.parametrize("key", [STATE_KEY, STATE_FILE_KEY])
def test_steps_of_training_are_known(key: str) -> None:
    model = ir.from_proto(chain())
    assert not is_training_step(model)
    model.metadata_props[key] = "{}"
    assert is_training_step(model)
