"""What compiling to sessions on several devices, and verifying such a plan, found out."""

from remat_cli.core.schedule.placing import best_device
from remat_cli.core.values.profile import Reference, SessionForm
from remat_cli.core.values.verification import SessionsSeen
from remat_cli.report.compile import CompileReport, VerifyReport, verdict_of
from remat_cli.report.devices.placed import (
    Obstacle,
    PlacedPlan,
    device_reports,
    find_obstacle,
    link_reports,
    placed_recomputes,
)
from remat_cli.report.explain import DeviceReport, LinkReport
from remat_cli.report.solution import SolutionReport
from remat_cli.report.style import Style, lines_of
from remat_cli.report.verdict import Need, ReportVerdict


class SessionsReport(CompileReport, frozen=True, kw_only=True):
    """One compilation to sessions, on devices of which the plan says where ops run.

    The solution's baseline is every op once on `baseline_device`, the best single one, whether or not it fits; so
    overheads may be negative. `single` are the plans of each device alone within the same budgets. `segments` is the
    number of sessions that a run uses, and `way` whether the devices share one. `obstacle` is an op that fits nowhere,
    where that is why there is no plan.
    """

    devices: tuple[DeviceReport, ...]
    links: tuple[LinkReport, ...]
    baseline_device: str
    single: tuple[Reference, ...]
    segments: int
    way: SessionForm
    verification: SessionsSeen | None = None
    obstacle: Obstacle | None

    @property
    def needs(self) -> tuple[Need, ...]:
        """What each memory of the devices holds, where that is known."""
        return tuple(
            {
                each.memory: Need(needed_bytes=held, budget_bytes=each.budget_bytes, memory=each.memory)
                for each in self.devices
                for held in (
                    each.predicted_peak_bytes if each.measured_peak_bytes is None else each.measured_peak_bytes,
                )
                if held is not None
            }.values()
        )

    @property
    def within(self) -> str:
        """Within what there is no plan."""
        return "within these budgets"

    def lines(self, style: Style) -> list[str]:
        """The report for people."""
        return lines_of("remat_cli.report.devices.devices_text:device_compile_lines", self, style)


class SessionsVerifyReport(VerifyReport, frozen=True, kw_only=True):
    """One verification of a plan that is cut into sessions."""

    verification: SessionsSeen

    @property
    def verdict_parts(self) -> ReportVerdict:
        """What the report says first, in its parts."""
        seen, budgets = self.verification, self.asked.memory_budgets
        needs = tuple(
            Need(needed_bytes=predicted if measured is None else measured, budget_bytes=budgets[name], memory=name)
            for name, (predicted, measured) in seen.peaks.items()
            if name in budgets
        )
        return verdict_of(needs, seen, self.asked, None)

    def lines(self, style: Style) -> list[str]:
        """The report for people."""
        return lines_of("remat_cli.report.devices.devices_text:device_verify_lines", self, style)


def sessions_report(
    *, model: str, budget: str, solution: SolutionReport, ops: int, placed: PlacedPlan, seen: SessionsSeen | None = None
) -> SessionsReport:
    """What runs where, beside what each device does alone; files, snippet and warnings are for the caller to add."""
    has_plan = placed.plan is not None
    return SessionsReport(
        model=model,
        budget=budget,
        solution=solution,
        ops=ops,
        verification=seen,
        devices=device_reports(placed, None if seen is None else seen.measured_peak_bytes),
        links=link_reports(placed),
        baseline_device=placed.problem.devices[best_device(placed.problem)].name,
        single=placed.placement.single,
        segments=placed.placement.segments,
        way=placed.placement.way,
        recomputes=placed_recomputes(placed) if has_plan else (),
        obstacle=None if has_plan else find_obstacle(placed),
    )
