"""What one run of a solver said, judged: the one telling of a solution that reports, plans and benches read."""

import enum
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from remat_cli.core.schedule.plan import Plan

Space = Literal["free", "free_c2", "first_in_order", "staged", "staged_c2"]
StatusName = Literal["optimal", "feasible", "infeasible", "not_found"]


class Status(enum.Enum):
    """What a solver knows when it stops; INFEASIBLE and OPTIMAL are proved, in the solution's space."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    NOT_FOUND = "not_found"


@dataclass(frozen=True)
class ProvedFloor:
    """No schedule of any kind meets a total budget of less than `bytes`.

    `ops` are the op that cannot be reached with less and the op whose step needs `bytes` on the way there, which are
    the same if one step alone says so (none: the fixed part, or the model's outputs together); `held` are the storages
    (their first tensors) that are in memory at that step besides its own. `facts` are figures for people.
    """

    bytes: int
    ops: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    facts: dict[str, int] = field(default_factory=dict)

    @property
    def op(self) -> int | None:
        """The op whose step needs `bytes`."""
        return self.ops[-1] if self.ops else None


@dataclass(frozen=True)
class Improvement:
    """One point of an anytime trace."""

    seconds: float
    time_ns: int | None
    bound_ns: int | None


@dataclass(frozen=True, kw_only=True)
class SolverRun:
    """A judged solution. `plan` is None when no schedule within budget was found; status and bound hold in `space`.

    `interrupted`: the search was told to end, so that this is what it had by then.
    """

    solver: str
    seed: int
    status: Status
    space: Space
    floor: ProvedFloor
    seconds: float
    plan: Plan | None = None
    options: dict[str, Any] = field(default_factory=dict)
    bound_ns: int | None = None
    seconds_to_best: float | None = None
    trace: tuple[Improvement, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False


def cut_short(run: SolverRun, *, is_split: bool) -> SolverRun:
    """What is known of a search that was told to end: the plan by then, if there is one, and no proof about it.

    A bound that was proved before holds for whole ops; with splits it would be one for the splits chosen so far.
    """
    status = Status.NOT_FOUND if run.plan is None else Status.FEASIBLE
    return replace(run, status=status, bound_ns=None if is_split else run.bound_ns, interrupted=True)
