"""The best allocation and 1-periodic schedule of a chain together, as an integer program for CP-SAT.

The program of Shilova 2021, ch. 6, with its corrections: transitivity in all orientations, transfers that count only
where they are used, memory of every task. Times are whole numbers, so nothing is lost to tolerances. Small chains, or
fixed allocations, only: O(layers^2) literals and O(layers^3) rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ortools.sat.python import cp_model

from remat_cli.pipelines.plan.chain import MemoryModel, PeriodicSchedule, PipelineChain
from remat_cli.pipelines.solve.program import PipelineProgram


@dataclass(frozen=True)
class ProgramEffort:
    """How long CP-SAT may search, with how many workers, from which seed; and for periods below which only."""

    seconds: float = 60.0
    workers: int = 1
    seed: int = 0
    below: int | None = None


@dataclass(frozen=True)
class ProgramAnswer:
    """What CP-SAT found and proved; `value` and `bound` are periods.

    Without a schedule: proved impossible, or nothing found in time.
    """

    schedule: PeriodicSchedule | None
    value: int | None
    bound: int | None
    is_infeasible: bool

    @property
    def is_optimal(self) -> bool:
        """Whether the value is proved least."""
        return self.value is not None and self.value == self.bound


def least_period(
    chain: PipelineChain,
    devices: int,
    memory: int,
    model: MemoryModel = "full",
    *,
    allocation: Sequence[int] | None = None,
    effort: ProgramEffort | None = None,
) -> ProgramAnswer:
    """The least period within a memory per device.

    Args:
        chain: layers, or stages that run as blocks.
        devices: how many there are.
        memory: bytes of each.
        model: what counts as memory.
        allocation: the device of each layer, where that is settled.
        effort: how hard to search.
    """
    program = PipelineProgram(chain, devices, model, allocation)
    program.limit_memory(memory)
    effort = effort or ProgramEffort()
    if effort.below is not None:
        program.model.add(program.period < effort.below)
    program.model.minimize(program.period)
    solver: Any = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = effort.seconds
    solver.parameters.num_workers = effort.workers
    solver.parameters.random_seed = effort.seed
    status = solver.solve(program.model)
    if status == cp_model.INFEASIBLE:
        return ProgramAnswer(None, None, None, is_infeasible=True)
    bound = round(solver.best_objective_bound)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return ProgramAnswer(None, None, bound, is_infeasible=False)
    schedule = program.schedule(solver.value)
    return ProgramAnswer(schedule, round(solver.objective_value), bound, is_infeasible=False)
