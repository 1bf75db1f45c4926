"""What `inspect` reports of a model or of a plan file, and how people read it."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from remat_cli.base.units import format_bytes
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.curve import LadderStep
from remat_cli.core.values.family import told
from remat_cli.core.values.few_bits import FewBits
from remat_cli.core.values.learning import Learnt
from remat_cli.core.values.profile import Profile, Reference, SessionForm
from remat_cli.core.values.promises import Asked, Bounds, MeasuredPromise
from remat_cli.core.values.resident import ProcessMemory, RunsForecast
from remat_cli.core.values.told_names import ToldNames
from remat_cli.core.values.verification import Learning, OneModelSeen
from remat_cli.report.explain import (
    DeviceReport,
    LinkReport,
    LiveTensor,
    MemoryReport,
    PlacementMatrix,
    Recompute,
    alive_at,
    fullest_step,
    live_tensor_lines,
    recompute_lines,
    recomputes,
    step_name,
)
from remat_cli.report.few_bits import few_bits_lines
from remat_cli.report.paging import PagingReport
from remat_cli.report.pictures.shown import Shown
from remat_cli.report.pictures.terminal_chart import Band, ChartRule, memory_chart
from remat_cli.report.process_text import forecast_lines
from remat_cli.report.regions import RegionReport, obstacle_lines, planned_regions, region_lines, step_times_ns
from remat_cli.report.runs_on import RunsOn, runs_on_lines
from remat_cli.report.seen_text import learnt_lines
from remat_cli.report.solution import AMONG, EXIT_DONE, difference
from remat_cli.report.style import Style, columns, duration, lines_of, percent, plural
from remat_cli.report.verdict import Need, Price, ReportVerdict, session_need


class MeasuredTime(msgspec.Struct, frozen=True, omit_defaults=True):
    """Extra time as verification measured it, in percent, and within what share of it noise decides."""

    percent: float
    noise_percent: float = 0.0
    noise: str = ""


class InspectReport(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Where the memory of a model or a plan goes.

    `memory_bytes` is the total during each step, `baseline_memory_bytes` the original's (plans only). `alive` are the
    tensors held at `peak_step` (None: nothing runs), largest first; `workspace_bytes` is what the op there takes,
    `gate_bytes` what gates hold then. `floor_bytes` is the floor of whole ops. `regions` run in tiles, or would
    (`is_estimate`); `split_obstacle` says in one line why splitting cannot help. `step_times_ns` and
    `baseline_step_times_ns` are how long each step takes (plans with splits only). `learnt` is what runs of a plan
    showed otherwise than predicted, before it was made again so many times (`rounds_of_learning`). `process` is what a
    process holds that loads and runs it with default options, `runs` its runs' part. Plans for many sizes may be looked
    at for some `sizes`. Plans that span devices, or page (`paging`), have `devices`, `links`, `memories`, `placement`
    and a `way` to run; other bytes are then those of the first memory, the baseline is `baseline_device` alone.

    `asked` is what else was asked for, `promises` what verification of a plan showed of all that it promises (nothing
    of a model, of which nothing was promised), `unkept` says which of its predictions were not kept, `measured_time`
    what it costs in time, beside the predicted `overhead_percent`, `measured_original_bytes` what the original holds in
    a default session, beside the predicted `baseline_peak_bytes`. In JSON `fits` and `verdict` stand beside the
    fields, by prediction but where a plan was verified; null without a budget.
    `is_as_written`: a compiled file's graph is the one that remat wrote (None: the file does not say what that was).
    `ladder` says of a model which smaller budgets of live bytes it fits in, and what that costs. `few_bits` says of one
    of int8, int4 or float16 what of that is alive is float32 all the same. `names` are those by which people are told
    of ops and tensors.
    """

    exit_code: ClassVar[int] = EXIT_DONE
    also_in_json: ClassVar = ("fits", "verdict")
    picture: ClassVar[Literal["memory", "placement"]] = "memory"
    path: str
    kind: Literal["model", "plan"]
    device: str
    ops: int
    fixed_bytes: int
    floor_bytes: int
    peak_bytes: int
    peak_step: int | None
    peak_op: str | None
    memory_bytes: tuple[int, ...]
    alive: tuple[LiveTensor, ...]
    workspace_bytes: int = 0
    gate_bytes: int = 0
    time: int | None = None
    budget: str | None = None
    budget_bytes: int | None = None
    baseline_memory_bytes: tuple[int, ...] = ()
    baseline_peak_bytes: int | None = None
    blocking_op: str | None = None
    recomputes: tuple[Recompute, ...] = ()
    overhead_percent: float | None = None
    lower_bound_percent: float | None = None
    gap_percent: float | None = None
    space: str | None = None
    floor_with_splitting_bytes: int | None = None
    regions: tuple[RegionReport, ...] = ()
    split_obstacle: str | None = None
    step_times_ns: tuple[int, ...] = ()
    baseline_step_times_ns: tuple[int, ...] = ()
    devices: tuple[DeviceReport, ...] = ()
    links: tuple[LinkReport, ...] = ()
    memories: tuple[MemoryReport, ...] = ()
    placement: PlacementMatrix | None = None
    single: tuple[Reference, ...] = ()
    segments: int = 0
    way: SessionForm | None = None
    paging: PagingReport | None = None
    baseline_device: str | None = None
    learnt: tuple[Learnt, ...] = ()
    rounds_of_learning: int = 0
    room_bytes: int = 0
    process: ProcessMemory | None = None
    runs: RunsForecast | None = None
    sizes: dict[str, int] | None = None
    runs_on: RunsOn | UnsetType | None = UNSET
    is_as_written: bool | None = None
    warnings: tuple[str, ...] = ()
    asked: Asked = Asked()
    promises: tuple[MeasuredPromise, ...] = ()
    unkept: tuple[str, ...] = ()
    measured_time: MeasuredTime | UnsetType = UNSET
    measured_original_bytes: int | UnsetType = UNSET
    ladder: tuple[LadderStep, ...] = ()
    few_bits: FewBits | None = None
    names: ToldNames = ToldNames()

    @property
    def fits(self) -> bool | None:
        """Whether what the budget bounds is within it in every memory; None without a budget."""
        return all(need.fits for need in self.needs) if self.needs else None

    @property
    def verdict(self) -> str | None:
        """The first line of the report; None without a budget."""
        return inspect_verdict(self).text if self.needs or self.budget is not None else None

    @property
    def needs(self) -> tuple[Need, ...]:
        """What is needed of what the budget bounds: of a process, or of live bytes.

        By prediction, but for a plan that is one model and was verified at the sizes that are asked for.
        """
        if self.budget_bytes is None:
            return ()
        need = session_need(None, self.asked, self.budget_bytes, self.peak_bytes, self.baseline_peak_bytes)
        seen_bytes = self.measured_bytes(need.bounds)
        if seen_bytes is None:
            return (need,)
        was_bytes = need.original_bytes if need.bounds == "process" else self.measured_original_bytes
        was_bytes = need.original_bytes if was_bytes is UNSET else was_bytes
        return (msgspec.structs.replace(need, needed_bytes=seen_bytes, original_bytes=was_bytes),)

    def measured_bytes(self, bounds: Bounds) -> int | None:
        """What verification measured of what a budget bounds; None where it did not, or not at these sizes."""
        measures = ("process",) if bounds == "process" else ("live", "default_session")
        found = [each.measured for each in self.promises if each.measure in measures]
        numbers = [number for number in found if isinstance(number, int) and not isinstance(number, bool)]
        return max(numbers) if self.sizes is None and not self.memories and numbers else None

    @property
    def measured_time_here(self) -> MeasuredTime | None:
        """What it was measured to cost in time; None where it was not, or not at the sizes that are looked at."""
        return self.measured_time or None if self.sizes is None else None

    def lines(self, style: Style) -> list[str]:
        """Everything about one model or plan."""
        return lines_of("remat_cli.report.inspection:inspect_lines", self, style)


