"""The functions that scripts rely on: one per command, with the command line's words as keywords."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest

import remat_cli as remat
from docs.make_python_md import TARGET, page
from remat_cli.cli import COMMANDS, make_group
from remat_cli.commands.asked import settings_of
from remat_cli.settings.keywords import TRAIN_WORDS, WORDS

ROOT = Path(__file__).resolve().parents[1]
CHAIN = ROOT / "sample_models" / "chain.onnx"
DIGITS = ROOT / "examples" / "digits.onnx"
FUNCTIONS = {command: command.replace("-", "_") for command in COMMANDS} | {
    "solvers": "list_solvers",
    "report": "write_report",
}
ONLY_IN_A_SHELL = {"format", "quiet", "verbose", "debug", "clear_cache", "no_verify"}
OTHER_WORDS = {"config_file": "config"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", remat.__all__)
def test_every_public_name_is_there_and_listed(name):
    assert getattr(remat, name) is not None
    assert name in dir(remat)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_a_typed_function_that_says_what_it_does(command):
    function = getattr(remat, FUNCTIONS[command])
    signature = inspect.signature(function)
    assert FUNCTIONS[command] in remat.__all__
    assert function.__doc__
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(one.annotation is not inspect.Parameter.empty for one in signature.parameters.values())


@pytest.mark.parametrize("command", COMMANDS)
def test_the_words_of_a_command_are_keywords(command):
    """By name, or through `**options`, where they are those of another function."""
    signature = inspect.signature(getattr(remat, FUNCTIONS[command]))
    if "options" in signature.parameters or command in ("solvers", "doctor"):
        return
    asked = [one for one in make_group().commands[command].params if isinstance(one, click.Option)]
    words = {OTHER_WORDS.get(one.name, one.opts[-1].lstrip("-").replace("-", "_")) for one in asked}
    assert words - ONLY_IN_A_SHELL <= {
        *signature.parameters,
        "config",
        "threads",
        "work_dir",
        "run_limit",
        "memory_limit",
    }


def test_every_word_of_the_command_line_is_understood():
    """Each option of `compile`, `train` and `max-batch` sets something when it is a keyword."""
    for command in ("compile", "train", "max-batch", "profile", "inspect", "solve"):
        for option in make_group().commands[command].params:
            word = option.opts[-1].lstrip("-").replace("-", "_")
            if isinstance(option, click.Option) and word not in {*ONLY_IN_A_SHELL, "config"}:
                settings_of({word: None})


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = remat.nonsense


def test_importing_the_package_loads_nothing_heavy():
    script = "import remat_cli, sys; assert not {'numpy', 'onnx', 'msgspec', 'onnxruntime'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_page_is_what_the_docstrings_say():
    assert TARGET.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_compile_verify_run_and_load(tmp_path, capfd):
    told = []
    output = tmp_path / "out.onnx"
    report = remat.compile(CHAIN, budget="80%", time_limit="9s", verify="fast", output=output, on_progress=told.append)
    assert report.exit_code == 0
    assert report.output == str(output)
    assert report.solution.peak_bytes <= report.solution.budget_bytes
    assert "solving" in map(str, told)
    assert remat.verify(report.plan, verify="fast").verification.outputs_identical
    assert remat.read_plan(report.plan).request.budget == "80%"
    ran = remat.run(report.plan, repeat=1, output=str(tmp_path / "y.npz"))
    assert ran.exit_code == 0
    with remat.load(report.plan) as plan:
        (fed,) = plan.program.inputs
        (found,) = plan.run({fed.name: np.zeros(fed.shape, np.float32)}).values()
    assert found.dtype == np.float32
    assert capfd.readouterr() == ("", "")


def test_inspect_profile_and_train(tmp_path):
    assert remat.inspect(str(CHAIN)).alive
    assert remat.profile(CHAIN, device="cpu").profiles[0].device == "cpu"
    step = remat.train(DIGITS, loss="cross-entropy", batch=8, optimizer="adam", output=tmp_path / "step.onnx")
    assert Path(step.step).exists()
    assert Path(step.state).exists()


def test_options_of_the_solver_are_keywords():
    instance = ROOT / "bench" / "instances" / "gpt_3_layers_train.json"
    answer = remat.solve(instance, budget=0.9, solver="moccasin", order="keep", max_copies=3, time_limit="1s")
    assert answer.solution.options["max_copies"] == 3


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({"budget": "8x%"}, "budget '8x%' is not a budget"),
        ({"bugdet": "80%"}, "unknown keyword 'bugdet'; did you mean 'budget'?"),
        ({"budget": "80%", "max_copies": 3}, "unknown keyword 'max_copies'"),
        ({"budget": "80%", "time_limit": "soon"}, "time limit 'soon' is not a duration"),
        ({"budget": "80%", "device": "toaster"}, "no device named 'toaster'"),
        ({"budget": "80%", "split": "sideways"}, "split 'sideways' is not a mode"),
        ({}, "no budget"),
    ],
)
def test_a_wrong_value_is_refused_before_any_work(words, line):
    with pytest.raises(remat.RematError, match=line):
        remat.compile("nowhere.onnx", **words)


def test_words_that_repeat_name_one_setting():
    assert not set(WORDS.values()) & set(TRAIN_WORDS.values())


def test_help_of_compile_explains_every_keyword():
    words = inspect.signature(remat.compile).parameters
    told = inspect.getdoc(remat.compile).partition("Args:")[2].partition("Raises:")[0].splitlines()
    assert [line.strip().partition(":")[0] for line in told if line.strip()] == list(words)
