"""What compiling and verifying found out, for one device or several, as plain values that become JSON."""

from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from remat_cli.base.stage_costs import StageCost
from remat_cli.base.units import format_bytes
from remat_cli.core.values.promises import Asked, MeasuredPromise, judged
from remat_cli.core.values.runs_on import RunsOn
from remat_cli.core.values.told_names import ToldNames
from remat_cli.core.values.verification import OneModelSeen, Verification
from remat_cli.report.explain import LiveTensor, Recompute
from remat_cli.report.pictures.shown import Shown
from remat_cli.report.regions import RegionReport
from remat_cli.report.runs_on import runs_on_lines
from remat_cli.report.solution import AMONG, SolutionReport, compile_exit_code, is_too_dear, verified_exit_code
from remat_cli.report.style import Style, lines_of, percent, plural, shorten
from remat_cli.report.verdict import Need, Price, ReportVerdict, bits_of, session_need

JSON_ORDER = (
    "model",
    "device",
    "budget",
    "solution",
    "ops",
    "devices",
    "links",
    "baseline_device",
    "single",
    "segments",
    "way",
    "output",
    "data",
    "plan",
    "failed_output",
    "gated_output",
    "verification",
    "uncounted_bytes",
    "recomputes",
    "blocking_op",
    "is_blocked_by_many",
    "blockers",
    "blocking_workspace_bytes",
    "obstacle",
    "paging",
    "regions",
    "split_obstacle",
    "gates",
    "snippet",
    "one_line",
    "runs_on",
    "warnings",
    "seconds",
    "asked",
)
"""Of a compile's fields in JSON, whichever of them its kind of plan has."""
ALSO_IN_JSON = ("fits", "promises", "verdict")


