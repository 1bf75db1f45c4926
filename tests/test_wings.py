"""A wing can be taken out: without it everything else works, since only its row in `WAYS` knows of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from remat_cli.compiling.ways import WAYS, Way, way
from tests.test_architecture import FILES, imports_of, room_of

PACKAGE = Path(__file__).resolve().parents[1] / "remat_cli"
WINGS = sorted({target.split(".")[1] for target in WAYS.values()} - {"compiling"})
SCRIPT = """
import pkgutil, sys, remat_cli
for module in pkgutil.walk_packages(remat_cli.__path__, "remat_cli."):
    if "__main__" not in module.name:
        __import__(module.name)
report = remat_cli.compile(sys.argv[1], budget="100%", output=sys.argv[2], verify=False, time_limit="1s")
assert report.exit_code == 0, report.verdict
assert remat_cli.inspect(report.plan).peak_bytes == report.solution.peak_bytes
"""


@pytest.mark.parametrize("wing", WINGS)
def test_a_wing_is_imported_by_nothing_else(wing):
    importers = {room_of(path) for path in FILES for name in imports_of(path) if name.startswith(f"remat_cli.{wing}.")}
    assert importers == {wing}


@pytest.mark.parametrize("kind", sorted(WAYS))
def test_a_way_says_what_it_does_for_each_question(kind):
    asked = {name for name in vars(Way) if not name.startswith("_")}
    assert asked <= vars(type(way(kind))).keys()


def test_without_a_wing_everything_else_works(tmp_path):
    """Every module is imported, and a model is compiled and inspected."""
    shutil.copytree(PACKAGE, tmp_path / "remat_cli", ignore=shutil.ignore_patterns("__pycache__", "paging"))
    for shared in ("core", "runtime", "solvers"):  # rooms with a folder of the wing's name, which are no part of it
        shutil.copytree(PACKAGE / shared / "paging", tmp_path / "remat_cli" / shared / "paging")
    command = [sys.executable, "-c", SCRIPT, str(PACKAGE.parent / "sample_models" / "chain.onnx"), "chain.remat.onnx"]
    place = {"PYTHONPATH": str(tmp_path), "REMAT_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "remat_cli" / "paging").exists()
