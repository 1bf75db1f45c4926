"""One solver on one problem, whether its plans page or not: what comparisons and benches ask of both alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from remat_cli.compiling.page_answer import answer_paged, paged_solution
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.schedule.solver_run import Improvement
from remat_cli.report.solution import SolutionReport, solution_report
from remat_cli.solvers import PAGERS, SOLVERS, make_pager, make_solver, solve
from remat_cli.solvers.base import Limits, Solver
from remat_cli.solvers.paging.question import Pager, PagingTerms


@dataclass(frozen=True)
class CaseSolution:
    """What came of it, and how it got there."""

    solution: SolutionReport
    trace: tuple[Improvement, ...] = ()


def names_of(*, may_page: bool) -> list[str]:
    """All that can be compared, in the order of the registries; where values may page, `auto` is the one that does."""
    return list(dict.fromkeys([*PAGERS, *SOLVERS])) if may_page else list(SOLVERS)


def is_pager(name: str, *, may_page: bool) -> bool:
    """Whether plans of that name page."""
    return may_page and name in PAGERS


def made(name: str, options: Mapping[str, Any], *, may_page: bool) -> Solver | Pager:
    """The solver of that name.

    Raises:
        ConfigError: no such solver, no such option, or a value that it cannot have.
    """
    return make_pager(name, options) if is_pager(name, may_page=may_page) else make_solver(name, options)


def solved(
    problem: Problem, name: str, options: Mapping[str, Any], limits: Limits, terms: PagingTerms | None
) -> CaseSolution:
    """Run the solver of that name and judge what it says.

    Raises:
        ConfigError: the solver does not take this problem.
        BrokenSolver: a schedule was illegal or over budget, or a bound lies above a judged schedule.
    """
    whole = baseline(problem)
    if terms is None or not is_pager(name, may_page=True):
        run = solve(problem, name, limits, options)
        return CaseSolution(solution_report(run, problem, whole), run.trace)
    found = answer_paged(terms.question(problem), make_pager(name, options), limits)
    return CaseSolution(paged_solution(found, problem, whole), found.run.trace)
