"""What compiling and verifying found out, for one device or several, as plain values that become JSON."""

import msgspec

from remat_cli.core.placing import best_device
from remat_cli.core.profile import Reference, Way
from remat_cli.core.verification import LEFT_OUT, Verification, applies
from remat_cli.report.explain import DeviceReport, LinkReport, LiveTensor, Recompute
from remat_cli.report.paged import PagingReport
from remat_cli.report.placed import Obstacle, PlacedPlan, device_reports, find_obstacle, link_reports, placed_recomputes
from remat_cli.report.regions import RegionReport
from remat_cli.report.solution import SolutionReport, compile_exit_code, verified_exit_code
from remat_cli.report.style import Style, lines_of, percent, plural, shorten

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

    `gated_output` is the plan as a model for sessions of the user's own, where it is another one.

    `uncounted_bytes` of the solution's budget are for mapped weights, which a budget on the process does not count.

    Of a plan that is one model: `blockers` and `blocking_workspace_bytes` are what is held while `blocking_op` runs:
    together the floor's cause. `is_blocked_by_many`: the op alone would fit, other tensors must be held meanwhile.
    `regions` run in tiles; `split_obstacle` says in one line why splitting cannot help.

    Of a plan that is cut into sessions: the solution's baseline is every op once on `baseline_device`, the best single
    one, whether or not it fits; so overheads may be negative. `single` are the plans of each device alone within the
    same budgets. `segments` is the number of sessions that a run uses, and `way` whether the devices share one.
    `obstacle` is an op that fits nowhere, where that is why there is no plan.
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
    way: Way = LEFT_OUT
    output: str | None = None
    plan: str | None = None
    failed_output: str | None = None
    gated_output: str | None = None
    verification: Verification | None = None
    uncounted_bytes: int = 0
    recomputes: tuple[Recompute, ...] = ()
    blocking_op: str | None = None
    is_blocked_by_many: bool = False
    blockers: tuple[LiveTensor, ...] = ()
    blocking_workspace_bytes: int = 0
    obstacle: Obstacle | None = LEFT_OUT
    paging: PagingReport = LEFT_OUT
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
        return lines_of("remat_cli.report.compile_text:compile_lines", self, style)

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
        return lines_of("remat_cli.report.compile_text:verify_lines", self, style)

    @property
    def exit_code(self) -> int:
        """0 when every promise holds, 5 where outputs or order were not kept, 4 where only bytes differ."""
        return verified_exit_code(self.verification)


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
        way=placed.placement.way,
        recomputes=placed_recomputes(placed) if placed.plan is not None else (),
        obstacle=find_obstacle(placed) if placed.plan is None else None,
        **dict.fromkeys(ONE_SESSION_ONLY, LEFT_OUT),
    )


MOST_NAMES = 3


def solver_line(solution: SolutionReport, against: str, more: str = "") -> str:
    """Who found the plan, what it costs against what, what is proved in which space, and how long it took."""
    if solution.status == "optimal":
        proof = "proved optimal"
    elif solution.lower_bound_percent is None:
        proof = "no bound proved"
    else:
        proof = f"proved least {percent(solution.lower_bound_percent)}, gap {solution.gap_percent or 0:.2f} %"
    found = f"{percent(solution.overhead_percent)} {against}, {proof} (space {solution.space}{more})"
    cut_short = ", interrupted" if solution.interrupted else ""
    return f"{solution.solver}: {found}, {solution.seconds:.1f} s{cut_short}, seed {solution.seed}"


def recomputed(report: CompileReport) -> str:
    """How many ops are recomputed, and the first of them."""
    names = ", ".join(shorten(one.op, 32) for one in report.recomputes[:MOST_NAMES])
    left = len(report.recomputes) - MOST_NAMES
    more = f" and {left} more" if left > 0 else ""
    return f"{plural(report.solution.recomputed_ops or 0, 'recomputed op')}{f': {names}{more}' if names else ''}"


def verdict_lines(seen: Verification, style: Style, more: str = "") -> list[str]:
    """Whether all promises hold, else which do not."""
    runtime = f" on ONNX Runtime {seen.runtime_version}"
    if seen.passed:
        return [style.paint("verified", "good") + runtime + more]
    return [style.paint("VERIFICATION FAILED", "bad") + runtime] + [
        style.paint(f"  {failure}", "bad") for failure in seen.failures
    ]


def delivery_lines(report: CompileReport, how: str, style: Style) -> list[str]:
    """Which files were written, and how to run them."""
    lines = []
    if report.output is not None and report.plan is not None:
        lines += ["", f"model {report.output}", f"plan  {report.plan}"]
        gated = "in the plan's order in any session that fuses no ops (ORT_ENABLE_BASIC)"
        lines += [] if report.gated_output is None else [f"gated {report.gated_output}, {gated}"]
    if report.failed_output is not None:
        lines += ["", style.paint(f"nothing was delivered; the failed model is kept as {report.failed_output}", "bad")]
    if report.snippet and report.exit_code == 0:
        lines += ["", how, "", *(f"    {line}".rstrip() for line in report.snippet.rstrip().splitlines())]
    return lines