def inspect_model(
    path: Path, graph: Graph, profile: Profile, problem: Problem, budget: str | None = None
) -> InspectReport:
    """Where the memory of a model goes as it is; `budget` is that of the problem as the user wrote it."""
    plan = baseline(problem)
    floor, step = working_set_floor(problem), fullest_step(plan.memory_bytes[0])
    return InspectReport(
        path=str(path),
        kind="model",
        device=profile.device,
        ops=len(graph.ops),
        fixed_bytes=profile.fixed_bytes,
        floor_bytes=floor.bytes[0],
        blocking_op=None if floor.ops[0] is None else graph.ops[floor.ops[0]].name,
        peak_bytes=plan.peak,
        peak_step=step,
        peak_op=None if step is None else step_name(graph, plan, step),
        memory_bytes=plan.memory_bytes[0],
        alive=() if step is None else alive_at(graph, problem, plan, step),
        workspace_bytes=_workspace_bytes(plan, step),
        time=plan.time_ns,
        budget=budget,
        budget_bytes=None if budget is None else problem.memories[0].budget_bytes,
    )


def inspect_plan(path: Path, file: PlanFile, warnings: tuple[str, ...] = ()) -> InspectReport:
    """Where the memory of a written model goes, beside its original's, and what its splits and recomputes buy.

    The figures are those of the written model, gates included; who is alive is worked out from the schedule. The
    original is the whole model, and so is the floor's.

    Raises:
        ModelError: the plan contradicts itself.
    """
    problem, plan, promise, splitting, solved = file.problem(), file.plan(), file.promise, file.splitting, file.solved
    floor, whole_floor = working_set_floor(problem), splitting.whole_floor_bytes if splitting else solved.floor_bytes
    is_blocking = splitting is None and floor.ops[0] is not None and floor.bytes[0] == whole_floor
    learning = Learning() if file.verification is None else file.verification.learning
    return InspectReport(
        path=str(path),
        kind="plan",
        device=file.device,
        ops=len(file.graph.ops),
        learnt=learning.learnt,
        rounds_of_learning=learning.rounds,
        room_bytes=learning.room_bytes,
        fixed_bytes=promise.fixed_bytes,
        floor_bytes=whole_floor,
        floor_with_splitting_bytes=solved.floor_with_splitting_bytes,
        blocking_op=file.graph.ops[floor.ops[0]].name if is_blocking and floor.ops[0] is not None else None,
        **_at_peak(file, problem, plan),
        budget=file.request.budget,
        budget_bytes=file.request.budget_bytes,
        baseline_memory_bytes=promise.baseline_memory_bytes,
        baseline_peak_bytes=promise.baseline_peak_bytes,
        recomputes=recomputes(file.graph, problem, plan),
        **promised(file),
        **_cost(file),
        regions=planned_regions(file),
        step_times_ns=step_times_ns(file) if splitting else (),
        baseline_step_times_ns=tuple(cost.time_ns for cost in splitting.whole_profile.ops) if splitting else (),
        process=promise.process,
        runs=promise.runs,
        warnings=warnings,
    )


