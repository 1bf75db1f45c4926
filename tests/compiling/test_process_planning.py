"""What a plan for the process is asked to hold live, and what its form needs on top of that."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import onnx_ir as ir
import pytest

from remat_cli.base.progress import silent
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.planned import Answered, OneModel
from remat_cli.compiling.process import process
from remat_cli.compiling.process.process import ProcessPlanning
from remat_cli.compiling.solve import BudgetAnswer, BudgetQuestion, Search
from remat_cli.contest.runner import tiny_problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.schedule.solver_run import ProvedFloor, SolverRun, Status
from remat_cli.core.values.budget import parse_budget
from remat_cli.solvers import make_solver
from remat_cli.solvers.base import Limits

TARGET_BYTES = 1000
SEARCH = Search(make_solver("auto"), Limits())


def planned(promised_bytes: int) -> OneModel:
    """A plan for so many live bytes, as the stages before give it."""
    problem = tiny_problem().with_budget(TARGET_BYTES)
    run = SolverRun(solver="auto", seed=0, status=Status.FEASIBLE, space="free", floor=ProvedFloor(1), seconds=0.0)
    answer = BudgetAnswer(BudgetQuestion(problem, baseline(problem), "50MiB"), run)
    model = ir.Model(ir.Graph([], [], nodes=[]), ir_version=10)
    written = SimpleNamespace(promised_bytes=promised_bytes, rewritten=SimpleNamespace(model=model))
    return Answered(prepared=None, platform=None, answer=answer, whole=None).as_model(written)


@pytest.mark.parametrize("promised_bytes", [900, TARGET_BYTES, 1200])
def test_what_a_form_needs_on_top_is_part_of_what_the_plan_may_hold(monkeypatch, promised_bytes):
    """Else verification would find that a session needs more than its budget, though the process has room for it."""
    monkeypatch.setattr(process, "plan_one_model", lambda *asked: planned(promised_bytes))
    monkeypatch.setattr(process, "within_overhead", lambda found, search: found)
    request = CompileRequest(None, parse_budget("50MiB").bounding("process"), SEARCH, None)
    planning = ProcessPlanning(None, None, request, Path(), silent())
    assert planning._within(TARGET_BYTES).answer.question.budget_bytes == max(TARGET_BYTES, promised_bytes)
