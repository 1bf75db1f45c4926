"""Wings can be deleted: nothing but their rows speaks of them, and without both all else works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "remat_cli"
SAMPLE = PACKAGE.parent / "sample_models" / "chain.onnx"
ROWS = {
    "pipelines": {"__init__.py", "cli/__init__.py", "cli/run.py", "commands/run.py"},
    "contest": {"__init__.py", "cli/__init__.py", "commands/report.py"},
    "sessions": {"compiling/ways.py"},
    "paging": {"compiling/ways.py"},
}
"""Where the tables lie that name a wing; the first is the front door, whose functions for it go with it."""
LOST = {"pipelines": {"partition"}, "contest": {"compare", "bench", "sweep"}, "sessions": set(), "paging": set()}
SCRIPT = """
import importlib, pkgutil, sys
import remat_cli
from remat_cli.cli import COMMANDS, main

for module in pkgutil.walk_packages(remat_cli.__path__, "remat_cli."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assert main(["--help"]) == 0
print("commands:", *COMMANDS)
assert main(["run", "--help"]) == 0
options = ("--solver", "keep-all", "--race", "0%", "--verify", "fast")
assert main(["compile", sys.argv[1], "--budget", "80%", "-o", "out.onnx", *options]) == 0
"""


def test_every_wing_of_the_picture_is_here():
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \| a wing: ", page, re.MULTILINE)) == set(ROWS) == set(LOST)


def files_of(package: Path) -> list[Path]:
    return [path for path in package.rglob("*.py") if "__pycache__" not in path.parts]


@pytest.mark.parametrize("wing", ROWS)
def test_only_rows_name_a_wing(wing):
    others = [path for path in files_of(PACKAGE) if path.relative_to(PACKAGE).parts[0] != wing]
    naming = {path.relative_to(PACKAGE).as_posix() for path in others if f"remat_cli.{wing}" in path.read_text()}
    assert naming == ROWS[wing]


@pytest.mark.parametrize(
    "gone", [tuple(ROWS), *(pytest.param((wing,), marks=pytest.mark.slow) for wing in ROWS)], ids="-".join
)
def test_all_else_works_without(gone, tmp_path):
    """Without all of them at once, and in slow tests without each."""
    copy = tmp_path / "remat_cli"
    shutil.copytree(PACKAGE, copy)  # with times of files, so that what was compiled of them still counts
    for wing in gone:
        shutil.rmtree(copy / wing)
        for name in ROWS[wing]:
            if (copy / name).exists():  # a row may lie in a wing that is gone
                lines = (copy / name).read_text().splitlines(keepends=True)
                (copy / name).write_text("".join(line for line in lines if f"remat_cli.{wing}" not in line))
    there = {**os.environ, "PYTHONPATH": str(tmp_path), "REMAT_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(SAMPLE)],
        cwd=tmp_path,
        env=there,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.plan.json").is_file()
    commands = set(next(line for line in done.stdout.splitlines() if line.startswith("commands:")).split()[1:])
    assert not commands & set().union(*(LOST[wing] for wing in gone))
    assert {"compile", "verify", "run", "solve"} <= commands
    assert ("--micro-batches N" in done.stdout) == ("pipelines" not in gone)
