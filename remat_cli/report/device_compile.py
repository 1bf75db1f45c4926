"""What compiling for several devices found out, as plain values that become JSON."""

from __future__ import annotations

import msgspec

from remat_cli.core.device_verification import DeviceVerification
from remat_cli.core.placement import Reference
from remat_cli.core.placing import best_device
from remat_cli.core.simulate import baseline
from remat_cli.report.devices import DeviceReport, LinkReport
from remat_cli.report.explain import Recompute
from remat_cli.report.obstacle import Obstacle, find_obstacle
from remat_cli.report.placed import Placed, device_reports, link_reports, placed_recomputes, predicted_peak
from remat_cli.report.report import SolutionReport, SolverRun, compile_exit_code, solution_report
from remat_cli.report.style import Style


class DeviceCompileReport(msgspec.Struct, frozen=True, kw_only=True):
    """One compilation for several devices. `output` and `plan` are None when nothing was written.

    The solution's baseline is every op once on `baseline_device`, the best single one, whether or not it fits; so
    overheads may be negative. `single` are the plans of each device alone within the same budgets. `segments` is the
    number of sessions that a run uses. `obstacle` is an op that fits nowhere, where that is why there is no plan.
    """

    model: str
    budget: str
    ops: int
    devices: tuple[DeviceReport, ...]
    links: tuple[LinkReport, ...]
    solution: SolutionReport
    baseline_device: str
    single: tuple[Reference, ...] = ()
    segments: int = 0
    recomputes: tuple[Recompute, ...] = ()
    obstacle: Obstacle | None = None
    verification: DeviceVerification | None = None
    output: str | None = None
    plan: str | None = None
    failed_output: str | None = None
    snippet: str = ""
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """The solution's, or 5 when the plan does not keep its promises."""
        return compile_exit_code(self.solution, self.verification)

    def lines(self, style: Style) -> list[str]:
        """What was compiled to what, device by device, and what that gains."""
        from remat_cli.report.text_devices import device_compile_lines

        return device_compile_lines(self, style)


def device_compile_report(
    placed: Placed, run: SolverRun, model: str, budget: str, seen: DeviceVerification | None = None
) -> DeviceCompileReport:
    """What is known once a plan is solved, or none was found; files, snippet and warnings are for the caller to add."""
    problem, placement = placed.problem, placed.placement
    solution = solution_report(run, problem, baseline(problem), placed.plan)
    return DeviceCompileReport(
        model=model,
        budget=budget,
        ops=len(placed.graph.ops),
        devices=device_reports(placed, seen.measured_peak_bytes if seen is not None else None),
        links=link_reports(placed),
        solution=msgspec.structs.replace(solution, peak_bytes=predicted_peak(placed, 0)),
        baseline_device=problem.devices[best_device(problem)].name,
        single=placement.single,
        segments=placement.segments,
        recomputes=placed_recomputes(placed) if placed.plan is not None else (),
        obstacle=find_obstacle(placed) if placed.plan is None else None,
        verification=seen,
    )
