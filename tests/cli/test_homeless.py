"""remat for a user without a home whose package cannot be written, as in containers, on CI and in cloud functions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples" / "digits.onnx"
NOWHERE = "/dev/null/none"
"""A place that nobody can make, root included."""
NOTE = "note: no cache directory can be written"

# Compiles a kernel, and tells whether it has a place in a cache and what is said of it before and after.
KERNEL = """
from remat_cli.solvers import _warmup
from remat_cli.solvers.chains import multi_chain
kernel = multi_chain._fill
before = _warmup.is_compiled([kernel])
multi_chain.join_table((2, 2))
print(_warmup.can_keep(kernel), before, _warmup.is_compiled([kernel]))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The package where no compiled code can lie beside its source: a file has the name of the folder for it."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT / "remat_cli", folder / "remat_cli", ignore=shutil.ignore_patterns("__pycache__"))
    for each in [*folder.rglob("*/")]:
        (each / "__pycache__").write_text("")
    return folder


def homeless(package, tmp_path, *words, **more):
    """Run Python on the package, with a folder of its own for temporary files."""
    (tmp_path / "temporary").mkdir()
    kept = {key: value for key, value in os.environ.items() if key not in ("XDG_CACHE_HOME", "REMAT_CACHE_DIR")}
    places = {"HOME": NOWHERE, "PYTHONPATH": str(package), "TMPDIR": str(tmp_path / "temporary")}
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**kept, **places, **more},
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "temporary").iterdir()) == []
    return done


def test_without_a_home_a_model_is_inspected_and_one_line_says_what_is_forgotten(package, tmp_path):
    done = homeless(package, tmp_path, "-m", "remat_cli", "inspect", str(MODEL), "--dim", "batch=8")
    assert "peak" in done.stdout
    assert done.stderr.count(NOTE) == 1


@pytest.mark.slow
def test_a_chosen_cache_directory_holds_costs_and_kernels(package, tmp_path):
    """A command says where they lie before the first kernel is loaded; one kernel is enough to see it."""
    command = f"from remat_cli.cli import main\nassert main(['inspect', {str(MODEL)!r}, '--dim', 'batch=8']) == 0\n"
    done = homeless(package, tmp_path, "-c", command + KERNEL, REMAT_CACHE_DIR=str(tmp_path / "cache"))
    assert "note" not in done.stderr
    assert done.stdout.splitlines()[-1] == "True False True"
    assert {each.name for each in (tmp_path / "cache").iterdir()} == {"kernels", "profiles.sqlite3"}


@pytest.mark.slow
def test_the_python_functions_do_the_same(package, tmp_path):
    words = f"{str(MODEL)!r}, dim={{'batch': 8}}, on_progress=print"
    script = f"import remat_cli; print(remat_cli.inspect({words}).exit_code)"
    done = homeless(package, tmp_path, "-c", script)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stdout.count(NOTE) == 1


def test_kernels_are_compiled_where_nothing_can_be_kept(package, tmp_path):
    done = homeless(package, tmp_path, "-c", KERNEL, NUMBA_CACHE_DIR=NOWHERE)
    assert done.stdout.split() == ["False", "False", "True"]


def test_kernels_are_kept_in_the_place_that_numba_is_told(package, tmp_path):
    done = homeless(package, tmp_path, "-c", KERNEL, NUMBA_CACHE_DIR=str(tmp_path / "kernels"))
    assert done.stdout.split() == ["True", "False", "True"]


@pytest.mark.slow
def test_without_a_home_a_model_is_compiled(package, tmp_path):
    words = ("compile", str(ROOT / "sample_models" / "unet.onnx"), "--budget", "60%", "--verify", "fast")
    done = homeless(package, tmp_path, "-m", "remat_cli", *words, "-o", str(tmp_path / "unet.remat.onnx"))
    assert "same bits" in done.stdout
