"""`remat verify --on COMMAND`: what a compiled file keeps wherever a command starts a Python with the runtime."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from remat_cli.cli import main
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.core.values.elsewhere import Place, VerifiedOn
from remat_cli.report.elsewhere import ElsewhereReport
from remat_cli.runtime.elsewhere import link

HERE = sys.executable
EMULATOR = "qemu-x86_64-static"
HASWELL = (
    f"env PYTHONPATH={os.pathsep.join(filter(None, sys.path))} OPENBLAS_CORETYPE=Haswell "
    f"{EMULATOR} -cpu Haswell {os.path.realpath(sys.executable)}"
)
ARM64, ARM64_EMULATOR = Path(__file__).parents[2] / "build" / "targets" / "arm64", "qemu-aarch64-static"
"""What `make setup-targets` puts there."""
PLACE = Place("Linux", "aarch64", "Cortex-A76", 4, "3.11.2", "2.1.0", "1.31.1")

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def compiled(samples, tmp_path):
    """A compiled sample, its plan and the original, in a folder of their own."""
    found = samples.compiled("chain", "60%")
    for path in (found.output, found.plan, Path(read_plan(found.plan).source.path)):
        shutil.copy(path, tmp_path / path.name)
    return tmp_path / found.output.name, tmp_path / found.plan.name, tmp_path / "chain.onnx"


def verify(capsys, *words):
    """The exit code, the JSON and the error."""
    code = main(["verify", *map(str, words), "--format", "json", "--quiet"])
    out, error = capsys.readouterr()
    return code, json.loads(out) if out else None, error


@pytest.fixture(autouse=True)
def there(tmp_path, monkeypatch):
    """Where programs that are started put files: other tests run at the same time."""
    folder = tmp_path / "there"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def test_a_file_is_verified_there_and_its_plan_keeps_what_was_found(compiled, capsys, there):
    _, plan, _ = compiled
    code, found, _ = verify(capsys, plan, "--on", HERE)
    assert code == 0
    assert found["fits"]
    (place,) = found["verified_on"]
    assert place["loads"]
    assert place["runs"]
    seen = place["verification"]
    assert seen["outputs_identical"]
    assert seen["order_honoured"]
    assert seen["measured_peak_bytes"] == seen["predicted_peak_bytes"]
    assert seen["process"]["rewritten"]["later_runs_bytes"] > 0
    assert [each.on for each in read_plan(plan).verified_on] == [HERE]
    assert verify(capsys, plan, "--on", HERE, "--verify", "fast")[0] == 0
    assert len(read_plan(plan).verified_on) == 1  # the newest of the same place
    assert not list(there.iterdir())


@pytest.mark.slow
def test_another_model_there_is_told(compiled, capsys, samples):
    output, _, _ = compiled
    other = samples.compiled("resnet", "60%")
    code, found, _ = verify(capsys, output, "--original", Path(read_plan(other.plan).source.path), "--on", HERE)
    assert code == 5
    assert "the original is another model than the file was made from" in found["verdict"]


def test_files_are_kept_there_where_that_is_asked_for(compiled, capsys, monkeypatch, there):
    output, _, original = compiled
    sent = []
    monkeypatch.setattr(
        link, "_send_file", lambda line, path, send=link._send_file: (sent.append(path), send(line, path))
    )
    for wanted in (3, 0):
        sent.clear()
        assert verify(capsys, output, "--original", original, "--on", HERE, "--keep", "--verify", "fast")[0] == 0
        assert len(sent) == wanted
    assert [each.name[:11] for each in there.iterdir()] == ["remat_kept_"]
    (kept,) = there.iterdir()
    assert len(list(kept.iterdir())) == 3


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("no-such-program", 2, "no-such-program does not start: No such file or directory"),
        ("'open", 2, "No closing quotation"),
        ("", 2, "give a command that starts a Python"),
        ("sh -c 'echo rubbish; exit 3'", 1, "ended with code 3"),
        ("sh -c 'echo oh no >&2; exit 3'", 1, "ended with code 3 before it had answered: oh no"),
        (f"{HERE} -S", 1, "cannot import numpy: install numpy and onnxruntime there"),
        ("sh -c 'yes rubbish'", 1, "did not answer in 1 s; it printed 'rubbish'"),
    ],
)
def test_a_place_that_cannot_be_used_is_one_line(compiled, capsys, monkeypatch, command, code, told):
    monkeypatch.setattr(link, "START_SECONDS", 1.0 if "yes" in command else 60.0)
    output, plan, original = compiled
    before = plan.read_bytes()
    found = verify(capsys, plan, "--on", command)
    assert found[:2] == (code, None)
    assert told in found[2]
    assert found[2].count("\n") == 1
    assert plan.read_bytes() == before
    assert output.exists()
    assert original.exists()
    assert not list((plan.parent / "there").iterdir())


def test_a_link_that_breaks_is_one_line(compiled, capsys, monkeypatch):
    _, plan, _ = compiled

    def cut(line, path):
        line.process.kill()
        line.process.wait()
        line.send(b"x")

    monkeypatch.setattr(link, "_send_file", cut)
    code, _, error = verify(capsys, plan, "--on", f"sh -c 'exec {HERE} -i'")
    assert code == 1
    assert "ended with code" in error


def test_the_program_runs_where_remat_is_not(compiled, tmp_path, capsys):
    output, _, original = compiled
    assert main(["verify", "--script"]) == 0
    program = tmp_path / "check.py"
    program.write_text(capsys.readouterr().out)
    words = [HERE, "-P", str(program), str(output), "--original", str(original)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["outputs_identical"]
    assert found["loads"]
    assert found["executed"]
    gone = subprocess.run([*words[:-1], "nowhere.onnx"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert gone.returncode == 5
    assert "nowhere.onnx" in json.loads(gone.stdout)["message"]


def test_another_file_in_the_place_of_the_plans_is_refused(compiled, capsys):
    output, plan, original = compiled
    shutil.copy(original, output)
    code, _, error = verify(capsys, plan, "--on", HERE)
    assert code == 2
    assert "is not the model that the plan was written with" in error
    assert not read_plan(plan).verified_on


def test_words_that_do_not_go_together(compiled, capsys):
    output, plan, original = compiled
    for words, told in [
        (["--script", plan], "give it alone"),
        ([plan, "--keep"], "give --on COMMAND too"),
        ([output, "--on", HERE], "--original MODEL.onnx"),
        ([plan, "--original", original, "--on", HERE], "leave --original out"),
        ([plan, "--svg", "x.svg", "--on", HERE], "leave --svg out"),
        ([], "Missing argument"),
    ]:
        code, _, error = verify(capsys, *words)
        assert code == 2
        assert told in error


@pytest.mark.parametrize(
    ("place", "outcome", "code", "told"),
    [
        (
            {"loads": True, "runs": False, "message": "op made_for_x86_64_avx512__compile"},
            "refused",
            5,
            "made for another",
        ),
        ({"loads": False, "runs": False, "message": "no such op"}, "fails", 5, "does not load on there: no such op"),
        (
            {"loads": True, "runs": True, "original_runs": False, "message": "bad"},
            "no_original",
            1,
            "original does not run",
        ),
    ],
)
def test_what_a_place_shows_has_one_verdict(place, outcome, code, told):
    seen = VerifiedOn(on="there", place=PLACE, **{"loads": True, "runs": True, "original_runs": True, **place})
    assert seen.outcome == outcome
    report = ElsewhereReport(model="a.onnx", source="b.onnx", verified_on=(seen,))
    assert report.exit_code == code
    assert told in report.verdict
    assert not report.fits


def test_a_plan_in_sessions_that_remat_opens_says_that_it_has_no_file_to_verify(samples, tmp_path, capsys):
    source = Path(read_plan(samples.compiled("chain", "60%").plan).source.path)
    plan = tmp_path / "placed.plan.json"
    words = ["--device", "cpu:1threads", "--device", "cpu:2threads", "--budget", "100%", "--no-verify", "--quiet"]
    assert main(["compile", str(source), "--plan", str(plan), "-o", str(tmp_path / "placed.onnx"), *words]) == 0
    capsys.readouterr()
    code, found, error = verify(capsys, plan, "--on", HERE)
    assert (code, found) == (2, None)
    assert "remat itself cuts its sessions" in error
    assert "run `remat verify placed.plan.json`" in error
    assert error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(not (ARM64 / ".installed").exists(), reason="no arm64 Python is here: `make setup-targets`")
@pytest.mark.parametrize("processor", ["cortex-a76", "max"])
def test_on_arm_a_file_without_blocks_keeps_all_and_one_with_blocks_refuses(processor, samples, capsys):
    """On the newest processors kernels keep weights with a row more, so that live tensors are above the prediction."""
    root = ARM64 / "root"
    emulated = f"{ARM64_EMULATOR} -cpu {processor} -L {root} {root}/usr/bin/python3.11"
    command = f"env PYTHONHOME={root}/usr PYTHONPATH={ARM64}/site {emulated}"
    code, found, _ = verify(capsys, samples.compiled("transformer", "60%").plan, "--on", command, "--verify", "fast")
    assert (code, found["fits"]) == (0, True)
    (place,) = found["verified_on"]
    seen = place["verification"]
    assert place["place"]["machine"] == "aarch64"
    assert seen["outputs_identical"]
    assert seen["order_honoured"]
    assert seen["is_other_processor"]
    if processor == "cortex-a76":
        assert seen["measured_peak_bytes"] == seen["predicted_peak_bytes"]
    else:
        assert seen["predicted_peak_bytes"] < seen["measured_peak_bytes"] <= seen["budget_bytes"]
    code, found, _ = verify(capsys, samples.compiled("chain", "60%").plan, "--on", command, "--verify", "fast")
    assert code == 5
    assert "made_for_x86_64_avx512" in found["verdict"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(EMULATOR) is None, reason=f"{EMULATOR} (Debian: qemu-user-static) is not installed")
def test_an_emulated_processor_refuses_a_file_in_blocks(compiled, capsys):
    _, plan, _ = compiled
    code, found, _ = verify(capsys, plan, "--on", HASWELL, "--verify", "fast")
    assert code == 5
    assert found["verified_on"][0]["message"]
    assert "made_for_x86_64_avx512" in found["verdict"]
