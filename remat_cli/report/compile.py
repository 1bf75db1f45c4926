"""What compiling and verifying found out, for one device or several, as plain values that become JSON."""

from typing import ClassVar

import msgspec

from remat_cli.base.units import format_bytes
from remat_cli.core.schedule.placing import best_device
from remat_cli.core.values.profile import Reference, Way
from remat_cli.core.values.promises import Asked, MeasuredPromise, judged
from remat_cli.core.values.runs_on import RunsOn
from remat_cli.core.values.verification import LEFT_OUT, Verification, applies
from remat_cli.report.explain import DeviceReport, LinkReport, LiveTensor, Recompute
from remat_cli.report.paged import PagingReport
from remat_cli.report.placed import Obstacle, PlacedPlan, device_reports, find_obstacle, link_reports, placed_recomputes
from remat_cli.report.regions import RegionReport
from remat_cli.report.runs_on import runs_on_lines
from remat_cli.report.solution import SolutionReport, compile_exit_code, is_too_dear, verified_exit_code
from remat_cli.report.style import Style, lines_of, percent, plural, shorten
from remat_cli.report.verdict import Need, Price, ReportVerdict, bits_of, is_measured, session_need

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


ALSO_IN_JSON = ("fits", "promises", "verdict")


class CompileReport(msgspec.Struct, frozen=True, kw_only=True):
    """One compilation. `output` and `plan` are None when nothing was written. What does not apply is left out.

    `gated_output` is the plan as a model for sessions of the user's own, where it is another one. `runs_on` is where
    what was written runs.

    `asked` is what else was asked for. In JSON `fits`, `promises` and `verdict` stand beside the fields.

    `uncounted_bytes` of the solution's budget are for mapped weights, which a budget on the process does not count.

    Of a plan that is one model: `blockers` and `blocking_workspace_bytes` are what is held while `blocking_op` runs:
    together the floor's cause. `is_blocked_by_many`: the op alone would fit, other tensors must be held meanwhile.
    `regions` run in tiles; `split_obstacle` says in one line why splitting cannot help.

    Of a plan that is cut into sessions: the solution's baseline is every op once on `baseline_device`, the best single
    one, whether or not it fits; so overheads may be negative. `single` are the plans of each device alone within the
    same budgets. `segments` is the number of sessions that a run uses, and `way` whether the devices share one.
    `obstacle` is an op that fits nowhere, where that is why there is no plan.
    """

    also_in_json: ClassVar = ALSO_IN_JSON
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
    runs_on: RunsOn | None = LEFT_OUT
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    asked: Asked = Asked()

    @property
    def promises(self) -> tuple[MeasuredPromise, ...]:
        """All that was promised, with the verdict on each."""
        seen = self._unverified if self.verification is None else ()
        return (*seen, *all_promises(self.verification, self.asked))

    @property
    def _unverified(self) -> tuple[MeasuredPromise, ...]:
        """What a model of one session promises of live bytes, or was to, where nothing was measured."""
        if self.is_cut_into_sessions:
            return ()
        budget = (judged("default_session", self.solution.budget_bytes, None),)
        live = judged("live", self.solution.peak_bytes, None)
        return (live, *(budget if self.asked.process_budget_bytes is None else ()))

    @property
    def fits(self) -> bool:
        """Whether there is a plan that keeps what was asked of it."""
        return compile_verdict(self).fits

    @property
    def verdict(self) -> str:
        """The first line of the report."""
        return compile_verdict(self).text

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
    """One verification of a plan's model against the original; `budget_bytes` is that of the first memory.

    `budget` is as the user wrote it; where that bounds a process, `budget_bytes` are the live bytes that it came to.

    `asked` is what else was asked for. In JSON `fits`, `promises` and `verdict` stand beside the fields.
    """

    also_in_json: ClassVar = ALSO_IN_JSON
    plan: str
    model: str
    source: str
    budget: str = ""
    budget_bytes: int
    verification: Verification
    runs_on: RunsOn | None = LEFT_OUT
    warnings: tuple[str, ...] = ()
    asked: Asked = Asked()

    @property
    def promises(self) -> tuple[MeasuredPromise, ...]:
        """All that was promised, with the verdict on each."""
        return all_promises(self.verification, self.asked)

    @property
    def fits(self) -> bool:
        """Whether the model keeps what was asked of it."""
        return verify_verdict(self).fits

    @property
    def verdict(self) -> str:
        """The first line of the report."""
        return verify_verdict(self).text

    def lines(self, style: Style) -> list[str]:
        """The report for people."""
        return lines_of("remat_cli.report.compile_text:verify_lines", self, style)

    @property
    def exit_code(self) -> int:
        """0 when every promise holds, 5 where outputs or order were not kept, 4 where only bytes differ."""
        return verified_exit_code(self.verification)


