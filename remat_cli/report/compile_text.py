"""Compiled and verified models as short, aligned text for people."""

from collections.abc import Sequence

from msgspec import UNSET

from remat_cli.base.units import format_bytes
from remat_cli.core.values.budget import describe_bytes, meant_share
from remat_cli.core.values.promises import ProcessTerm
from remat_cli.core.values.verification import OneModelSeen
from remat_cli.report.compile import (
    OneModelReport,
    OneModelVerifyReport,
    delivery_lines,
    recomputed,
    solver_line,
    verdict_lines,
    warning_lines,
)
from remat_cli.report.explain import live_tensor_lines
from remat_cli.report.process_text import process_lines
from remat_cli.report.regions import floor_lines, obstacle_lines, split_lines
from remat_cli.report.runs_on import runs_on_lines
from remat_cli.report.screen import compile_screen, outputs_row, refused_screen
from remat_cli.report.seen_text import family_lines, learnt_lines
from remat_cli.report.solution import (
    AMONG,
    NEAREST_PERCENT,
    NEAREST_PROCESS,
    NEAREST_TERMS,
    SolutionReport,
    is_too_dear,
    no_verdict_lines,
)
from remat_cli.report.style import Style, columns, duration, percent, plural

LEAST = "min"  # the budget as it is written
MIB = 2**20
NOT_RUN = "cannot be run here"
LEAST_TOLD_SECONDS = 1.0  # of runs of the model beside the search


def compile_lines(report: OneModelReport, style: Style) -> list[str]:
    """What was compiled to what, before and after, the proof, and the snippet that runs it."""
    if style.is_short:
        return _short_lines(report, style)
    solution = report.solution
    target = f" -> {report.output}" if report.output else ""
    heading = style.paint(f"{report.model}{target}", "strong") + f"  ({plural(report.ops, 'op')} on {report.device})"
    lines = [report.verdict_parts.line(style), heading]
    lines += [_budget_line(report), ""]
    if solution.peak_bytes is None or solution.time is None:
        lines += [
            *_reason_lines(report, style),
            *split_lines(report.regions),
            *obstacle_lines(report.split_obstacle, report.regions),
        ]
        if report.blocking_op is not None:
            cause = f"op {report.blocking_op} needs these at once"
            if report.is_blocked_by_many:
                cause = f"in every order comes a moment like this one: while {report.blocking_op} runs, these are held"
            lines += ["", f"{cause}, besides {format_bytes(solution.fixed_bytes)} fixed:"]
            lines += live_tensor_lines(report.blockers, style)
            if report.blocking_workspace_bytes:
                lines += [f"  and {format_bytes(report.blocking_workspace_bytes)} of workspace inside the op"]
        lines += ["", _plain_line(report, style)]
    else:
        lines += [*_before_after(report, solution.peak_bytes, solution.time), ""]
        space = ", with these splits" if report.regions else ""
        space += ", for this peak" if report.budget == LEAST else ""
        repeated = "nothing is recomputed"
        if solution.recomputed_ops:
            repeated = f"{recomputed(report)}; {plural(report.gates, 'gate')} (small ops that keep the order)"
        elif solution.peak_bytes < solution.baseline_peak_bytes:
            repeated += f": {'splitting' if report.regions else 'another order'} is enough"
        lines += [solver_line(solution, "time", space), repeated, *split_lines(report.regions)]
        lines += floor_lines(report.regions, solution)
        lines += obstacle_lines(report.split_obstacle, report.regions)
        lines += [f"{cut}: a longer one may lead to a better plan"] if (cut := _cut(report)) else []
    said = () if report.verification is None else report.verification.notes
    if report.verification is not None:
        lines += ["", *verification_lines(report.verification, style)]
    lines += warning_lines(report.warnings, said, style)
    return lines + delivery_lines(report, "Run it:", style)


