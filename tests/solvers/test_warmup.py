"""Every solver says which compiled code it runs, so that none is compiled or loaded while its time limit runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from remat_cli.base.progress import COMPILING_KERNELS, SOLVING
from remat_cli.solvers import SOLVERS, make_solver
from remat_cli.solvers.base import Compiled

ROOT = Path(__file__).resolve().parents[2]
COMPILED = [name for name in SOLVERS if isinstance(make_solver(name), Compiled)]
OTHERS = [name for name in SOLVERS if name not in COMPILED]

# Solves problems with each group of solvers in a process of its own, which begins as a fresh one without kernels, and
# tells which kernels came in meanwhile: by name, how many versions of each.
WATCH = """
import json, os, sys
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

def watch(names):
    found, counts = [], {"decided": 0, "searched": 0, "kernels": 0}
    for name in names:
        solver = make_solver(name)
        taken = [problem for problem in problems if solver.supports(problem) is None]
        for problem in sorted(taken, key=must_search):  # first what needs no search, while nothing is loaded
            if must_search(problem):
                load_kernels(solver.kernels(problem) if isinstance(solver, Compiled) else (), lambda: None)
            found += came_in(name, problem)
            counts["searched" if must_search(problem) else "decided"] += 1
    counts["kernels"] = len(loaded())
    print(json.dumps([names, found, counts]), flush=True)

assert not loaded()
for names in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        watch(names)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, names
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


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_search_runs_no_kernel_that_its_solver_did_not_name():
    groups = [*([name] for name in COMPILED), OTHERS]
    told = [json.loads(line) for line in run(WATCH, json.dumps(groups)).splitlines()]
    assert [names for names, _, _ in told] == groups
    for names, found, counts in told:
        assert found == [], names
        assert counts["searched"] > 0, names
        assert (counts["kernels"] > 0) == (names != OTHERS), names


# Plans a small problem as the commands do, and tells what was heard, how long the search took and what it found.
PLAN = """
import json, sys
from remat_cli.base.progress import listening
from remat_cli.core.schedule.simulate import baseline
from remat_cli.solvers import make_solver
from remat_cli.solvers.base import Limits
from remat_cli.compiling.solve import BudgetQuestion, Search, answer
from tests.solvers.test_contract import PROBLEMS

name, kind, seconds = sys.argv[1:]
problem = next(small.problem() for small in PROBLEMS if small.name == kind)
heard = []
search = Search(make_solver(name), Limits(seconds=float(seconds)))
question = BudgetQuestion(problem, baseline(problem), str(problem.memories[0].budget_bytes))
found = answer(question, search, listening(lambda event: heard.append(str(event))))
schedule = None if found.plan is None else found.plan.schedule.op_ids()
print(json.dumps([heard, found.run.seconds, found.run.status.value, schedule]))
"""
SLACK_SECONDS = 1.0  # for the last steps of a search on a busy machine; to compile takes several times as long


def plan(solver, kind, seconds, cache):
    return json.loads(run(PLAN, solver, kind, str(seconds), NUMBA_CACHE_DIR=str(cache)).splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["multi-chain", "rotor"])
def test_a_cold_search_keeps_its_limit_and_finds_what_it_finds_warm(solver, tmp_path):
    cold, warm = (plan(solver, "training, workspace", 0.5, tmp_path) for _ in range(2))
    assert COMPILING_KERNELS in cold[0]
    assert COMPILING_KERNELS not in warm[0]
    assert cold[1] < 0.5 + SLACK_SECONDS
    assert cold[2:] == warm[2:]
    assert cold[3] is not None


@pytest.mark.slow
def test_a_cold_portfolio_keeps_its_limit_and_finds_what_it_finds_warm(tmp_path):
    cold = plan("auto", "training, workspace", 0.5, tmp_path)
    run("from remat_cli.solvers.search.warmup import warm_up; warm_up()", NUMBA_CACHE_DIR=str(tmp_path))
    warm = plan("auto", "training, workspace", 0.5, tmp_path)
    assert COMPILING_KERNELS in cold[0] or cold[2] == "optimal"
    assert COMPILING_KERNELS not in warm[0]
    assert cold[1] < 0.5 + SLACK_SECONDS
    assert cold[2:] == warm[2:]
    assert cold[3] is not None


def test_what_is_proved_without_kernels_compiles_none(tmp_path):
    heard, _, status, schedule = plan("auto", "unet", 20.0, tmp_path)
    assert status == "optimal"
    assert schedule is not None
    assert COMPILING_KERNELS not in heard
    assert not list(tmp_path.rglob("*.nbi"))


@pytest.mark.slow
def test_a_cold_search_tells_its_first_plan_before_kernels_are_compiled(tmp_path):
    heard, _, _, schedule = plan("local-search", "unet", 2.0, tmp_path)
    assert heard[0] == SOLVING
    assert heard[1].startswith("incumbent")
    assert heard.index(COMPILING_KERNELS) < len(heard) - heard[::-1].index(SOLVING)
    assert schedule is not None


# Compiles the sample U-Net as a user does, and tells what was heard.
COMPILE = """
import json, sys
import remat_cli

heard = []
out = sys.argv[1] + "/small.onnx"
model = "sample_models/unet.onnx"
remat_cli.compile(model, budget="80%", output=out, verify=False, on_progress=lambda event: heard.append(str(event)))
print(json.dumps(heard))
"""


@pytest.mark.slow
def test_the_first_plan_of_a_model_comes_before_kernels_are_compiled(tmp_path):
    caches = {"NUMBA_CACHE_DIR": str(tmp_path / "kernels"), "REMAT_CACHE_DIR": str(tmp_path / "profiles")}
    heard = json.loads(run(COMPILE, str(tmp_path), **caches).splitlines()[-1])
    first = next(number for number, text in enumerate(heard) if text.startswith("incumbent +"))
    assert SOLVING in heard[:first]
    assert COMPILING_KERNELS not in heard[:first]
