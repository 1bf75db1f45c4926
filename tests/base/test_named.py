"""What tables name, where a library that only planning needs is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import remat_cli
from remat_cli.base.errors import MissingDependency
from remat_cli.base.named import PLANNERS, named

WITHOUT = """
import sys
for name in {planners!r}:
    sys.modules[name] = None
from remat_cli.cli import main
sys.exit(main(sys.argv[1:]))
"""


def run_without_planners(*words: str, cache: Path) -> subprocess.CompletedProcess[str]:
    code = WITHOUT.format(planners=PLANNERS)
    environment = {"REMAT_CACHE_DIR": str(cache), "PYTHONPATH": str(Path(remat_cli.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, env=environment
    )


def test_an_import_of_something_else_stays_what_it_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "remat_cli.base.clock", None)
    with pytest.raises(ModuleNotFoundError):
        named("remat_cli.base.clock:Clock")


@pytest.mark.parametrize("library", PLANNERS)
def test_a_planner_that_is_not_installed_is_told_with_how_to_get_it(monkeypatch, library):
    def absent(module):
        raise ModuleNotFoundError(f"No module named '{library}'", name=f"{library}.part")

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(MissingDependency, match=rf'planning needs {library}, .*: pip install "remat_cli\[plan\]"'):
        named("remat_cli.solvers.portfolio:Portfolio")


def test_plans_are_inspected_run_and_verified_without_what_plans(samples, tmp_path):
    plan = samples.compiled("chain", "60%").plan
    for command in ("inspect", "run", "verify"):
        done = run_without_planners(command, str(plan), cache=tmp_path)
        assert done.returncode == 0, done.stderr
    done = run_without_planners("solvers", cache=tmp_path)
    assert (done.returncode, "planning needs" in done.stderr) == (1, True)
