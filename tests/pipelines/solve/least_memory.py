"""The integer program the other way round: the least memory for a period, which finds rows that are too weak."""

from __future__ import annotations

from collections.abc import Sequence

from ortools.sat.python import cp_model

from remat_cli.pipelines.plan.chain import MemoryModel, PeriodicSchedule, PipelineChain
from remat_cli.pipelines.solve.program import PipelineProgram

MOST_BYTES = 100_000  # of any device of these small chains


def least_memory(
    chain: PipelineChain, devices: int, period: int, model: MemoryModel, allocation: Sequence[int] | None = None
) -> tuple[int, PeriodicSchedule]:
    """The least bytes of the fullest device, proved, and a schedule of that period that takes no more."""
    program = PipelineProgram(chain, devices, model, allocation)
    program.model.add(program.period == period)
    memory = program.model.new_int_var(0, MOST_BYTES, "M")
    program.limit_memory(memory)
    program.model.minimize(memory)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = 60.0
    solver.parameters.num_workers = 1
    assert solver.solve(program.model) == cp_model.OPTIMAL
    return solver.value(memory), program.schedule(solver.value)