def _at_peak(file: PlanFile, problem: Problem, plan: Plan) -> dict[str, Any]:
    """What the written model holds over time, and what is held where that is most."""
    promise, gates = file.promise, set(file.promise.gates)
    peak_at = fullest_step(promise.memory_bytes)
    peak_op = None if peak_at is None else promise.order[peak_at]
    # Gates are no steps of the schedule: at one, the step before it counts.
    step = None if peak_at is None else max(0, sum(op not in gates for op in promise.order[: peak_at + 1]) - 1)
    workspace = 0 if peak_op in gates else _workspace_bytes(plan, step)
    alive = () if step is None else alive_at(file.graph, problem, plan, step)
    return {
        "peak_bytes": promise.peak_bytes,
        "peak_step": peak_at,
        "peak_op": peak_op,
        "memory_bytes": promise.memory_bytes,
        "alive": alive,
        "workspace_bytes": workspace,
        "gate_bytes": max(0, promise.peak_bytes - promise.fixed_bytes - workspace - sum(t.bytes for t in alive)),
    }


def _cost(file: PlanFile) -> dict[str, Any]:
    """What a plan costs in time, by prediction and as measured, and what the original was measured to hold."""
    overhead, bound, seen = file.solved.overhead_percent, file.solved.lower_bound_percent, file.verification
    measured: MeasuredTime | UnsetType = UNSET
    original: int | None = None
    if isinstance(seen, OneModelSeen):
        original = seen.original_default_session_peak_bytes
    if seen is not None and seen.extra_time_percent is not None:
        measured = MeasuredTime(seen.extra_time_percent, seen.noise_percent, seen.noise_told)
    return {
        "measured_time": measured,
        "measured_original_bytes": UNSET if original is None else original,
        "time": file.solved.time_ns,
        "overhead_percent": overhead,
        "lower_bound_percent": bound,
        "gap_percent": difference(overhead, bound),
        "space": file.solved.space,
    }


