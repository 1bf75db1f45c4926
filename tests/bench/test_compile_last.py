"""The table of `docs/compile-last.md`: what it says of outcomes, and that tools still do what it says."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bench import compile_last
from bench.compile_last import END, FILES, NAMES, PAGE, START, Outcome, outcomes, refusal_of, table, with_table
from bench.compile_last_tools import TOOLS
from bench.compiling import ROOT

MIB = 2**20
TOOLS_PYTHON = ROOT / ".venv-compile-last" / "bin" / "python"
KINDS = [
    (Outcome(is_as_written=True, same_bits=True, peak_bytes=5 * MIB), "as written: same bits, same peak"),
    (Outcome(is_as_written=False, same_bits=True, peak_bytes=6 * MIB), "another graph: same bits, **6.0 MiB for 5.0**"),
    (
        Outcome(is_as_written=False, difference=2e-4, peak_bytes=5 * MIB),
        "another graph: outputs differ by 2e-04, same peak",
    ),
    (Outcome(refusal="Error: a | b"), "fails: `Error: a / b`"),
    (Outcome(failure="no such op"), "**broken**: `no such op`"),
    (Outcome(), "works"),
]


def rows_of(page: str) -> dict[str, list[str]]:
    """Cells by the first one of each line of the table."""
    lines = [line.strip("| ").split(" | ") for line in page.partition(START)[2].partition(END)[0].splitlines() if line]
    return {first: rest for first, *rest in lines}


@pytest.mark.parametrize(("outcome", "told"), KINDS)
def test_what_became_of_a_file_is_told(outcome, told):
    assert table({"net": (5 * MIB, {"onnxsim": outcome})})[-1] == f"| onnxsim | {told} |"


def test_a_quantiser_that_does_nothing_is_told():
    did, nothing = (Outcome(same_bits=True, peak_bytes=5 * MIB, quantised=count) for count in (3, 0))
    line = table({"a": (5 * MIB, {"quantize": did}), "b": (5 * MIB, {"quantize": nothing})})[-1]
    assert "and 3 ops on bytes |" in line
    assert line.endswith("and **nothing quantised** |")


def test_how_a_tool_ended():
    assert refusal_of(-11, "") == "killed by SIGSEGV"
    assert refusal_of(1, "Traceback\n  ...\nValueError: no\n\n") == "ValueError: no"
    assert refusal_of(3, "") == "exit code 3"


def test_only_the_table_of_the_page_is_replaced():
    page = f"before\n{START}\nold\n\n{END}after\n"
    assert with_table(page, ["| new |"]) == f"before\n{START}\n| new |\n\n{END}after\n"


def test_the_page_has_every_tool_and_file():
    rows = rows_of(PAGE.read_text(encoding="utf-8"))
    assert rows["tool"] == list(FILES)
    assert set(rows) == {"tool", "---", *(NAMES[tool] for tool in TOOLS)}


def branching(path, sequence):
    """An If that counts the elements of a sequence from outside, as the steady form does."""
    value = helper.make_tensor_value_info
    counted = helper.make_node("SequenceLength", ["s"], ["a"])
    other = helper.make_node("Size", ["x"], ["b"])
    branches = [
        helper.make_graph([node], name, [], [value(node.output[0], TensorProto.INT64, [])])
        for node, name in ((counted, "then"), (other, "else"))
    ]
    nodes = [
        sequence,
        helper.make_node("Size", ["x"], ["n"]),
        helper.make_node("Greater", ["n", "least"], ["go"]),
        helper.make_node("If", ["go"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    save(path, nodes, value("y", TensorProto.INT64, []), least=np.int64(-1))


def gated(path):
    """A view along no axis, as a gate is."""
    nodes = [
        helper.make_node("Size", ["x"], ["n"]),
        helper.make_node("Mul", ["n", "none"], ["axes"]),
        helper.make_node("Unsqueeze", ["x", "axes"], ["y"]),
    ]
    save(path, nodes, helper.make_tensor_value_info("y", TensorProto.FLOAT, None), none=np.zeros(0, np.int64))


def save(path, nodes, output, **weights):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [output],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.slow
@pytest.mark.skipif(not TOOLS_PYTHON.exists(), reason="make bench-compile-last sets up an environment with OpenVINO")
def test_what_openvino_cannot_read(tmp_path):
    """It dies of an empty sequence that a branch reads from outside, and takes no axis for the first one."""
    branching(tmp_path / "empty.onnx", helper.make_node("SequenceEmpty", [], ["s"]))
    branching(tmp_path / "filled.onnx", helper.make_node("SequenceConstruct", ["least"], ["s"]))
    gated(tmp_path / "gate.onnx")
    read = "import openvino, sys; print(openvino.Core().read_model(sys.argv[1]).outputs[0].partial_shape)"
    codes, told = [], []
    for name in ("empty", "filled", "gate"):
        done = subprocess.run(
            [TOOLS_PYTHON, "-I", "-c", read, tmp_path / f"{name}.onnx"], capture_output=True, text=True, check=False
        )
        codes.append(done.returncode)
        told.append(done.stdout.strip())
    assert codes == [-signal.SIGSEGV, 0, 0]
    assert told[-1] == "[1,2,3]"  # [2,3] by the standard


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
def test_what_tools_do_here_is_what_the_page_says(tmp_path, monkeypatch):
    """Of the transformer, with the tools that are there: of another environment, or of this one."""
    python = TOOLS_PYTHON if TOOLS_PYTHON.exists() else Path(sys.executable)
    tools = tuple(TOOLS) if python == TOOLS_PYTHON else ("save", "shapes", "opset", "quantize", "preprocess")
    monkeypatch.setattr(compile_last, "SECONDS", 300)
    found = outcomes("transformer", (), python, tmp_path, tools)
    told = rows_of(PAGE.read_text(encoding="utf-8"))
    at = list(FILES).index("transformer")
    for line in table({"transformer": found})[2:]:
        name, cell = line.strip("| ").split(" | ")
        assert cell.split(":")[0] == told[name][at].split(":")[0], name
        assert ("MiB for" in cell, "nothing quantised" in cell) == (
            "MiB for" in told[name][at],
            "nothing quantised" in told[name][at],
        ), name
