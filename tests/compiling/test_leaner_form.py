"""Of a plan in the steady form and the same plan without it that is taken whose process holds less."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import remat_cli
from remat_cli.base.progress import silent
from remat_cli.compiling.process import leaner_form
from remat_cli.onnx_io.write.steady import FORM_KEY

MIB = 2**20


@dataclass(frozen=True)
class Plan:
    """As much of a plan as decides its form."""

    process_bytes: int
    is_steady: bool = True
    block_bytes: int = 0
    prepared: Any = field(default_factory=lambda: SimpleNamespace(without_form=lambda: "plain"))

    @property
    def written(self) -> Any:
        return SimpleNamespace(sessions=SimpleNamespace(runs=SimpleNamespace(block_bytes=self.block_bytes)))


@pytest.mark.parametrize(
    ("kept", "plain", "is_plain"),
    [
        (8 * MIB, Plan(20 * MIB, is_steady=False, block_bytes=4 * MIB), True),
        (8 * MIB, Plan(20 * MIB, is_steady=False, block_bytes=10 * MIB), False),  # of another size, beside the first
        (8 * MIB, Plan(31 * MIB, is_steady=False), False),
        (2**19, Plan(20 * MIB, is_steady=False), False),  # weights in the branch are not worth a second plan
    ],
)
def test_the_smaller_process_decides(monkeypatch, kept, plain, is_plain):
    steady, request = Plan(30 * MIB), SimpleNamespace(files=None, search=None)
    monkeypatch.setattr(leaner_form, "OneModel", Plan)
    monkeypatch.setattr(leaner_form, "kept_in_branch_bytes", lambda *arguments: kept)
    monkeypatch.setattr(leaner_form, "needed_bytes", lambda planned, _: planned.process_bytes)
    monkeypatch.setattr(leaner_form, "write_within_budget", lambda planned, search, progress: plain)
    found = leaner_form.in_leaner_form(steady, request, silent())
    assert found is (plain if is_plain else steady)


@pytest.mark.slow
def test_large_weights_in_loops_are_not_kept_twice(tmp_path):
    """In the steady form loading alone took more than the original's largest run."""
    rng, width = np.random.default_rng(0), 1024
    sizes = [(16, width), (width, width), (width, width), (width, width), (width, 32)]
    weights = [(0.03 * rng.standard_normal(size)).astype(np.float32) for size in sizes]
    nodes, value = [], "x"
    for number in range(len(weights)):
        nodes.append(helper.make_node("MatMul", [value, f"w{number}"], [f"p{number}"], name=f"product{number}"))
        value = f"r{number}" if number + 1 < len(weights) else "y"
        nodes.append(helper.make_node("Relu", [f"p{number}"], [value], name=f"relu{number}"))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 16, 32])],
        [numpy_helper.from_array(weight, f"w{number}") for number, weight in enumerate(weights)],
    )
    path = tmp_path / "wide.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    found = remat_cli.compile(path, budget="50%", dims={"batch": "8..128"}, time_limit="30s")
    assert found.exit_code == 0, found
    process = found.verification.process
    assert process.rewritten.later_runs_bytes < 0.6 * process.original.later_runs_bytes
    assert process.rewritten.load_peak_bytes < process.original.load_peak_bytes + 2 * MIB
    assert FORM_KEY not in {entry.key for entry in onnx.load(found.output).metadata_props}
