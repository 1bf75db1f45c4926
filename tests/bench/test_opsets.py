from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper

from bench.opsets import BENCH, RUN, asked_by, is_there, page, table

ROW = {
    "model": "net",
    "exit_code": 0,
    "message": "",
    "source_opset": 17,
    "opset": 17,
    "domains": {"com.microsoft": 1},
    "ir_version": 8,
    "filled": 0,
}
RUNS = [
    {"runtime": "1.32.0", "original_error": "", "file_error": "", "same_bits": True, "difference": 0, "relative": 0},
    {
        "runtime": "1.20.1",
        "original_error": "",
        "file_error": "",
        "same_bits": False,
        "difference": 2e-6,
        "relative": 3e-7,
    },
    {"runtime": "1.16.3", "original_error": "", "file_error": "Opset 24 is under development"},
    {"runtime": "1.8.0", "original_error": "too new", "file_error": "too new"},
]


def model(path, op_type, domain="", opset=17, **spare):
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], ["y"], domain=domain)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
    )
    imports = [helper.make_opsetid(name, version) for name, version in {"": opset, **spare}.items()]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)


def test_the_committed_table_is_what_the_committed_rows_say_and_every_sample_loads():
    rows = BENCH.rows()
    assert len(rows) == 8
    assert BENCH.page_path.read_text() == page(rows)
    for row in rows:
        assert row["exit_code"] == 0
        assert (row["opset"] == row["source_opset"]) == (not row["filled"])
        assert all(row["filled"] or not run["file_error"] for run in row["runs"])


def test_a_line_says_what_each_version_makes_of_a_file():
    *_, line = table([{**ROW, "runs": RUNS}])
    assert line == (
        "| net | 17 | 17 | 8 | `com.microsoft` 1 | 0 | same bits | 2.0e-06 (3.0e-07) "
        "| **refused**: Opset 24 is under development | does not run the original |"
    )


def test_a_file_that_was_not_compiled_is_told():
    assert table([{"model": "net", "exit_code": 4, "message": "no plan"}])[-1] == "\nnet was not compiled: no plan"


def test_what_is_asked_is_read_from_the_file(tmp_path):
    model(tmp_path / "a.onnx", "Relu")
    model(tmp_path / "b.onnx", "Gelu", "com.microsoft", 18, **{"com.microsoft": 1})
    found = asked_by(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert found == {
        "source_opset": 17,
        "opset": 18,
        "domains": {"com.microsoft": 1},
        "ir_version": 8,
        "filled": 0,
    }


def test_a_python_that_is_not_there_is_left_out_with_a_line(tmp_path, capsys):
    assert not is_there(tmp_path / "python")
    assert "left out" in capsys.readouterr().err


def test_models_are_run_and_compared_in_another_python(tmp_path):
    model(tmp_path / "a.onnx", "Relu")
    model(tmp_path / "b.onnx", "Abs")
    model(tmp_path / "d.onnx", "Nothing")
    np.savez(tmp_path / "x.npz", x=np.float32([-1, 0, 2]))

    def found(other):
        paths = [tmp_path / "a.onnx", tmp_path / other, tmp_path / "x.npz"]
        done = subprocess.run([sys.executable, "-I", RUN, *paths], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    assert found("a.onnx")["same_bits"]
    assert (found("b.onnx")["difference"], found("b.onnx")["relative"]) == (1, 0.5)
    assert "Nothing" in found("d.onnx")["file_error"]
