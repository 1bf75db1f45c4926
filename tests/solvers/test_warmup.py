"""Every solver says which compiled code it runs, so that none is compiled or loaded while its time limit runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from remat_cli.solvers import SOLVERS, make_solver
from remat_cli.solvers.base import Compiled

ROOT = Path(__file__).resolve().parents[2]
COMPILED = [name for name in SOLVERS if isinstance(make_solver(name), Compiled)]
OTHERS = [name for name in SOLVERS if name not in COMPILED]

# Solves problems in a fresh process and tells which kernels came in meanwhile: by name, how many versions of each.
WATCH = """
import json, sys
from numba.core.dispatcher import Dispatcher
from remat_cli.solvers import make_solver, must_search, solve
from remat_cli.solvers._warmup import load_kernels
from remat_cli.solvers.base import Compiled, Limits
from tests.solvers.test_contract import PROBLEMS
from tests.solvers.random_devices import random_devices

def loaded():
    modules = [module for name, module in sys.modules.items() if name.startswith("remat_cli.solvers.")]
    kernels = {kernel for module in modules for kernel in vars(module).values() if isinstance(kernel, Dispatcher)}
    return {(kernel.py_func.__module__, kernel.__name__, str(each)) for kernel in kernels for each in kernel.signatures}

def came_in(solver, problem):
    before = loaded()
    solve(problem, solver, Limits(seconds=20.0, work=2_000))
    return sorted(map(list, loaded() - before))

kinds = ["chain", "long skip", "budget below a working set", "unet", "in place", "training", "join"]
problems = [*(small.problem() for small in PROBLEMS if small.name in kinds), *map(random_devices, range(2))]
found, counts = [], {"decided": 0, "searched": 0, "kernels": 0}
for name in sys.argv[1:]:
    solver = make_solver(name)
    taken = [problem for problem in problems if solver.supports(problem) is None]
    for problem in sorted(taken, key=must_search):  # first what needs no search, while nothing is loaded
        if must_search(problem):
            load_kernels(solver.kernels(problem) if isinstance(solver, Compiled) else (), lambda: None)
        found += came_in(name, problem)
        counts["searched" if must_search(problem) else "decided"] += 1
counts["kernels"] = len(loaded())
print(json.dumps([found, counts]))
"""


def run(script: str, *words: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("names", [*([name] for name in COMPILED), OTHERS], ids=" ".join)
def test_a_search_runs_no_kernel_that_its_solver_did_not_name(names):
    found, counts = json.loads(run(WATCH, *names).splitlines()[-1])
    assert found == []
    assert counts["searched"] > 0
    assert (counts["kernels"] > 0) == (names != OTHERS)


# Plans a small problem as the commands do, and tells what was announced, how long the search took and what it found.
PLAN = """
import json, sys, time
from remat_cli.base.progress import COMPILING_KERNELS, silent
from remat_cli.settings.settings import load_settings
from remat_cli.stages.solve import answer, ask
from tests.solvers.test_contract import PROBLEMS

class Heard(silent):
    stages = []
    def stage(self, text):
        self.stages.append(text)

problem = next(small.problem() for small in PROBLEMS if small.name == "training, workspace")
budget = str(problem.memories[0].budget_bytes)
config = load_settings({"solver": sys.argv[1], "budget": budget, "time_limit": "0.5s", "threads": 1}, None, None)
found = answer(ask(problem, config), config, Heard())
schedule = None if found.plan is None else found.plan.schedule.op_ids()
print(json.dumps([COMPILING_KERNELS in Heard.stages, found.run.seconds, found.run.status, schedule]))
"""
SLACK_SECONDS = 1.0  # for the last steps of a search on a busy machine; to compile takes several times as long


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["multi-chain", "rotor", "auto"])
def test_a_cold_search_keeps_its_limit_and_finds_what_it_finds_warm(solver, tmp_path):
    cold, warm = (json.loads(run(PLAN, solver, NUMBA_CACHE_DIR=str(tmp_path))) for _ in range(2))
    assert cold[0]
    assert not warm[0]
    assert cold[1] < 0.5 + SLACK_SECONDS
    assert cold[2:] == warm[2:]
    assert cold[3] is not None
