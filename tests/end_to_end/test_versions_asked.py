"""A file for named versions of the runtime: nothing that one of them does not have, and what is said of its bits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import remat_cli
from remat_cli.base.errors import ConfigError, ModelError
from remat_cli.cli import main
from remat_cli.compiling.runs_on import refuse_late_needs, refuse_unknown_versions
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.core.values.runs_on import RunsOn, RuntimeRange
from remat_cli.onnx_io.read.compiled import runs_on_at
from remat_cli.onnx_io.write.op_versions import loads_from, needs_of
from remat_cli.ort_rules.records import rules_for
from remat_cli.ort_rules.runtime import Runtime
from remat_cli.settings.settings import load_settings
from tests.other_versions import FOLDER

CHAIN = Path("sample_models/chain.onnx")
FILE = RunsOn("arm64", None, "1.26", "1.16", "1.32", (), runtimes="1.24..1.32")

pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (">=1.24", RuntimeRange("1.24")),
        ("1.24..1.32", RuntimeRange("1.24", "1.32")),
        (" == 1.28.0 ", RuntimeRange("1.28", "1.28")),
    ],
)
def test_ranges_are_read_as_they_are_written(text, found):
    assert load_settings({"runtime": text}).conditions.runtimes == found


@pytest.mark.parametrize("text", ["1.24", ">=1", "newest", ">=1.24..1.26", "1.30..1.28"])
def test_what_is_no_range_is_refused(text):
    with pytest.raises(ConfigError, match="runtime '"):
        load_settings({"runtime": text})


@pytest.mark.parametrize("asked", [RuntimeRange("1.16"), RuntimeRange("1.24", "1.40"), RuntimeRange("1.33")])
def test_versions_without_a_record_are_refused(asked):
    with pytest.raises(
        ConfigError, match=r"nothing is known of ONNX Runtime 1\.(16|33|40): name some of 1\.20\.\.1\.32"
    ):
        refuse_unknown_versions(asked)


def test_it_does_not_go_with_several_devices(capsys):
    words = ["compile", str(CHAIN), "--budget", "80%", "--runtime", ">=1.24", "--device", "cpu", "--device"]
    assert main([*words, "cpu:1threads"]) == 2
    assert "--runtime >=1.24: nothing is promised of it with several devices" in capsys.readouterr().err


def scatter() -> onnx.ModelProto:
    """A model with an op whose kernel came later than its operator set."""
    node = helper.make_node("TensorScatter", ["x", "u", "i"], ["y"], axis=1)
    ports = (("x", TensorProto.FLOAT, [1, 4, 2]), ("u", TensorProto.FLOAT, [1, 1, 2]), ("i", TensorProto.INT64, [1]))
    inputs = [helper.make_tensor_value_info(*port) for port in ports]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 2])
    graph = helper.make_graph([node], "scatter", inputs, [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)


def test_what_the_oldest_does_not_have_is_refused_by_name():
    model = ir.from_proto(scatter())
    assert loads_from(model, "1.32.0") == "1.26"
    assert ("1.26", "op TensorScatter of operator set 24") in list(needs_of(model, "1.32.0"))
    refuse_late_needs(model, RuntimeRange("1.26"), "1.32.0")
    with pytest.raises(ModelError, match=r"op TensorScatter of operator set 24, which ONNX Runtime has from 1\.26 on"):
        refuse_late_needs(model, RuntimeRange("1.24", "1.24"), "1.32.0")
    with pytest.raises(ModelError, match=r"operator set 24, which ONNX Runtime has from 1\.24 on, and 1\.22 does not"):
        refuse_late_needs(model, RuntimeRange("1.22"), "1.32.0")


def test_a_model_is_refused_in_one_line_before_it_is_planned(tmp_path, capsys):
    onnx.save(scatter(), tmp_path / "scatter.onnx")
    words = ["compile", str(tmp_path / "scatter.onnx"), "--budget", "100%", "--runtime", ">=1.24", "--quiet"]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "write '>=1.26'" in line
    assert [path.name for path in tmp_path.iterdir()] == ["scatter.onnx"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory, cache) -> Path:
    """A file that has tiles, which newer versions fill in place."""
    output = tmp_path_factory.mktemp("asked") / "out.onnx"
    words = {"budget": "70%", "runtime": ">=1.24", "time_limit": "1min", "verify": "fast", "max_overhead": "10000%"}
    assert remat_cli.compile(CHAIN, output=output, **words).exit_code == 0
    return output


def test_a_plan_has_no_op_that_the_oldest_does_not_have(compiled):
    model = ir.load(compiled)
    assert not [node for graph in model.graphs() for node in graph if node.op_type == "TensorScatter"]
    assert loads_from(model, "1.32.0") <= "1.24"
    plan = read_plan(compiled.with_name("out.plan.json"))
    assert plan.splitting is not None
    assert plan.request.runtimes == RuntimeRange("1.24")
    assert plan.runs_on == runs_on_at(compiled)
    assert "ONNX Runtime 1.24 to 1.32 (as asked; before 1.26 the original may be fused otherwise" in plan.runs_on.line


def test_its_plan_is_verified_as_any_other(compiled, capsys):
    assert main(["verify", str(compiled.with_name("out.plan.json")), "--verify", "fast", "--quiet"]) == 0
    assert "as asked" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.24.4", "1.28.0"])
def test_it_has_the_bits_of_the_original_there(compiled, version):
    if not (FOLDER / version).exists():
        pytest.skip(f"no ONNX Runtime {version} here: `make test-versions` brings it")
    there = f"env PYTHONPATH={FOLDER / version} {sys.executable}"
    words = ["verify", str(compiled), "--original", str(CHAIN), "--on", there, "--format", "json"]
    done = subprocess.run([sys.executable, "-m", "remat_cli", *words], capture_output=True, text=True, check=False)
    (seen,) = json.loads(done.stdout)["verified_on"]
    assert seen["place"]["onnxruntime"] == version
    assert seen["verification"]["outputs_identical"]


def test_the_line_says_on_which_versions_bits_are_those_of_the_original():
    assert "1.24 to 1.32 (as asked; before 1.26 the original may be fused otherwise" in FILE.line
    only = msgspec.structs.replace(FILE, runtimes="1.24")
    assert "ONNX Runtime 1.24 (as asked; the original may be fused otherwise" in only.line
    assert "ONNX Runtime 1.28 (as asked)" in msgspec.structs.replace(FILE, runtimes="1.28").line
    assert RunsOn.from_metadata(FILE.metadata) == FILE


def test_a_file_is_judged_by_the_rules_of_the_version_that_it_is_for():
    here = Runtime("1.32.0", "x86_64", 16)
    assert rules_for(here).loading.reads_saved
    assert not rules_for(msgspec.structs.replace(here, judged_as=("1.28",))).loading.reads_saved