def _workspace_bytes(plan: Plan, step: int | None) -> int:
    return 0 if step is None else plan.memory_bytes[0][step] - plan.live_bytes[0][step]


def promised(file: PlanFile) -> dict[str, Any]:
    """What verification of a plan showed of its promises; nothing of one that was not verified."""
    seen = file.verification
    return {} if seen is None else {"promises": seen.promises, "unkept": seen.warned}


def inspect_lines(report: InspectReport, style: Style) -> list[str]:
    """Everything about one model or plan, the verdict first."""
    where = f"{plural(report.ops, 'op')} on {report.device}{'' if report.sizes is None else f', {told(report.sizes)}'}"
    where += ", as remat wrote it" if report.is_as_written else ""
    lines = [] if report.verdict is None else [inspect_verdict(report).line(style)]
    # Peak, floor, budget and bound, each in bytes and a readable unit.
    rows = [["peak", style.size(report.peak_bytes)], ["fixed", style.size(report.fixed_bytes)]]
    split_floor = report.floor_with_splitting_bytes
    whole = "floor of whole ops" if report.regions or split_floor is not None else "floor"
    cause = f", caused by {report.blocking_op}" if report.blocking_op else ""
    rows += [[whole, f"{style.size(report.floor_bytes)}: no order of ops needs less{cause}"]]
    rows += [] if split_floor is None else [["floor with splitting", style.size(split_floor)]]
    if report.baseline_peak_bytes is not None:
        seen, predicted = report.measured_original_bytes, style.size(report.baseline_peak_bytes)
        more = "" if seen is UNSET or report.sizes is not None else f" predicted, {style.size(seen)} measured"
        rows += [["original peak", f"{predicted}{more}"]]
    rows += _time_rows(report)
    if report.budget_bytes is not None:
        text, (need, *_) = f"{report.budget} = " if report.budget else "", report.needs
        rows += [["budget", f"{text}{style.size(need.budget_bytes)} {BOUNDED[need.bounds]}"]]
    figures = columns(rows, "<<")
    lines += [style.paint(report.path, "strong") + f"  ({report.kind}, {where})", *figures, ""]
    lines += _chart(report, style)
    if report.peak_op is not None:
        lines += ["", f"alive at the peak, step {report.peak_step} ({report.peak_op}):"]
        lines += live_tensor_lines(report.alive, style) + few_bits_lines(report.few_bits)
    if report.workspace_bytes:
        lines += [f"  and {format_bytes(report.workspace_bytes)} of workspace inside {report.peak_op}"]
    if report.gate_bytes:
        lines += [f"  and {format_bytes(report.gate_bytes)} held by gates, small ops that keep the order"]
    if report.regions or report.split_obstacle:
        lines += ["", *region_lines(report.regions), *obstacle_lines(report.split_obstacle, report.regions)]
    if report.process is not None and report.runs is not None:
        lines += ["", *forecast_lines(report.process, report.runs)]
    lines += learnt_lines(Learning(report.learnt, report.rounds_of_learning, report.room_bytes))
    return lines + ladder_lines(report) + closing_lines(report, style)


def _time_rows(report: InspectReport) -> list[list[str]]:
    """How long a run takes, and what a plan costs in time: as predicted, and as measured where it was."""
    seen, rows = report.measured_time_here, list[list[str]]()
    if report.time is not None:
        rows += [["time", duration(report.time) + (" predicted" if seen else "")]]
    if report.overhead_percent is not None:
        bound = f"proved least {percent(report.lower_bound_percent)} {AMONG.get(report.space or '', '')}".rstrip()
        cost = percent(report.overhead_percent)
        if seen is not None:
            cost = f"{percent(seen.percent)} measured{f' ({seen.noise})' if seen.noise else ''}, {cost} predicted"
        rows += [["overhead", f"{cost}, {bound}"]]
    return rows


