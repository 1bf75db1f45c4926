"""`remat verify FILE.onnx --original MODEL`: what a compiled file keeps here, without its plan."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import remat_cli
from remat_cli import RematError
from remat_cli.cli import main
from remat_cli.core.values.process_promise import COUNT_MAPPED_KEY, PROCESS_BUDGET_KEY, PROCESS_KEY, ProcessPromise
from remat_cli.core.values.promises import PHASES
from remat_cli.report.file_report import FileReport

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "sample_models" / "chain.onnx"
DIGITS = ROOT / "examples" / "digits.onnx"
OTHER_VERSIONS = sorted((ROOT / "build" / "versions").glob("*/onnxruntime"))
"""Runtimes that `make test-versions` puts there."""

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def compiled(samples):
    """A compiled sample and its plan."""
    found = samples.compiled("chain", "60%")
    return found.output, found.plan


@pytest.fixture
def alone(compiled, tmp_path):
    """The compiled file in a folder of its own."""
    return Path(shutil.copy(compiled[0], tmp_path / "alone.onnx"))


def changed(path, change):
    """The same file after a change to what it holds."""
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)
    return path


def metadata(model):
    return {entry.key: entry for entry in model.metadata_props}


def test_a_file_alone_keeps_its_promises(alone):
    found = remat_cli.verify(alone, original=SAMPLE)
    assert isinstance(found, FileReport)
    seen = found.verification
    assert found.exit_code == 0, seen
    phases = PHASES if sys.platform == "linux" else ()
    assert [each.measure for each in found.promises] == ["outputs", "order", "live", "default_session", *phases]
    assert all(each.kept for each in found.promises)
    assert seen.measured_peak_bytes == seen.predicted_peak_bytes
    assert seen.measured_peak_default_session_bytes <= seen.budget_bytes < seen.original_default_session_peak_bytes
    assert seen.measured_overhead_percent is not None
    assert seen.notes == ()
    if sys.platform == "linux":
        assert seen.process.rewritten.first_run_bytes > 0


@pytest.fixture(scope="module")
def bounded(samples):
    """A file that was compiled for a budget on the process."""
    found = samples.compiled("unet", "60MiB")
    return found.output, found.plan


def test_a_file_says_what_its_plan_promises_of_the_process(bounded):
    told = {key: entry.value for key, entry in metadata(onnx.load(bounded[0])).items()}
    plan = remat_cli.read_plan(bounded[1])
    assert ProcessPromise.from_metadata(told) == ProcessPromise(60 * 2**20, False, plan.promise.process)


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is measured on Linux")
@pytest.mark.parametrize(("budget_bytes", "code"), [(60 * 2**20, 0), (2**20, 4)])
def test_the_process_is_judged_by_its_budget(bounded, tmp_path, capsys, budget_bytes, code):
    """Nothing but what the file says is changed, so that it is still the graph that was written."""
    file = Path(shutil.copy(bounded[0], tmp_path / "unet.onnx"))
    changed(file, lambda model: setattr(metadata(model)[PROCESS_BUDGET_KEY], "value", str(budget_bytes)))
    words = ["verify", str(file), "--original", str(SAMPLE.with_name("unet.onnx")), "--format", "json", "--quiet"]
    assert main(words) == code
    found = json.loads(capsys.readouterr().out)
    (process,) = (each for each in found["promises"] if each["measure"] == "process")
    assert (process["promised"], process["kept"], found["fits"]) == (budget_bytes, code == 0, code == 0)
    assert found["verdict"].startswith("fits: " if code == 0 else "NOT KEPT: the process holds")
    assert not any("not as remat wrote it" in warning for warning in found["warnings"])


def test_a_file_of_an_older_version_promises_nothing_of_the_process(bounded, tmp_path):
    def change(model):
        for key in (PROCESS_BUDGET_KEY, COUNT_MAPPED_KEY, PROCESS_KEY):
            model.metadata_props.remove(metadata(model)[key])

    file = changed(Path(shutil.copy(bounded[0], tmp_path / "old.onnx")), change)
    found = remat_cli.verify(file, original=SAMPLE.with_name("unet.onnx"), verify="fast")
    assert found.exit_code == 0
    assert [each.measure for each in found.promises] == ["outputs", "order", "live", "default_session"]
    assert "MiB live (was" in found.verdict


def test_it_measures_what_the_plan_promises(compiled):
    seen = remat_cli.verify(compiled[0], original=SAMPLE, verify="fast").verification
    plan = remat_cli.read_plan(compiled[1])
    assert seen.predicted_peak_bytes == plan.promise.peak_bytes
    assert seen.measured_peak_bytes == plan.promise.fixed_bytes + plan.promise.live_peak_bytes
    assert (seen.process, seen.measured_overhead_percent) == (None, None)


@pytest.mark.parametrize("words", [pytest.param({"external_data": True}, marks=pytest.mark.slow), {"portable": True}])
def test_files_of_every_kind(tmp_path, words):
    """Of a model with matrices, whose packed copies lie in the data file where there is one.

    All processors run it alike, so that nothing of it is left to sessions where it is for any.
    """
    source = dense(tmp_path / "dense.onnx")
    made = remat_cli.compile(source, budget="70%", output=tmp_path / "out.onnx", verify="fast", **words)
    assert made.exit_code == 0
    found = remat_cli.verify(made.output, original=source, verify="fast")
    assert found.exit_code == 0, found
    assert found.verification.measured_peak_bytes == remat_cli.read_plan(made.plan).promise.peak_bytes
    assert not found.verification.is_portable


def dense(path):
    """Two branches of matrix products of 1 MiB of weights each, joined at the end."""
    generator = np.random.default_rng(0)
    weights, nodes = [], [helper.make_node("Relu", ["x"], ["a0"], "relu")]
    for number in range(6):
        weights.append(numpy_helper.from_array(generator.normal(size=(512, 512)).astype(np.float32), f"w{number}"))
        nodes.append(helper.make_node("MatMul", [f"a{number}", f"w{number}"], [f"m{number}"], f"product{number}"))
        nodes.append(helper.make_node("Tanh", [f"m{number}"], [f"a{number + 1}"], f"tanh{number}"))
    nodes.append(helper.make_node("Add", ["a0", "a6"], ["s"], "join"))
    nodes.append(helper.make_node("Exp", ["s"], ["y"], "end"))
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [512, 512]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "dense", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_other_weights_in_the_original_are_seen(alone, tmp_path):
    def change(model):
        weight = model.graph.initializer[0]
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 2, weight.name))

    original = changed(Path(shutil.copy(SAMPLE, tmp_path / "other.onnx")), change)
    found = remat_cli.verify(alone, original=original, verify="fast")
    assert not found.verification.outputs_identical
    assert found.exit_code == 5
    assert found.verdict.startswith("NOT KEPT: the original is another model than the file was made from")
    assert not any("saved again" in note for note in found.verification.notes)


def test_an_original_that_was_saved_again_is_no_other_one(alone, tmp_path):
    def change(model):
        model.producer_name = "somebody"

    original = changed(Path(shutil.copy(SAMPLE, tmp_path / "again.onnx")), change)
    found = remat_cli.verify(alone, original=original, verify="fast")
    assert found.exit_code == 0
    (note,) = found.verification.notes
    assert str(original) in note


@pytest.mark.parametrize("key", ["remat.predicted_peak_bytes", "remat.budget_bytes"])
def test_more_memory_than_the_file_says_is_seen(alone, key):
    def change(model):
        metadata(model)[key].value = "1000"

    found = remat_cli.verify(changed(alone, change), original=SAMPLE, verify="fast")
    assert found.exit_code == 4
    assert len(found.verification.failures) == 1


@pytest.mark.parametrize(("reads", "is_kept", "first"), [("x", False, "first"), ("a", True, None)])
def test_an_order_that_a_session_does_not_keep_is_seen(tmp_path, reads, is_kept, first):
    """Two ops that may run in either order, without a gate between them; and with one that reads the other."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64]) for name in ("x", "y")]
    nodes = [
        helper.make_node("Sin", ["x"], ["a"], "first"),
        helper.make_node("Cos", [reads], ["b"], "second"),
        helper.make_node("Sub", ["a", "b"], ["y"], "last"),
    ]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "original.onnx")
    for key, value in (("remat.version", "0.1.0"), ("remat.budget_bytes", "9999")):
        model.metadata_props.add(key=key, value=value)
    onnx.save(model, tmp_path / "file.onnx")
    found = remat_cli.verify(tmp_path / "file.onnx", original=tmp_path / "original.onnx", verify="fast")
    seen = found.verification
    assert (seen.order_honoured, seen.first_op_out_of_order) == (is_kept, first)
    assert found.exit_code == (0 if is_kept else 5)
    assert seen.predicted_peak_bytes is None
    assert any("what its peak is" in note for note in seen.notes)