def _short_lines(report: OneModelReport, style: Style) -> list[str]:
    """The same on a screen of a few lines."""
    solution = report.solution
    if solution.peak_bytes is None or solution.time is None:
        return refused_screen(report, _why_not_lines(report, style), style)
    seen, reference, source = report.verification, "the model", "by prediction"
    was_bytes: int | None = solution.baseline_peak_bytes
    held_bytes, time = solution.peak_bytes, f"{percent(solution.overhead_percent)} by prediction"
    if seen is not None:
        was_bytes, held_bytes, source = seen.original_default_session_peak_bytes, seen.bounded_bytes, "measured"
        if seen.reference is not UNSET:
            reference = seen.reference
    if seen is None or seen.measured_overhead_percent is None:
        time = f"{time}, not measured"
    else:
        noise = f" ({seen.noise_told})" if seen.noise_told and seen.failures else ""  # else the verdict says it
        time = f"{percent(seen.measured_overhead_percent)} measured{noise}, {time}"
    held = NOT_RUN if was_bytes is None else format_bytes(was_bytes)
    repeated, in_tiles = solution.recomputed_ops or 0, sum(len(region.ops) for region in report.regions)
    done = [f"{plural(in_tiles, 'op')} in tiles"] if in_tiles else []
    done += [f"{plural(repeated, 'op')} run again"] if repeated else []
    rows = [
        *_process_rows(report),
        ("tensors", f"{held} -> {format_bytes(held_bytes)} at one time, {source}"),
        ("time", time),
        outputs_row(seen, reference),
        ("how", f"{', '.join(done) or 'another order of ops'}; {plural(report.ops, 'op')} in all, on {report.device}"),
    ]
    cut = _cut(report)
    cautions = [] if cut is None else [f"{cut}: a longer one may lead to a better plan"]
    return compile_screen(report, rows, cautions, style)


def _process_rows(report: OneModelReport) -> list[tuple[str, str]]:
    """What a process that loads and runs the model holds at most, before and after; nothing where it is not known."""
    seen, predicted_bytes = report.verification, report.asked.process_bytes
    process = None if seen is None else seen.process_seen
    if process is None:
        return [] if predicted_bytes is None else [("process", f"{format_bytes(predicted_bytes)} by prediction")]
    text = format_bytes(process.needed_bytes)
    if process.original is not None:
        was_bytes = process.original.counted_bytes(with_mapped=process.with_mapped) + process.input_bytes
        text = f"{format_bytes(was_bytes)} -> {text}"
    return [("process", f"{text} at most, measured (loading, first and later runs)")]


def _budget_line(report: OneModelReport) -> str:
    """The budget as it was written, in bytes, and what it bounds."""
    bytes_, solution = report.asked.process_budget_bytes, report.solution
    if bytes_ is None and not report.uncounted_bytes:
        return budget_line(report.budget, solution)
    counted = solution.budget_bytes - report.uncounted_bytes if bytes_ is None else bytes_
    beside = f"beside {format_bytes(report.uncounted_bytes)} of mapped weights" if report.uncounted_bytes else ""
    fixed = f"of which {format_bytes(solution.fixed_bytes)} fixed" if solution.fixed_bytes and not beside else ""
    more = "".join(f", {each}" for each in (beside, fixed) if each)
    return f"budget {report.budget} = {describe_bytes(counted)} of the process{more}"


def budget_line(text: str, solution: SolutionReport) -> str:
    """The budget of what is live as it was written, in bytes, and the part of it that is fixed."""
    fixed = f", of which {format_bytes(solution.fixed_bytes)} fixed" if solution.fixed_bytes else ""
    return f"budget {text} = {describe_bytes(solution.budget_bytes)}{fixed}"


def _before_after(report: OneModelReport, peak_bytes: int, time: int) -> list[str]:
    """Peak and time, predicted and measured, before and after."""
    solution, seen = report.solution, report.verification
    saved = percent(_change(peak_bytes, solution.baseline_peak_bytes))
    rows = [["", "before", "after", "change"]]
    rows += [["peak, predicted", format_bytes(solution.baseline_peak_bytes), format_bytes(peak_bytes), saved]]
    if seen is not None:
        before, after = seen.original_default_session_peak_bytes, seen.measured_peak_default_session_bytes
        name = "live tensors, measured (default session)"
        was, saved = (NOT_RUN, "") if before is None else (format_bytes(before), percent(_change(after, before)))
        rows += [[name, was, format_bytes(after), saved]]
    rows += [["time, predicted", duration(solution.baseline_time), duration(time), percent(solution.overhead_percent)]]
    if seen is not None and seen.measured_overhead_percent is not None:
        rows += [["time, measured", "", "", percent(seen.measured_overhead_percent)]]
    noise = [f"  {seen.noise_told}"] if seen is not None and seen.noise_told else []
    return [*columns(rows, "<>>>"), *noise]


def _change(after: int, before: int) -> float | None:
    return 100 * (after - before) / before if before else None


