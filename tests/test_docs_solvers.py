"""The user's guide to the solvers says what the registry says; its table is one of `docs.make_pages`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from remat_cli.commands.solvers import list_solvers
from remat_cli.solvers import PAGERS, SOLVERS

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "solvers.md"
NAMED_FOR_ALL = {"close_gaps"}


def section(title: str) -> str:
    return GUIDE.read_text().split(f"## {title}\n")[1].split("\n## ")[0]


def test_every_solver_is_recommended_for_something():
    named = set(re.findall(r"`([a-z-]+)`", section("Which for what")))
    assert named == set(SOLVERS)


def test_every_solver_lies_where_the_guide_says():
    """Each registered file is in a folder of the table, and each folder is there."""
    named = set(re.findall(r"`(remat_cli/[\w/]+?)/?(?:\w+\.py)?`", section("Where a solver lies")))
    assert all((GUIDE.parents[1] / folder).is_dir() for folder in named)
    homes = {"/".join(target.partition(":")[0].split(".")[:-1]) for target in (*SOLVERS.values(), *PAGERS.values())}
    assert homes <= named


def test_solvers_that_need_marks_are_those_that_refuse_a_plain_chain():
    from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
    from remat_cli.solvers import make_solver

    ops = tuple(OpSpec((op - 1,) if op else (), (op,), (1,), (0,)) for op in range(5))
    problem = Problem(ops, tuple(TensorSpec(1, op) for op in range(5)), (Memory("cpu", 9),), (Device("cpu", 0),))
    refusing = {name for name in SOLVERS if make_solver(name).supports(problem) is not None}
    named = set(re.findall(r"`([a-z-]+)`", section("Marks").split(" need to know")[0]))
    assert named == refusing


OPTIONS = [
    (solver, option)
    for cell in re.findall(r"^\| `([^`]+)` \|", section("Options of note"), flags=re.MULTILINE)
    for solver, _, option in [cell.rpartition(".")]
]


@pytest.mark.parametrize(("solver", "option"), OPTIONS)
def test_options_of_note_exist(solver, option):
    known = {entry.name: {one.name for one in entry.options} for entry in list_solvers().solvers}
    if solver:
        assert option in known[solver]
    else:
        assert option in NAMED_FOR_ALL
        assert sum(option in names for names in known.values()) > 1
