"""What one compile was asked for, in the form that its stages take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from remat_cli.core.budget import Budget, Scope
from remat_cli.core.conditions import Conditions
from remat_cli.core.splits import SplitOptions
from remat_cli.stages.solve import Search


@dataclass(frozen=True)
class CompileRequest:
    """Conditions, budgets by memory (`budget` is how the user wrote them), the search, and which splits may be made.

    `overlap` lets copies between memories run beside ops; `capped_run` has verification look for the smallest cap.
    """

    conditions: Conditions
    budget: str
    budgets: Mapping[str, Budget]
    scope: Scope
    search: Search
    splits: SplitOptions
    overlap: bool = False
    capped_run: bool = True