HUNDREDTH = 2**20 / 100  # of a MiB
SEARCHED = "the least is found by a search, `remat compile --budget min`"
BOUNDED: dict[Bounds, str] = {"live": "of what is live at once", "process": "of the process"}


def inspect_verdict(report: InspectReport) -> ReportVerdict:
    """What the report of a model or plan under a budget says first."""
    if not report.needs:
        return ReportVerdict(no_plan=f"`--budget {report.budget}` has no bytes to judge: {SEARCHED}", is_open=True)
    is_plan = report.kind == "plan"
    price = Price(predicted_percent=report.overhead_percent, is_looked_up=False) if is_plan else None
    if price is not None and (seen := report.measured_time_here):
        noise = {"noise": seen.noise, "noise_percent": seen.noise_percent}
        price = msgspec.structs.replace(price, measured_percent=seen.percent, **noise)
    need, *_ = report.needs
    if is_plan:
        advice = ""
    else:
        # Whether a plan could make a model fit that does not fit as it is; mapped weights do not count in a process.
        uncounted = 0 if need.bounds == "live" or report.process is None else report.process.mapped_bytes
        is_below_floor = need.budget_bytes < report.floor_bytes - uncounted
        if not is_below_floor:
            advice = "that is as it is: `remat compile` may find a plan"
        elif report.regions:
            advice = "whole ops need more; `remat compile` may split them"
        elif report.split_obstacle is not None:
            advice = "no plan is known: whole ops need more, and splitting cannot help"
        else:
            advice = "impossible with whole ops, below the floor"
    return ReportVerdict(
        needs=report.needs,
        is_measured=report.measured_bytes(need.bounds) is not None,
        warned=report.unkept,
        price=price,
        advice=advice,
    )


def ladder_lines(report: InspectReport) -> list[str]:
    """What less memory would cost, and where it ends."""
    if not report.ladder:
        return []
    rows = [
        [f"fits in {format_bytes(step.budget_bytes)}", percent(step.overhead_percent), "by estimate" * step.is_estimate]
        for step in report.ladder
    ]
    least = min(report.ladder, key=lambda step: step.budget_bytes)
    found = "by estimate" if least.is_estimate else "that was found here"
    longer = "no bound: `remat compile` searches for longer, and may fit less"
    ends = [f"{format_bytes(least.budget_bytes)} is the least {found}, {longer}"]
    if report.floor_bytes:
        ends.append(f"without tiles, at least {format_bytes(report.floor_bytes)} are needed, as is proved")
    wanted = f"{-(-report.ladder[0].budget_bytes // HUNDREDTH) / 100:.2f}MiB"
    way = f"for one of them: remat compile {report.path} --budget-scope live --budget {wanted}"
    told = [f"  {line}" for line in (*ends, way)]
    return ["", "what less memory costs in time (live tensors):", *columns(rows, "<><"), *told]


def _chart(report: InspectReport, style: Style) -> list[str]:
    """Memory over time, beside what bounds it; each region that runs in tiles is marked by its number in the table."""
    is_live = report.asked.process_budget_bytes is None
    rules = [] if report.budget_bytes is None or not is_live else [ChartRule("budget", report.budget_bytes)]
    if report.baseline_peak_bytes is not None:
        rules.append(ChartRule("original peak", report.baseline_peak_bytes, "faint"))
    bands = [
        Band(str(number), *run, f"{'would run' if region.is_estimate else 'runs'} in tiles, numbered as below")
        for number, region in enumerate(report.regions, 1)
        for run in region.steps
    ]
    return memory_chart(report.memory_bytes, fixed_bytes=report.fixed_bytes, rules=rules, bands=bands, style=style)


def closing_lines(report: InspectReport, style: Style) -> list[str]:
    """Recomputes and warnings, where there are any."""
    costs = ["", "recomputes, the costliest first:", *recompute_lines(report.recomputes)] if report.recomputes else []
    warned = [style.paint(f"warning: {warning}", "warn") for warning in report.warnings]
    return [*costs, *([""] if warned else []), *warned, *runs_on_lines(report.runs_on)]