def _reason_lines(report: OneModelReport, style: Style) -> list[str]:
    """What ended the search, what is proved, and what may help."""
    solution, known = report.solution, report.asked.cheaper
    if solution.interrupted or is_too_dear(solution):
        lines = no_verdict_lines(solution, style)
    elif solution.status == "infeasible":  # only a proof says that there is no plan
        verdict = f"impossible: no schedule of whole ops needs less than {style.size(solution.floor_bytes)}"
        if solution.floor_bytes <= solution.budget_bytes:
            verdict = "impossible: no schedule of whole ops stays within the budget"
        lines = [style.paint(verdict, "bad") + ("" if style.is_short else f" ({AMONG[solution.space]})")]
        if solution.floor_with_splitting_bytes is not None:
            least = style.size(solution.floor_with_splitting_bytes)
            lines.append(f"with the best splits found, none needs less than {least}")
    else:
        lines = _not_found_lines(report, style)
    if known is not None:
        lines = [*lines, f"--budget {known.share_percent}% is known to take {known.overhead_percent:+.0f} % time"]
    return lines


def _why_not_lines(report: OneModelReport, style: Style) -> list[str]:
    """Why there is no plan, in short."""
    lines = [*_reason_lines(report, style), *obstacle_lines(report.split_obstacle, report.regions)]
    if report.blocking_op is not None:
        split_floor = report.solution.floor_with_splitting_bytes  # of the model that the op is in
        least = format_bytes(report.solution.floor_bytes if split_floor is None else split_floor)
        lines.append(f"in the way is {report.blocking_op}: while it runs, {least} must be there, in any order of ops")
    if (share := meant_share(report.budget)) is not None:
        lines = [f"{report.budget} is that many bytes: a share is written --budget {share}", *lines]
    is_open = report.solution.interrupted or is_too_dear(report.solution)
    if not is_open and NEAREST_PROCESS not in report.solution.facts:
        lines.append("the least memory that can be had, and what it costs: the same command with --budget min")
    return [*lines, _plain_line(report, style)]


def _plain_line(report: OneModelReport, style: Style) -> str:
    """What the model needs as it is, of what the budget bounds."""
    live, asked = style.size(report.solution.baseline_peak_bytes), report.asked
    if asked.process_budget_bytes is None:
        return f"without a plan the model needs {live}"
    live = f"{live} of live tensors"
    if asked.process_bytes is None:
        return f"without a plan the model needs {live}, and its process more"
    process = style.size(asked.process_bytes)
    return f"without a plan the process of the model needs {process} by prediction, with {live}"


def _not_found_lines(report: OneModelReport, style: Style) -> list[str]:
    """What is proved, and what may help: more time does not where whole ops need more and splitting cannot help."""
    solution = report.solution
    split_floor = solution.floor_with_splitting_bytes
    least = f"{style.size(solution.floor_bytes)} for whole ops"
    if split_floor is not None:
        least += f", {style.size(split_floor)} with the best splits found"
    if report.asked.process_budget_bytes is not None:
        least += ", of live tensors alone"
    lines = [style.paint(f"no plan within budget was found in {solution.seconds:.1f} s", "bad")]
    needed, budget_bytes, cut = solution.facts.get(NEAREST_PROCESS), report.asked.process_budget_bytes, _cut(report)
    if needed is not None and budget_bytes is not None:
        lines += _nearest_process_lines(solution, needed, budget_bytes, style)
        if solution.floor_bytes <= solution.budget_bytes:  # live tensors are not what is too large
            return lines if cut is None else [*lines, f"{cut}: a longer one may lead to a smaller process"]
    nearest = nearest_bytes(solution)
    if nearest is None:
        is_time_wasted = report.split_obstacle is not None and solution.floor_bytes > solution.budget_bytes
        if cut is not None and not is_time_wasted:
            return [*lines, cut, f"the proved least is {least}: try a longer --time-limit or a larger --budget"]
        return [*lines, f"the proved least is {least}: try a larger --budget"]
    lines += [f"the smallest of the plans that {solution.solver} makes takes {style.size(nearest)}"]
    return [*lines, f"the proved least is {least}: try another --solver or a larger --budget"]


