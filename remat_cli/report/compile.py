"""What compiling and verifying found out, for one device or several, as plain values that become JSON."""

from __future__ import annotations

import msgspec

from remat_cli.core.left_out import LEFT_OUT, applies
from remat_cli.core.placement import Reference
from remat_cli.core.placing import best_device
from remat_cli.core.verification import Verification
from remat_cli.report.devices import DeviceReport, LinkReport
from remat_cli.report.explain import LiveTensor, Recompute
from remat_cli.report.obstacle import Obstacle, find_obstacle
from remat_cli.report.placed import PlacedPlan, device_reports, link_reports, placed_recomputes
from remat_cli.report.regions import RegionReport
from remat_cli.report.solution import EXIT_DONE, EXIT_UNVERIFIED, SolutionReport, compile_exit_code
from remat_cli.report.style import Style

ONE_SESSION_ONLY = (
    "device",
    "blocking_op",
    "is_blocked_by_many",
    "blockers",
    "blocking_workspace_bytes",
    "regions",
    "split_obstacle",
    "gates",
)


class CompileReport(msgspec.Struct, frozen=True, kw_only=True):
    """One compilation. `output` and `plan` are None when nothing was written. What does not apply is left out.

    Of a plan that is one model: `blockers` and `blocking_workspace_bytes` are what is held while `blocking_op` runs:
    together the floor's cause. `is_blocked_by_many`: the op alone would fit, other tensors must be held meanwhile.
    `regions` run in tiles; `split_obstacle` says in one line why splitting cannot help.

    Of a plan that is cut into sessions: the solution's baseline is every op once on `baseline_device`, the best single
    one, whether or not it fits; so overheads may be negative. `single` are the plans of each device alone within the
    same budgets. `segments` is the number of sessions that a run uses. `obstacle` is an op that fits nowhere, where
    that is why there is no plan.
    """

    model: str
    device: str = LEFT_OUT
    budget: str
    solution: SolutionReport
    ops: int
    devices: tuple[DeviceReport, ...] = LEFT_OUT
    links: tuple[LinkReport, ...] = LEFT_OUT
    baseline_device: str = LEFT_OUT
    single: tuple[Reference, ...] = LEFT_OUT
    segments: int = LEFT_OUT
    output: str | None = None
    plan: str | None = None
    failed_output: str | None = None
    verification: Verification | None = None
    recomputes: tuple[Recompute, ...] = ()
    blocking_op: str | None = None
    is_blocked_by_many: bool = False
    blockers: tuple[LiveTensor, ...] = ()
    blocking_workspace_bytes: int = 0
    obstacle: Obstacle | None = LEFT_OUT
    regions: tuple[RegionReport, ...] = ()
    split_obstacle: str | None = None
    gates: int = 0
    snippet: str = ""
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def is_cut_into_sessions(self) -> bool:
        """Whether the plan says where ops run, so that remat runs it."""
        return applies(self.devices)

    def lines(self, style: Style) -> list[str]:
        """The report for people."""
        from remat_cli.report.compile_text import compile_lines

        return compile_lines(self, style)

    @property
    def exit_code(self) -> int:
        """The solution's, or 5 when the model does not keep its promises."""
        return compile_exit_code(self.solution, self.verification)


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """One verification of a plan's model against the original; `budget_bytes` is that of the first memory."""

    plan: str
    model: str
    source: str
    budget_bytes: int
    verification: Verification
    warnings: tuple[str, ...] = ()

    def lines(self, style: Style) -> list[str]:
        """The report for people."""
        from remat_cli.report.compile_text import verify_lines

        return verify_lines(self, style)

    @property
    def exit_code(self) -> int:
        """0 when every promise holds, else 5."""
        return EXIT_DONE if self.verification.passed else EXIT_UNVERIFIED


def on_devices(report: CompileReport, placed: PlacedPlan) -> CompileReport:
    """The report with what runs where, beside what each device does alone."""
    seen = report.verification
    measured = None if seen is None else {name: found for name, (_, found) in seen.peaks.items()}
    return msgspec.structs.replace(
        report,
        devices=device_reports(placed, measured),
        links=link_reports(placed),
        baseline_device=placed.problem.devices[best_device(placed.problem)].name,
        single=placed.placement.single,
        segments=placed.placement.segments,
        recomputes=placed_recomputes(placed) if placed.plan is not None else (),
        obstacle=find_obstacle(placed) if placed.plan is None else None,
        **dict.fromkeys(ONE_SESSION_ONLY, LEFT_OUT),
    )
