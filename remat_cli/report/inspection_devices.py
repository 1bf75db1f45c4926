"""What `inspect` reports of a plan that spans devices."""

from __future__ import annotations

from pathlib import Path

from remat_cli.core.placing import best_device
from remat_cli.core.plan_file import PlanFile
from remat_cli.core.simulate import baseline
from remat_cli.report.placed import (
    PlacedPlan,
    device_reports,
    link_reports,
    memory_reports,
    placed_recomputes,
    placement_matrix,
)
from remat_cli.report.report import InspectReport
from remat_cli.report.solution import difference


def inspect_placed(path: Path, file: PlanFile, warnings: tuple[str, ...] = ()) -> InspectReport:
    """Where each op runs and what every memory holds; figures outside `memories` are those of the first memory.

    Raises:
        ModelError: the plan contradicts itself.
    """
    assert file.placement is not None
    problem = file.problem()
    placed = PlacedPlan(file.graph, problem, file.placement, file.plan())
    memories, first = memory_reports(placed), baseline(problem)
    host, solved = memories[0], file.solved
    return InspectReport(
        path=str(path),
        kind="plan",
        device=", ".join(device.name for device in problem.devices),
        ops=len(file.graph.ops),
        fixed_bytes=host.fixed_bytes,
        floor_bytes=solved.floor_bytes,
        peak_bytes=host.peak_bytes,
        peak_step=host.peak_step,
        peak_op=host.peak_op,
        memory_bytes=host.memory_bytes,
        alive=host.alive,
        workspace_bytes=host.workspace_bytes,
        time=solved.time_ns,
        budget=file.request.budget,
        budget_bytes=host.budget_bytes,
        baseline_memory_bytes=first.memory_bytes[0],
        baseline_peak_bytes=first.peak,
        recomputes=placed_recomputes(placed),
        overhead_percent=solved.overhead_percent,
        lower_bound_percent=solved.lower_bound_percent,
        gap_percent=difference(solved.overhead_percent, solved.lower_bound_percent),
        space=solved.space,
        devices=device_reports(placed),
        links=link_reports(placed),
        memories=memories,
        placement=placement_matrix(placed),
        single=file.placement.single,
        segments=file.placement.segments,
        baseline_device=problem.devices[best_device(problem)].name,
        warnings=warnings,
    )
