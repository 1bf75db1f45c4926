"""CP-SAT's part in the portfolio: windows of the best plan, or of what is nearest to the budget, in turns."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import simulate
from remat_cli.solvers._sharing import condense
from remat_cli.solvers.base import Limits
from remat_cli.solvers.windows.search import Windows

WHOLE_SHARE = 0.5  # of a turn, for the whole problem at once


@dataclass
class Finisher:
    """Keeps the windows, with the sizes they have learned, from turn to turn.

    `take` hears of each schedule within budget. Problems of up to `whole_ops` ops are also solved as a whole, once for
    each best plan, for at most half a turn.
    """

    problem: Problem
    limits: Limits
    take: Callable[[Schedule | None, int | None], None]
    whole_ops: int
    tried: Schedule | None = None
    whole: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.condensed = condense(self.problem)
        baseline_ops = list(range(len(self.condensed.problem.ops)))

        def found(ops: list[int]) -> None:
            # Within budget or not, the judge decides.
            schedule = self.condensed.expand(Schedule.of_ops(ops))
            if simulate(self.problem, schedule).peak <= self.problem.memories[0].budget_bytes:
                self.take(schedule, None)

        self.windows = Windows(self.condensed, self.limits, baseline_ops, found)

    @property
    def facts(self) -> dict[str, Any]:
        """What the windows say of themselves, and how often the whole problem was tried and solved to its end."""
        return self.windows.facts | {"whole": {"tried": len(self.whole), "solved": sum(self.whole)}}

    def run(self, limits: Limits, best: Schedule | None, bound_ns: int) -> Schedule | None:
        """One turn from the best plan; without one, from the last turn's, which is returned to start a search from."""
        if best is not None and (best is not self.tried or self.windows.is_above_budget):
            self.windows.begin(self.condensed.contract(best).op_ids())
        if best is not None and best is not self.tried and len(self.condensed.problem.ops) <= self.whole_ops:
            self.tried = best
            part = replace(limits, seconds=limits.seconds_left * WHOLE_SHARE, started=time.monotonic())
            if limits.work is not None:
                part = replace(part, work=max(1, int(limits.work * WHOLE_SHARE)))
            self.whole.append(self.windows.solve_whole(part, bound_ns))
        self.windows.run(replace(limits, work=None if limits.work is None else max(1, limits.work - self.windows.work)))
        if best is not None:
            return None
        return self.condensed.expand(Schedule.of_ops(self.windows.ops))