class _Told(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """What a report on a plan says first, and of which promises, by what its kind of plan needs of memory."""

    also_in_json: ClassVar[tuple[str, ...]] = ALSO_IN_JSON

    @property
    def verdict_parts(self) -> ReportVerdict:
        """What the report says first, in its parts."""
        raise NotImplementedError

    def lines(self, style: Style) -> list[str]:
        """The report for people."""
        raise NotImplementedError

    @property
    def fits(self) -> bool:
        """Whether there is a plan that keeps what was asked of it."""
        return self.verdict_parts.fits

    @property
    def verdict(self) -> str:
        """The first line of the report."""
        return self.verdict_parts.text


class CompileReport(_Told, frozen=True, kw_only=True):
    """One compilation: a type for each kind of plan that can be asked for.

    `output` and `plan` are None when nothing was written, `data` where weights lie in no file beside it. `gated_output`
    is the plan as a model for sessions of the user's own, where it is another one. `snippet` runs it, explained, and
    `one_line` in a line. `runs_on` is where what was written runs.

    `asked` is what else was asked for, `stages` what each took, `names` are those by which people are told of ops and
    tensors. In JSON `fits`, `promises`, `verdict`, `runs_of_model` and `seconds_by_stage` stand beside the fields.

    `uncounted_bytes` of the solution's budget are for mapped weights, which a budget on the process does not count.
    """

    json_order: ClassVar = JSON_ORDER
    also_in_json: ClassVar[tuple[str, ...]] = (*ALSO_IN_JSON, "runs_of_model", "seconds_by_stage")
    model: str
    budget: str
    solution: SolutionReport
    ops: int
    output: str | None = None
    data: str | None = None
    plan: str | None = None
    failed_output: str | None = None
    gated_output: str | None = None
    verification: Verification | None = None
    uncounted_bytes: int = 0
    recomputes: tuple[Recompute, ...] = ()
    snippet: str = ""
    one_line: str = ""
    runs_on: RunsOn | UnsetType | None = UNSET
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    asked: Asked = Asked()
    stages: tuple[StageCost, ...] = ()
    names: ToldNames = ToldNames()

    @property
    def needs(self) -> tuple[Need, ...]:
        """What is needed of each memory that a budget bounds."""
        raise NotImplementedError

    @property
    def runs_of_model(self) -> int:
        """How often the model ran, whole or rewritten, in any process, and in all stages."""
        return sum(stage.runs for stage in self.stages)

    @property
    def seconds_by_stage(self) -> dict[str, float]:
        """How long each stage took."""
        return {stage.name: stage.seconds for stage in self.stages}

    @property
    def within(self) -> str:
        """Within what there is no plan."""
        return f"within {format_bytes(self.asked.process_budget_bytes or self.solution.budget_bytes)}"

    @property
    def promises(self) -> tuple[MeasuredPromise, ...]:
        """All that was promised, with the verdict on each."""
        return all_promises(self.verification, self.asked)

    @property
    def verdict_parts(self) -> ReportVerdict:
        """What the report says first, in its parts."""
        solution = self.solution
        if solution.peak_bytes is not None:
            return verdict_of(self.needs, self.verification, self.asked, solution.overhead_percent)
        if solution.interrupted:
            why = f"interrupted before a plan was found {self.within}"
        elif is_too_dear(solution):
            why = f"no plan was found {self.within} that costs so little time as asked for"
        elif solution.status == "infeasible":
            why = f"proved impossible {self.within}"
        else:
            limit = self.asked.time_limit_seconds if self.asked.search_was_cut else None
            cut = f": the search was cut after {limit:g} s (--time-limit)" if limit else ""
            why = f"no plan was found {self.within}{cut}"
        return ReportVerdict(no_plan=why, is_open=solution.interrupted)

    @property
    def exit_code(self) -> int:
        """The solution's, or 5 when the model does not keep its promises."""
        return compile_exit_code(self.solution, self.verification)


class OneModelReport(CompileReport, frozen=True, kw_only=True):
    """One compilation to one model.

    `blockers` and `blocking_workspace_bytes` are what is held while `blocking_op` runs: together the floor's cause,
    where there is no plan. `is_blocked_by_many`: the op alone would fit, other tensors must be held meanwhile.
    `regions` run in tiles; `split_obstacle` says in one line why splitting cannot help.
    """

    device: str
    verification: OneModelSeen | None = None
    blocking_op: str | None = None
    is_blocked_by_many: bool = False
    blockers: tuple[LiveTensor, ...] = ()
    blocking_workspace_bytes: int = 0
    regions: tuple[RegionReport, ...] = ()
    split_obstacle: str | None = None
    gates: int = 0

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the model needs of what was bounded."""
        solution, seen = self.solution, self.verification
        peak_bytes = solution.peak_bytes or 0
        return (session_need(seen, self.asked, solution.budget_bytes, peak_bytes, solution.baseline_peak_bytes),)

    @property
    def promises(self) -> tuple[MeasuredPromise, ...]:
        """All that was promised, with the verdict on each; of live bytes also where nothing was measured."""
        if self.verification is not None:
            return super().promises
        live = judged("live", self.solution.peak_bytes, None)
        budget = (judged("default_session", self.solution.budget_bytes, None),)
        return (live, *(budget if self.asked.process_budget_bytes is None else ()), *super().promises)

    def lines(self, style: Style) -> list[str]:
        """The report for people."""
        return lines_of("remat_cli.report.compile_text:compile_lines", self, style)


class VerifyReport(_Told, frozen=True, kw_only=True):
    """One verification of a plan, a type for each kind; `budget_bytes` is that of the first memory.

    `budget` is as the user wrote it; where that bounds a process, `budget_bytes` are the live bytes that it came to.

    `asked` is what else was asked for. In JSON `fits`, `promises` and `verdict` stand beside the fields.
    """

    plan: str
    model: str
    source: str
    budget: str = ""
    budget_bytes: int
    verification: Verification
    runs_on: RunsOn | UnsetType | None = UNSET
    warnings: tuple[str, ...] = ()
    asked: Asked = Asked()

    @property
    def promises(self) -> tuple[MeasuredPromise, ...]:
        """All that was promised, with the verdict on each."""
        return all_promises(self.verification, self.asked)

    @property
    def exit_code(self) -> int:
        """0 when every promise holds, 5 where outputs or order were not kept, 4 where only bytes differ."""
        return verified_exit_code(self.verification)


class OneModelVerifyReport(VerifyReport, frozen=True, kw_only=True):
    """One verification of a plan that is one model."""

    verification: OneModelSeen

    @property
    def verdict_parts(self) -> ReportVerdict:
        """What the report says first, in its parts."""
        seen, asked = self.verification, self.asked
        was_bytes = seen.original_default_session_peak_bytes
        need = session_need(seen, asked, self.budget_bytes, seen.bounded_bytes, was_bytes)
        return verdict_of((need,), seen, asked, seen.predicted_overhead_percent)

    def lines(self, style: Style) -> list[str]:
        """The report for people."""
        return lines_of("remat_cli.report.compile_text:verify_lines", self, style)


def all_promises(seen: Verification | None, asked: Asked) -> tuple[MeasuredPromise, ...]:
    """What one verification showed of all promises, those that only the request knows with them."""
    if seen is None:
        return asked.promises((), None)
    return asked.promises(seen.promises, seen.extra_time_percent, seen.noise_percent)


def verdict_of(
    needs: tuple[Need, ...], seen: Verification | None, asked: Asked, predicted_percent: float | None
) -> ReportVerdict:
    """The figures with what verification showed; without one, by prediction."""
    price = Price(predicted_percent=predicted_percent, cheaper=asked.cheaper, is_looked_up=asked.is_looked_up)
    if seen is None:
        return ReportVerdict(needs=needs, bits="not verified", price=price)
    measured_percent, noise_percent = seen.extra_time_percent, seen.noise_percent
    return ReportVerdict(
        needs=needs,
        is_measured=asked.process_budget_bytes is None or seen.process_seen is not None,
        broken=seen.failures,
        warned=(*seen.warned, *asked.warned(measured_percent, noise_percent)),
        bits=bits_of(seen),
        price=msgspec.structs.replace(
            price, measured_percent=measured_percent, noise=seen.noise_told, noise_percent=noise_percent
        ),
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
    found = f"{percent(solution.overhead_percent)} {against}, {proof} ({AMONG[solution.space]}{more})"
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
        lines += ["", f"model {report.output}"]
        lines += [] if report.data is None else [f"data  {report.data}, which the model needs beside it"]
        lines += [f"plan  {report.plan}"]
        gated = "in the plan's order in any session that fuses no ops (ORT_ENABLE_BASIC)"
        lines += [] if report.gated_output is None else [f"gated {report.gated_output}, {gated}"]
    if report.failed_output is not None:
        lines += ["", style.paint(f"nothing was delivered; the failed model is kept as {report.failed_output}", "bad")]
    if report.snippet and report.exit_code == 0:
        lines += ["", how, "", *(f"    {line}".rstrip() for line in report.snippet.rstrip().splitlines())]
    return [*lines, *runs_on_lines(report.runs_on)]


def warning_lines(warnings: tuple[str, ...], said: tuple[str, ...], style: Style) -> list[str]:
    """Warnings that other lines do not say already."""
    lines = [style.paint(f"warning: {warning}", "warn") for warning in warnings if warning not in said]
    return ["", *lines] if lines else []
