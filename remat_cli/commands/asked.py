"""What a command is asked for: keywords as settings, and settings as what stages take."""

from __future__ import annotations

from remat_cli.settings.settings import Settings, require_budget
from remat_cli.solvers import make_solver
from remat_cli.solvers.base import Limits
from remat_cli.stages.request import CompileRequest
from remat_cli.stages.solve import Search


def search_of(settings: Settings) -> Search:
    """How plans are searched for.

    Raises:
        ConfigError: no such solver, no such option, or a value that it cannot have.
    """
    limits = Limits(
        seconds=settings.time_limit_seconds,
        workers=settings.workers,
        seed=settings.seed,
        gap=float(settings.gap_share),
        order=settings.order,
    )
    solver = make_solver(settings.solver, settings.solver_options)
    return Search(solver, limits, settings.max_overhead_share)


def request_of(settings: Settings) -> CompileRequest:
    """What a compile is asked for.

    Raises:
        ConfigError: there is no budget, or it or the solver cannot be used.
    """
    return CompileRequest(
        conditions=settings.conditions,
        budget=require_budget(settings).text,
        budgets=settings.budgets,
        scope=settings.budget_scope,
        search=search_of(settings),
        splits=settings.splits,
        overlap=settings.overlap,
        capped_run=settings.capped_run,
    )
