"""What the page of a model, and that of a plan, shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from remat_cli.base.units import format_bytes
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.promises import PROCESS_ROOM_BYTES, PROCESS_SHARE
from remat_cli.core.values.resident import ProcessMemory
from remat_cli.report.explain import has_own_type
from remat_cli.report.inspection import InspectReport
from remat_cli.report.page.values import (
    Bar,
    Course,
    Page,
    PageTable,
    Point,
    commands_of,
    course_of,
    written_course,
)
from remat_cli.report.regions import RegionReport
from remat_cli.report.told import in_users_names

PHASES = ("loading", "once loaded", "first run", "later runs")


def model_page(report: InspectReport, graph: Graph, problem: Problem) -> Page:
    """A model as it is: memory over time, its process by prediction, what less memory would cost."""
    plan = baseline(problem)
    points = tuple(
        Point(one.budget_bytes, one.overhead_percent, "by estimate" if one.is_estimate else "known plan")
        for one in sorted(report.ladder, key=lambda one: one.budget_bytes)
    )
    return Page(
        title=report.path,
        verdict=report.verdict or "",
        summary=f"model of {report.ops} ops on {report.device}, {format_bytes(report.peak_bytes)} live at most",
        courses=(course_of("the model as it is", graph, problem, plan, report.names),),
        phases=tuple(_bars("predicted", report.process)) if report.process else (),
        curve=points,
        tables=(*_region_tables(in_users_names(report).regions), *_place_tables(report)),
        commands=(f"remat inspect {report.path}", f"remat compile {report.path} --budget 80%"),
    )


def plan_page(report: InspectReport, file: PlanFile) -> Page:
    """A plan beside the original: courses, process, regions, promises and where the file runs."""
    told = in_users_names(report)
    whys = {
        one.tensor: f"made again at step {one.made_again_at}, which frees {format_bytes(one.freed_bytes)} before"
        for one in report.recomputes
    }
    courses: tuple[Course, ...]
    if file.parts == "one_model":
        after = written_course("this file", file, file.plan(), whys)
        live = [need.budget_bytes for need in report.needs if need.bounds == "live"]
        after = msgspec.structs.replace(after, budget_bytes=live[0] if live else None)
        if file.splitting is None:
            problem = file.problem()
            before = course_of("the original", file.graph, problem, baseline(problem), file.names)
        else:  # tensors of the whole model are not in the plan, but its steps are
            ops = tuple(file.names.op(cost.name) for cost in file.splitting.whole_profile.ops)
            before = Course(title="the original", ops=ops, memory_bytes=file.promise.baseline_memory_bytes)
        courses = (after, before)
    else:
        courses = tuple(
            Course(
                title=f"memory {each.name}",
                ops=tuple(f"step {number}" for number in range(len(each.memory_bytes))),
                memory_bytes=each.memory_bytes,
            )
            for each in report.memories
        )
    return Page(
        title=f"{file.source.path} -> {file.output.path}",
        verdict=report.verdict or "",
        summary=str(file),
        courses=courses,
        phases=tuple(_plan_bars(file)),
        curve=_curve(file),
        tables=tuple(_plan_tables(report, told, file)),
        commands=commands_of(file, report.path),
    )


def _curve(file: PlanFile) -> tuple[Point, ...]:
    """This plan between the original and the plans that were known when it was made; none where it is alone."""
    promise, cost = file.promise, file.solved.overhead_percent
    if cost is None or not file.curve:
        return ()
    mine = Point(promise.peak_bytes, cost, "this plan")
    others = (Point(one.live_bytes, one.overhead_percent, "known plan") for one in file.curve)
    found = [one for one in others if (one.bytes, round(one.overhead_percent, 2)) != (mine.bytes, round(cost, 2))]
    original = Point(promise.baseline_peak_bytes, 0.0, "the original")
    return tuple(sorted((original, mine, *found), key=lambda one: one.bytes))


def _plan_bars(file: PlanFile) -> Iterator[Bar]:
    """What processes hold: measured where they were, else as promised."""
    process = None if file.verification is None else file.verification.process_seen
    if process is None:
        yield from _bars("promised", file.promise.process) if file.promise.process else ()
        return
    if process.original is not None:
        yield from _bars("original", process.original)
    yield from _bars("promised", process.predicted)
    yield from _bars("measured", process.rewritten)


def _bars(kind: str, memory: ProcessMemory) -> Iterator[Bar]:
    figures = (memory.load_peak_bytes, memory.loaded_bytes, memory.first_run_bytes, memory.later_runs_bytes)
    for phase, held in zip(PHASES, figures, strict=True):
        yield Bar(phase, kind, max(0, held))


def _plan_tables(report: InspectReport, told: InspectReport, file: PlanFile) -> Iterator[PageTable]:
    """Promises kept, ops in tiles, ops that run again, and where the file runs and was verified; `told` names ops."""
    kept = {True: "kept", False: "NOT KEPT", None: "not measured"}
    promises = tuple(
        (one.measure.replace("_", " "), _figure(one.promised), _figure(one.measured), kept[one.kept])
        for one in report.promises
    )
    if promises:
        room = f"{100 * PROCESS_SHARE:.0f} % and {format_bytes(PROCESS_ROOM_BYTES)}"
        about = f"A phase of a process counts as kept up to {room} above what was predicted of it."
        heads = ("measure", "promised", "measured", "")
        yield PageTable(title="Promised and measured", heads=heads, rows=promises, about=about)
    yield from _region_tables(told.regions)
    again = tuple(
        (
            one.op if has_own_type(one) else f"{one.op} ({one.op_type})",
            str(one.runs),
            f"{one.time / 1e6:.2f} ms",
            f"{format_bytes(one.freed_bytes)} from step {one.dropped_after + 1} to {one.made_again_at - 1}",
        )
        for one in told.recomputes
    )
    if again:
        heads = ("op", "runs", "more time", "what that frees")
        yield PageTable(title="Ops that run again", heads=heads, rows=again)
    yield from _place_tables(report)
    elsewhere = []
    for one in file.verified_on:
        seen = one.verification
        found = "" if seen is None else "as promised" if seen.passed else "NOT KEPT"
        elsewhere.append((one.on, one.place.line, found or one.message or "does not run"))
    if elsewhere:
        yield PageTable(title="Verified in other places", heads=("by", "where", ""), rows=tuple(elsewhere))


def _figure(value: bool | int | float | None) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_bytes(value) if isinstance(value, int) else f"{value:+.1f} %"


def _region_tables(regions: Sequence[RegionReport]) -> Iterator[PageTable]:
    """Ops that run in tiles, or would."""
    rows = tuple(
        (
            str(number),
            f"{len(one.ops)} ops, {one.ops[0]} to {one.ops[-1]}",
            f"{one.tiles} along axis {one.axis}",
            f"{one.halo_percent:+.1f} %",
            f"{format_bytes(one.peak_before_bytes)} -> {format_bytes(one.peak_after_bytes)}",
            "" if one.overhead_percent is None else f"{one.overhead_percent:+.1f} %",
        )
        for number, one in enumerate(regions, 1)
    )
    if rows:
        heads = ("", "ops", "tiles", "halo", "most held meanwhile", "time")
        about = "Halo is work at the edges of tiles that is done more than once."
        yield PageTable(title="Ops that run in tiles", heads=heads, rows=rows, about=about)


def _place_tables(report: InspectReport) -> Iterator[PageTable]:
    """Where the file runs, and what else is to be known."""
    rows = [("runs on", report.runs_on.where)] if report.runs_on else []
    rows += [("warning", line) for line in report.warnings]
    if rows:
        yield PageTable(title="Where it runs", heads=("", ""), rows=tuple(rows))