def _nearest_process_lines(solution: SolutionReport, needed_bytes: int, budget_bytes: int, style: Style) -> list[str]:
    """What of the smallest process that was found is too large, by how much, and which budget would do for it."""
    terms: Sequence[ProcessTerm] = () if style.is_short else solution.facts.get(NEAREST_TERMS, ())
    more = f", {format_bytes(needed_bytes - budget_bytes)} more than the budget" if needed_bytes > budget_bytes else ""
    process = f"{style.size(needed_bytes)} of the process by prediction"
    lines = [f"of the plans found the smallest needs {process}{more}{':' if terms else ''}"]
    lines += columns([[format_bytes(term.bytes), term.name] for term in terms], "><")
    beside_bytes = sum(term.bytes for term in terms if not term.is_live)
    if terms and beside_bytes >= budget_bytes:
        lines.append(f"what no plan makes smaller, {format_bytes(beside_bytes)} of that, is more than the budget")
    elif terms:
        left = f"{format_bytes(budget_bytes - beside_bytes)} of the budget"
        lines.append(f"what no plan makes smaller is {format_bytes(beside_bytes)} of that, and leaves {left} to a run")
    spent = solution.facts.get(NEAREST_PERCENT)
    cost = "" if spent is None else f", which costs {spent:+.0f} % time,"
    return [*lines, f"for that plan{cost} give the same command --budget {-(-needed_bytes // MIB)}MiB"]


def _cut(report: OneModelReport) -> str | None:
    """That the search ended before all was tried, as its time was over; None: it did not."""
    limit, ran = report.asked.time_limit_seconds, report.asked.run_seconds
    if not limit or not report.asked.search_was_cut:
        return None
    runs = f", beside {ran:.1f} s of runs of the model" if ran >= LEAST_TOLD_SECONDS else ""
    return f"the search was cut after {limit:g} s (--time-limit){runs}"


def nearest_bytes(solution: SolutionReport) -> int | None:
    """The least peak of the plans of a solver that goes through a list of them and ends by itself."""
    return solution.facts.get("least_peak_bytes")


def verify_lines(report: OneModelVerifyReport, style: Style) -> list[str]:
    """The verdict, and the figures behind it."""
    seen = report.verification
    first = report.verdict_parts.line(style)
    heading = style.paint(report.model, "strong") + f"  against {report.source}"
    text, bytes_ = f"{report.budget} = " if report.budget else "", report.asked.process_budget_bytes
    size = style.size(report.budget_bytes) if bytes_ is None else f"{style.size(bytes_)} of the process"
    lines = [first, heading, f"budget {text}{size}", "", *verification_lines(seen, style)]
    return [*lines, *warning_lines(report.warnings, seen.notes, style), *runs_on_lines(report.runs_on)]


def verification_lines(seen: OneModelSeen, style: Style) -> list[str]:
    """One line of verdict, broken promises if any, then the measurements."""
    lines = verdict_lines(seen, style)
    yes = {True: "yes", False: "no", None: "not measured"}
    first = seen.first_predicted_peak_bytes
    corrected = None if first is UNSET or first == seen.predicted_peak_bytes else first
    original_bytes = seen.original_default_session_peak_bytes
    under = "" if seen.capped_run_bytes is None else f", with {style.size(seen.capped_run_bytes)}"
    differ, error = "", seen.outputs_max_relative_error
    if seen.outputs_close is not None:  # they need not be identical
        differ = "" if error is None else f", largest relative difference {error:.1e}"
        differ += f" ({'allowed' if seen.outputs_close else 'too large'})"
    rows = [
        *([["compared with", seen.reference]] if seen.reference is not UNSET else []),
        ["outputs identical", yes[seen.outputs_identical] + differ],
        ["order honoured", yes[seen.order_honoured]],
        ["live tensors, predicted", style.size(seen.predicted_peak_bytes)],
        ["live tensors, measured", style.size(seen.measured_peak_bytes)],
        *_optional("  predicted at first", corrected, style),
        ["default session, original", NOT_RUN if original_bytes is None else style.size(original_bytes)],
        ["default session, this model", style.size(seen.measured_peak_default_session_bytes)],
        *_optional("block of later default runs", seen.later_runs_block_bytes, style),
        *_optional("smallest cap, original", seen.original_smallest_cap_bytes, style),
        *_optional("smallest cap, this model", seen.smallest_cap_bytes, style),
        ["runs where the original fails", yes[seen.capped_run_ok] + under],
        ["time, predicted", percent(seen.predicted_overhead_percent)],
        [
            "time, measured",
            percent(seen.measured_overhead_percent) + (f" ({told})" if (told := seen.noise_told) else ""),
        ],
    ]
    lines += columns(rows, "<<") + (family_lines(seen.family) if seen.family else [])
    lines += process_lines(seen.process) if seen.process else []
    return [*lines, *learnt_lines(seen.learning), *(f"  note: {note}" for note in seen.notes)]


def _optional(label: str, count: int | None, style: Style) -> list[list[str]]:
    return [] if count is None else [[label, style.size(count)]]
