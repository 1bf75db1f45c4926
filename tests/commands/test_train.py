"""remat train and max-batch on a small net, end to end on the runtime."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from examples.make_digits import digits
from remat_cli.base.progress import Incumbent
from remat_cli.cli import main
from remat_cli.commands import max_batch
from remat_cli.compiling.search.loop import SplitTask

ROOT = Path(__file__).resolve().parents[2]
ENTROPY = ("--loss", "cross-entropy", "--quiet")


@pytest.fixture
def net(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "examples" / "digits.onnx", tmp_path / "digits.onnx")
    return Path("digits.onnx")


def run(capsys, *words) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def report(capsys, *words) -> dict:
    code, out, err = run(capsys, *words, "--format", "json")
    assert code == 0, err
    return json.loads(out)


def test_the_committed_example_model_is_what_its_script_makes(net):
    assert net.read_bytes() == digits().SerializeToString()


def test_a_step_and_its_state_are_written_and_train(net, capsys):
    found = report(capsys, "train", net, *ENTROPY, "--optimizer", "momentum", "--batch", 16)
    assert found["facts"]["parameters"] == 121_066
    assert found["compiled"] is None
    session = ort.InferenceSession(found["step"], providers=["CPUExecutionProvider"])
    state = dict(np.load(found["state"]))
    pictures, rng = np.eye(10, 64, dtype=np.float32).reshape(10, 1, 8, 8) * 4, np.random.default_rng(0)
    names, losses = [o.name for o in session.get_outputs()], []
    for _ in range(120):
        target = rng.integers(0, 10, 16)
        feeds = {"x": pictures[target], "target": target, "learning_rate": np.array(0.02, np.float32)}
        results = dict(zip(names, session.run(None, {**state, **feeds}), strict=True))
        state = {new.removesuffix(".next"): value for new, value in results.items() if new.endswith(".next")}
        losses.append(float(results["loss"]))
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])


def test_with_a_budget_the_step_is_compiled_and_verified(net, capsys):
    found = report(capsys, "train", net, *ENTROPY, "--batch", 64, "--budget", "60%", "--time-limit", "1s")
    verification = found["compiled"]["verification"]
    assert verification["outputs_identical"]
    assert verification["order_honoured"]
    assert verification["measured_peak_bytes"] == verification["predicted_peak_bytes"]
    assert verification["capped_run_ok"]
    assert Path("digits.train.remat.onnx").is_file()
    assert not any("compiled before" in line for line in found["compiled"]["warnings"])
    phases = {op.get("phase", "none") for op in json.loads(Path("digits.train.plan.json").read_text())["graph"]["ops"]}
    assert phases == {"forward", "backward", "update"}


@pytest.mark.parametrize(("flags", "mode"), [(("--verify", "fast"), "fast"), (("--no-verify",), None)])
def test_how_the_compiled_step_is_verified_is_said_as_for_compile(net, capsys, flags, mode):
    words = ("train", net, *ENTROPY, "--batch", 8, "--budget", "90%", "--time-limit", "1s")
    verification = report(capsys, *words, *flags)["compiled"]["verification"]
    if mode is None:
        assert verification is None
    else:
        assert verification["outputs_identical"]
        assert verification["capped_run_ok"] is None


def test_a_step_without_its_state_file_is_refused(net, capsys):
    report(capsys, "train", net, *ENTROPY, "--batch", 8)
    Path("digits.train.state.npz").unlink()
    code, _, err = run(capsys, "compile", "digits.train.onnx", "--budget", "80%", "--quiet")
    assert code == 2
    assert "digits.train.state.npz, which does not exist: put it back" in err


def test_nothing_is_overwritten_without_force(net, capsys):
    report(capsys, "train", net, *ENTROPY, "--batch", 8)
    before = Path("digits.train.onnx").read_bytes()
    code, _, err = run(capsys, "train", net, "--loss", "mse", "--quiet", "--batch", 8)
    assert (code, Path("digits.train.onnx").read_bytes()) == (2, before)
    assert "--force" in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "no loss: add --loss cross-entropy, mse, l1 or dice, or --loss-output NAME"),
        (("--loss", "mse", "--loss-output", "y"), "the loss can be only one"),
        (
            ("--loss", "mse", "--gradients-only", "--optimizer-option", "beta1=0.9"),
            "--optimizer-option needs --optimizer",
        ),
        (("--loss", "mse"), "the model has unbound dimensions: add --dim batch=N"),
        (("--loss", "mse", "--batch", "4", "--freeze", "nothing*"), "no weight matches 'nothing*'"),
        (
            ("--loss", "mse", "--batch", "4", "--optimizer", "adam", "--optimizer-option", "gamma=1"),
            "its options are: beta1",
        ),
        (("--loss", "mse", "--batch", "0"), "--batch 0"),
        (
            ("--loss", "mse", "--batch", "4", "--gradient-rule", "Relu"),
            "gradient rules 'Relu' is not understood: write MyOp=my_rules:my_op",
        ),
    ],
)
def test_bad_settings_are_one_line(net, capsys, flags, words):
    code, out, err = run(capsys, "train", net, *flags)
    assert code == 2
    assert not out
    assert words in err.splitlines()[-1]
    assert not list(Path().glob("*.train.*"))


def test_settings_may_come_from_a_file(net, capsys):
    Path("settings.yaml").write_text("train: {loss: cross-entropy, optimizer: adam, batch: 8, frozen: ['conv1.*']}\n")
    found = report(capsys, "train", net, "--config", "settings.yaml", "--quiet")
    assert found["facts"]["frozen"] == ["conv1.bias", "conv1.weight"]
    Path("settings.yaml").write_text("train: {los: mse}\n")
    code, _, err = run(capsys, "train", net, "--config", "settings.yaml")
    assert code == 2
    assert "los" in err


@pytest.mark.slow
def test_the_largest_batch_is_found_and_planned(net, capsys):
    found = report(capsys, "max-batch", net, *ENTROPY, "--budget", "2MiB", "--time-limit", "1s")
    assert found["max_batch"] >= found["keep_all_batch"] >= 1
    best = found["best"]
    assert best["batch"] == found["max_batch"]
    assert best["fits"]
    assert best["peak_bytes"] <= found["budget_bytes"]
    assert best["overhead_percent"] <= 100 * best["forward_ns"] / best["baseline_ns"]
    tried = {probe["batch"]: probe["fits"] for probe in found["probes"]}
    assert tried[found["max_batch"] + 1] is False
    assert len(tried) < 25


def test_a_batch_whose_outputs_alone_are_too_much_is_ruled_out(net, capsys):
    """New weights are as large as the old ones, and both are there at the end: a proof that not one sample fits."""
    weights = sum(onnx.numpy_helper.to_array(each).nbytes for each in onnx.load(net).graph.initializer)
    code, out, _ = run(
        capsys, "max-batch", net, *ENTROPY, "--budget", str(2 * weights), "--time-limit", "2s", "--format", "json"
    )
    found = json.loads(out)
    assert (code, found["max_batch"]) == (3, None)
    assert [(probe["batch"], probe["is_ruled_out"]) for probe in found["probes"]] == [(1, True)]


def test_max_batch_wants_bytes_and_no_batch(net, capsys):
    code, _, err = run(capsys, "max-batch", net, *ENTROPY, "--budget", "50%")
    assert (code, "write it in bytes" in err) == (2, True)
    code, _, err = run(capsys, "max-batch", net, *ENTROPY, "--budget", "2MiB", "--batch", "4")
    assert (code, "max-batch looks for the batch itself" in err) == (2, True)


@pytest.mark.parametrize(
    "flags", [("--optimizer", "adam"), pytest.param(("--budget", "90%", "--time-limit", "5s"), marks=pytest.mark.slow)]
)
def test_the_printed_loop_trains_as_it_stands(net, capsys, flags):
    found = report(capsys, "train", net, *ENTROPY, "--batch", 32, *flags)
    assert "'x' float32 [32, 1, 8, 8], 'target' int64 [32]" in found["snippet"]
    rng = np.random.default_rng(0)
    batch = {"x": rng.random((32, 1, 8, 8), np.float32), "target": rng.integers(0, 10, 32)}
    exec(found["snippet"], {"batches": [batch] * 12})
    losses = [float(line) for line in capsys.readouterr().out.split()]
    assert len(losses) == 12
    assert losses[-1] < losses[0]


def test_weights_may_have_any_name(net, capsys):
    model = onnx.load(net)
    names = {"conv1.weight": "file", "conv1.bias": "a/b: c.npy"}
    for tensor in model.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    onnx.save(model, net)
    found = report(capsys, "train", net, *ENTROPY, "--batch", 4)
    state = np.load(found["state"])
    assert set(state) == set(found["facts"]["trained"]) | (set(found["facts"]["state"].values()))
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for name in names.values():
        np.testing.assert_array_equal(state[name], values[name])


@pytest.mark.slow
def test_the_example_trains_under_a_cap_that_the_plain_step_exceeds(tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    command = [sys.executable, str(ROOT / "examples" / "finetune.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "losses equal: True" in done.stdout
    assert "the plain step in" in done.stdout
    assert (tmp_path / "finetune.svg").is_file()


def test_a_batch_is_looked_at_again_where_what_a_solver_found_did_not_fit_once_written(net, capsys, monkeypatch):
    """A solver's first plan was enough to end the search, so that nothing was split: a U-Net stopped at 7 of 16."""
    stopped = []

    def refused(prepared, platform, request, work, progress):
        progress.tell(Incumbent(0.5, None))
        stopped.append(progress.should_stop())
        return SplitTask.unplanned(prepared, platform, request, work, progress).whole

    monkeypatch.setattr(max_batch, "plan_one_model", refused)
    found = report(capsys, "max-batch", net, *ENTROPY, "--budget", "2MiB", "--time-limit", "1s")
    assert found["max_batch"] == found["keep_all_batch"]
    assert stopped
    assert stopped == [True, False] * (len(stopped) // 2)
