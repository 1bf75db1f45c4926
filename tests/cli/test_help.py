"""Help that people find things in, words that are completed, and errors that name what was probably meant."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import click
import pytest

from remat_cli.cli import COMMANDS, make_group
from remat_cli.cli.grouped import FEW, FIRST, HEADINGS, MOST_SHOWN


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_ten_options_and_all_of_them_on_demand(remat, command):
    options = [one for one in make_group().commands[command].params if isinstance(one, click.Option)]
    short, whole = remat(command, "-h").out, remat(command, "--help-all" if len(options) > FEW else "--help").out
    names = {max(one.opts, key=len) for one in options}
    assert all(name in whole for name in names)
    shown = short.partition("Example")[0]
    listed = [line.split()[0].rstrip(",") for line in shown.splitlines() if line.startswith("  -")]
    if len(options) > FEW:
        assert len(listed) <= MOST_SHOWN + 2  # and those for more help
        assert "--help-all" in listed
    else:
        assert "--help-all" not in short


def test_a_heading_has_no_option_that_is_nowhere():
    there = {one.name for command in make_group().commands.values() for one in command.params}
    assert {name for names in HEADINGS.values() for name in names} <= there
    assert len(FIRST) == len(set(FIRST))


def test_a_compile_shows_what_matters(remat):
    text = remat("compile", "-h").out.partition("Example")[0]
    for option in ("--budget B", "--output", "--max-overhead", "--dim", "--device", "--target", "--verify", "--force"):
        assert option in text
    assert "--packed-weights" not in text


def test_a_file_that_is_nearly_there_is_named(remat, folder):
    for name in ("unet.onnx", "unet.plan.json"):
        (folder / name).write_bytes(b"{}")
    outcome = remat("inspect", "unett.onnx")
    assert outcome.code == 2
    assert "Did you mean unet.onnx" in outcome.err
    assert "Did you mean" not in remat("inspect", "quite-another").err


def test_an_option_and_a_command_that_are_nearly_there_are_named(remat):
    assert "'--budget'" in remat("compile", "--budgt", "3").err
    assert "'compile'" in remat("complie").err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_words(shell):
    environment = {**os.environ, "_REMAT_COMPLETE": f"{shell}_source"}
    script = subprocess.run(
        [sys.executable, "-m", "remat_cli"], env=environment, capture_output=True, text=True, check=True
    )
    assert "_REMAT_COMPLETE" in script.stdout
    asked = {"COMP_WORDS": "remat compile --max-ov", "COMP_CWORD": "2" if shell != "fish" else "--max-ov"}
    environment = {**os.environ, **asked, "_REMAT_COMPLETE": f"{shell}_complete"}
    found = subprocess.run(
        [sys.executable, "-m", "remat_cli"], env=environment, capture_output=True, text=True, check=True
    )
    assert "--max-overhead" in found.stdout


@pytest.mark.slow  # by the clock
def test_help_is_there_at_once():
    took = []
    for _ in range(3):
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "remat_cli", "--help"], capture_output=True, check=True)
        took.append(time.monotonic() - began)
    assert min(took) < 0.3