@pytest.fixture(scope="module")
def for_many(cache, tmp_path_factory):
    """A file for many sizes, and its plan."""
    output = tmp_path_factory.mktemp("many") / "digits.onnx"
    made = remat_cli.compile(DIGITS, budget="80%", dim={"batch": "1..32"}, output=output, verify="off")
    return Path(made.output), Path(made.plan)


def test_sizes_that_are_left_open_are_the_users_to_say(for_many):
    file = for_many[0]
    with pytest.raises(RematError, match="--dim batch=N"):
        remat_cli.verify(file, original=DIGITS)
    found = remat_cli.verify(file, original=DIGITS, dim={"batch": 32}, verify="fast")
    smaller = remat_cli.verify(file, original=DIGITS, dim={"batch": 5}, verify="fast")
    assert (found.exit_code, smaller.exit_code) == (0, 0)
    assert smaller.verification.measured_peak_bytes < found.verification.measured_peak_bytes
    assert metadata(onnx.load(file))["remat.dims"].value == "batch=1..32"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["{file}", "--original", "{source}", "--dim", "batch=33"], ("--dim batch=33: ", "for batch=1..32 only")),
        (["{file}", "--original", "{source}", "--dim", "nosuch=3"], ("--dim nosuch: no such dimension",)),
        (["{plan}", "--dim", "nosuch=3"], ("--dim nosuch=3: ", "(batch=1..32)", "leave it out")),
        (["{plan}", "--dim", "batch=8"], ("--dim batch=8: ", "(batch=1..32)")),
        (["{plan}", "--dim", "batch=2..32"], ("--dim batch=2..32: ",)),
        (["{plan}", "--input-shape", "x:3,4"], ("--input-shape x: ",)),
    ],
)
def test_sizes_that_a_file_or_plan_was_not_made_for_are_refused_by_name(for_many, capsys, words, told):
    names = {"file": for_many[0], "plan": for_many[1], "source": DIGITS}
    assert main(["verify", *(word.format(**names) for word in words), "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert all(part in err for part in told), err


def test_the_sizes_of_a_plan_may_be_said_again(for_many):
    assert remat_cli.verify(for_many[1], dim={"batch": "1..32"}, verify="fast").exit_code == 0


@pytest.mark.parametrize(("sizes", "is_read"), [("batch=1..8", True), ("batch one to eight", False)])
def test_the_sizes_are_those_that_the_file_says(for_many, tmp_path, sizes, is_read):
    file = Path(shutil.copy(for_many[0], tmp_path / "digits.onnx"))
    changed(file, lambda model: setattr(metadata(model)["remat.dims"], "value", sizes))
    with pytest.raises(RematError, match="for batch=1..8 only" if is_read else "cannot be read"):
        remat_cli.verify(file, original=DIGITS, dim={"batch": 9})


def test_inputs_of_the_user(alone, tmp_path):
    (port,) = onnx.load(SAMPLE).graph.input
    shape = [dim.dim_value for dim in port.type.tensor_type.shape.dim]
    np.savez(tmp_path / "inputs.npz", **{port.name: np.full(shape, 0.5, np.float32)})
    found = remat_cli.verify(alone, original=SAMPLE, inputs=tmp_path / "inputs.npz", verify="fast")
    assert found.exit_code == 0
    assert found.verification.inferences == 3


def elsewhere(path, target):
    """The plan as on another version of the runtime: it names another optimised model."""
    plan = json.loads(path.read_text())
    place, key = (plan["splitting"], "whole_sha256") if plan["splitting"] else (plan, "optimized_sha256")
    place[key] = "0" * 64
    for kind in ("source", "output"):
        plan[kind]["path"] = str((path.parent / plan[kind]["path"]).resolve())
    target.write_text(json.dumps(plan))
    return target


def test_a_plan_whose_model_is_optimised_otherwise_here_tells_of_the_file(compiled, tmp_path, capsys):
    plan = elsewhere(compiled[1], tmp_path / "other.plan.json")
    code = main(["verify", str(plan), "--verify", "fast", "--format", "json", "--quiet"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["plan"] == str(plan)
    assert found["verification"]["outputs_identical"]
    assert "optimises" in found["warnings"][0]
    assert "what holds of the file" in found["warnings"][0]
    assert [each["kept"] for each in found["promises"]] == [True] * 4


@pytest.mark.parametrize("sizes", [pytest.param("8", marks=pytest.mark.slow), "1..8"])
def test_so_does_a_plan_for_sizes_that_the_model_leaves_open(tmp_path, sizes):
    words = {"dim": {"batch": sizes}, "verify": "off", "output": tmp_path / "digits.onnx"}
    made = remat_cli.compile(DIGITS, budget="80%", **words)
    found = remat_cli.verify(elsewhere(Path(made.plan), tmp_path / "other.plan.json"), verify="fast")
    assert isinstance(found, FileReport)
    assert found.exit_code == 0
    promise = remat_cli.read_plan(made.plan).promise
    assert found.verification.measured_peak_bytes == promise.fixed_bytes + promise.live_peak_bytes


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["{file}"], "--original MODEL.onnx"),
        (["{plan}", "--original", "{source}"], "leave --original out"),
        (["{source}", "--original", "{source}"], "is no file that `remat compile` wrote"),
        (["{file}", "--original", "{other}"], "was not made from"),
        (["{file}", "--original", "{file}"], "is the compiled file itself"),
        (["{file}", "--original", "{file}", "--svg", "a.svg"], "--svg"),
    ],
)
def test_what_cannot_be_verified_is_said_in_a_line(compiled, capsys, words, text):
    other = ROOT / "sample_models" / "transformer.onnx"
    names = {"file": compiled[0], "plan": compiled[1], "source": SAMPLE, "other": other}
    assert main(["verify", *(word.format(**names) for word in words), "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err
    assert err.count("\n") == 1


def test_the_report_for_people(compiled, capsys):
    assert main(["verify", str(compiled[0]), "--original", str(SAMPLE), "--verify", "fast", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("fits: ")
    assert lines[3].startswith("the file keeps its promises on ONNX Runtime ")
    assert any(line.split() == ["outputs", "identical", "yes"] for line in lines)


@pytest.mark.slow
@pytest.mark.skipif(not OTHER_VERSIONS, reason="no other versions of ONNX Runtime are here: `make test-versions`")
@pytest.mark.parametrize("runtime", OTHER_VERSIONS, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("model", ["chain", "unet", "transformer"])
def test_on_another_version_the_file_holds_what_it_promised(tmp_path, runtime, model):
    source = ROOT / "sample_models" / f"{model}.onnx"
    made = remat_cli.compile(source, budget="60%", output=tmp_path / "out.onnx", verify="fast")
    words = [str(made.output), "--original", str(source), "--format", "json", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "remat_cli", "verify", *words],
        env={**os.environ, "PYTHONPATH": f"{runtime.parent}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verification"]["runtime_version"] in runtime.parent.name


def test_a_graph_that_another_tool_changed_is_told(alone):
    """A domain that no op has changes no bits, but an older runtime would refuse the file."""
    assert remat_cli.verify(alone, original=SAMPLE, verify="fast").warnings == ()
    changed(alone, lambda model: model.opset_import.add(domain="org.pytorch.aten", version=1))
    found = remat_cli.verify(alone, original=SAMPLE, verify="fast")
    assert found.exit_code == 0
    (warning,) = found.warnings
    assert warning.startswith(f"{alone} is not as remat wrote it")


def test_a_lost_data_file_is_said_in_a_line_of_plan_and_file_alike(tmp_path, capsys):
    source = dense(tmp_path / "dense.onnx")
    made = remat_cli.compile(source, budget="100%", output=tmp_path / "out.onnx", verify="off", external_data=True)
    (tmp_path / "out.onnx.data").unlink()
    capsys.readouterr()
    lines = set()
    for words in (["verify", made.plan], ["verify", made.output, "--original", str(source)], ["inspect", made.output]):
        assert main([*words, "--quiet"]) == 2
        lines.add(capsys.readouterr().err)
    (line,) = lines
    assert "external data file out.onnx.data of tensor" in line
    assert line.count("\n") == 1


def test_the_file_itself_is_no_original_of_it_under_another_name(compiled, tmp_path):
    copy = Path(shutil.copy(compiled[0], tmp_path / "copy.onnx"))
    with pytest.raises(RematError, match="is the compiled file itself"):
        remat_cli.verify(compiled[0], original=copy)
