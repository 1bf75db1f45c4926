"""A solver that is not there, or options that it cannot have: one line and exit 2, before a model is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_cli.cli import main

COMMANDS = {
    "compile": ("compile", "broken.onnx", "--budget", "80%"),
    "two devices": ("compile", "broken.onnx", "--device", "cpu", "--device", "cpu:1threads", "--budget", "80%"),
    "train": ("train", "broken.onnx", "--loss", "mse", "--budget", "80%"),
    "max-batch": ("max-batch", "broken.onnx", "--loss", "mse", "--budget", "1MiB"),
    "solve": ("solve", "broken.json", "--budget", "80%"),
}


@pytest.fixture(autouse=True)
def files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whoever reads them complains of them."""
    monkeypatch.chdir(tmp_path)
    for name in ("broken.onnx", "broken.json"):
        Path(name).write_text("neither")


def complaint(capsys, *words: str) -> str:
    """The one line on stderr."""
    assert main(list(words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_before_it_reads(capsys, command):
    words = ("--solver", "checkmate-lp", "--option", "allowances=x")
    assert "solver checkmate-lp: allowances must be numbers from 0 to below 1" in complaint(
        capsys, *COMMANDS[command], *words
    )


@pytest.mark.parametrize(
    "option",
    [
        *(f"allowances={text}" for text in ("", "-0.1", "1", "0,,1", "nan", "0;0.1")),
        "thresholds=0",
        "samples=-1",
        "samples=many",
        "rounding=sometimes",
        "prune=maybe",
        "copies=2",
    ],
)
def test_what_checkmate_lp_cannot_have_is_named(capsys, option):
    error = complaint(capsys, *COMMANDS["solve"], "--solver", "checkmate-lp", "--option", option)
    assert error.startswith("error: solver checkmate-lp: ")
    assert option.partition("=")[0] in error


def test_an_unknown_solver_is_refused_with_those_there_are(capsys):
    assert "no solver named 'rotr'; there are: auto, " in complaint(capsys, *COMMANDS["solve"], "--solver", "rotr")