def all_promises(seen: Verification | None, asked: Asked) -> tuple[MeasuredPromise, ...]:
    """What one verification showed of all promises, those that only the request knows with them."""
    overhead = None if seen is None else measured_overhead(seen)
    return asked.promises(() if seen is None else seen.promises, overhead, 0.0 if seen is None else seen.noise_percent)


def measured_overhead(seen: Verification) -> float | None:
    """Extra time in percent, where it was measured against the original."""
    return seen.measured_overhead_percent if applies(seen.measured_overhead_percent) else None


def compile_verdict(report: CompileReport) -> ReportVerdict:
    """What a compile's report says first."""
    solution, seen, asked = report.solution, report.verification, report.asked
    if solution.peak_bytes is None:
        return ReportVerdict(no_plan=_no_plan(report), is_open=solution.interrupted)
    needs = (
        _memory_needs(report.devices)
        if report.is_cut_into_sessions
        else (session_need(seen, asked, solution.budget_bytes, solution.peak_bytes, solution.baseline_peak_bytes),)
    )
    return _verdict(needs, seen, asked, solution.overhead_percent)


def verify_verdict(report: VerifyReport) -> ReportVerdict:
    """What the report of a verification says first."""
    seen, asked = report.verification, report.asked
    if not seen.runs_in_one_session:
        needs = tuple(
            Need(needed_bytes=predicted if measured is None else measured, budget_bytes=budget, memory=name)
            for name, (predicted, measured) in seen.peaks.items()
            if (budget := asked.memory_budgets.get(name)) is not None
        )
        return _verdict(needs, seen, asked, None)
    need = session_need(seen, asked, report.budget_bytes, seen.bounded_bytes, seen.original_default_session_peak_bytes)
    return _verdict((need,), seen, asked, seen.predicted_overhead_percent)


def _verdict(
    needs: tuple[Need, ...], seen: Verification | None, asked: Asked, predicted_percent: float | None
) -> ReportVerdict:
    """The figures with what verification showed; without one, by prediction."""
    price = Price(
        predicted_percent=predicted_percent,
        measured_percent=None if seen is None else measured_overhead(seen),
        noise="" if seen is None else seen.noise_told,
        noise_percent=0.0 if seen is None else seen.noise_percent,
        cheaper=asked.cheaper,
        is_looked_up=asked.is_looked_up,
    )
    if seen is None:
        return ReportVerdict(needs=needs, bits="not verified", price=price)
    return ReportVerdict(
        needs=needs,
        is_measured=is_measured(seen, asked),
        broken=seen.failures,
        warned=(*seen.warned, *asked.warned(price.measured_percent, price.noise_percent)),
        bits=bits_of(seen),
        price=price,
    )


def _no_plan(report: CompileReport) -> str:
    """Why there is none, in a few words; the lines below say more."""
    within = f"within {format_bytes(report.asked.process_budget_bytes or report.solution.budget_bytes)}"
    if report.is_cut_into_sessions:
        within = "within these budgets"
    if report.solution.interrupted:
        return f"interrupted before a plan was found {within}"
    if is_too_dear(report.solution):
        return f"no plan was found {within} that costs so little time as asked for"
    if report.solution.status == "infeasible":
        return f"proved impossible {within}"
    return f"no plan was found {within}"


def _memory_needs(devices: tuple[DeviceReport, ...]) -> tuple[Need, ...]:
    """What each memory of a plan on devices holds, where that is known."""
    needs = {
        each.memory: Need(needed_bytes=held, budget_bytes=each.budget_bytes, memory=each.memory)
        for each in devices
        for held in (each.predicted_peak_bytes if each.measured_peak_bytes is None else each.measured_peak_bytes,)
        if held is not None
    }
    return tuple(needs.values())


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
    return [*lines, *runs_on_lines(report.runs_on)]
