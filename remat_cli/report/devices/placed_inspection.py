"""What `inspect` reports of a plan that says where ops run."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.schedule.placing import best_device
from remat_cli.core.schedule.simulate import baseline
from remat_cli.report.devices.placed import (
    PlacedPlan,
    device_reports,
    link_reports,
    memory_reports,
    placed_recomputes,
    placement_matrix,
)
from remat_cli.report.explain import MemoryReport, PlacementMatrix
from remat_cli.report.inspection import InspectReport, promised
from remat_cli.report.solution import difference
from remat_cli.report.style import Style, lines_of
from remat_cli.report.verdict import Need


class PlacedInspectReport(InspectReport, frozen=True, kw_only=True):
    """Where the memory of a plan goes that says where ops run, and when each is there."""

    picture: ClassVar[Literal["memory", "placement"]] = "placement"
    placement: PlacementMatrix

    @property
    def needs(self) -> tuple[Need, ...]:
        """What is needed of every memory, by prediction."""
        return tuple(
            Need(needed_bytes=each.peak_bytes, budget_bytes=each.budget_bytes, memory=each.name)
            for each in self.memories
        )

    def lines(self, style: Style) -> list[str]:
        """Everything about one plan, on all its devices."""
        return lines_of("remat_cli.report.devices.inspection_devices:device_inspect_lines", self, style)


def inspect_placed(path: Path, file: PlanFile, warnings: tuple[str, ...] = ()) -> PlacedInspectReport:
    """Where each op runs and what every memory holds; figures outside `memories` are those of the first memory.

    Raises:
        ModelError: the plan contradicts itself.
    """
    placed = PlacedPlan(file.graph, file.problem(), file.placed(), file.plan())
    return placed_inspection(path, file, placed, memory_reports(placed), warnings)


def placed_inspection(
    path: Path, file: PlanFile, placed: PlacedPlan, memories: Sequence[MemoryReport], warnings: tuple[str, ...]
) -> PlacedInspectReport:
    """Inspect a placed plan whose memories are known to hold this."""
    problem, place, solved = placed.problem, placed.placement, file.solved
    first, host = baseline(problem), memories[0]
    return PlacedInspectReport(
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
        memories=tuple(memories),
        placement=placement_matrix(placed),
        single=place.single,
        segments=place.segments,
        way=place.way,
        **promised(file),
        baseline_device=problem.devices[best_device(problem)].name,
        warnings=warnings,
    )
