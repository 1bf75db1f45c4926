"""What a compile came to on at most twelve lines; all else is under `-v`, or told by `remat inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from remat_cli.report.runs_on import runs_on_rows
from remat_cli.report.style import Style, columns, plural

if TYPE_CHECKING:
    from remat_cli.core.values.verification import Verification
    from remat_cli.report.compile import CompileReport

Row = tuple[str, str]
"""A word in front, and what there is to say about it."""
MOST_LINES = 12
ALL = "this command with -v"


def compile_screen(report: CompileReport, figures: Sequence[Row], cautions: Sequence[str], style: Style) -> list[str]:
    """A plan that was found: the verdict, what is wrong with it, its figures, warnings, files, and how to run it.

    Of `cautions` and warnings as many are told as there is room for, and how many more there are.
    """
    seen = report.verification
    failures = () if seen is None else seen.failures
    rows = [*figures, *runs_on_rows(report.runs_on)]
    files = [name for name in (report.output, report.data, report.plan, report.gated_output) if name is not None]
    ways = [("files", ", ".join(files))] if files else []
    if report.one_line and report.exit_code == 0:
        ways.append(("run it", report.one_line))
    ways.append(("more", f"remat inspect {report.plan}, or {ALL}" if report.plan else ALL))
    told = columns([*rows, *ways], "<<", indent="")
    told = [*told[: len(rows)], *[style.paint(line, "strong") for line in told[len(rows) :]]]
    lines = [report.verdict_parts.line(style)]
    lines += [style.paint(f"not kept: {failure}", "bad") for failure in failures[1:]]  # the first is in the verdict
    if report.failed_output is not None:
        lines.append(style.paint(f"nothing was delivered; the failed model is kept as {report.failed_output}", "bad"))
    # Warnings and what weakens a proof; not how the proof was made, nor what the verdict says already.
    notes, on_checks = ((), ()) if seen is None else (seen.notes, seen.how_checked)
    warned = [line for line in report.warnings if line not in notes]
    weak = [line for line in notes if line not in on_checks]
    warnings = list(dict.fromkeys([*cautions, *warned, *weak]))
    room = max(1, MOST_LINES - len(lines) - len(told))
    if len(warnings) > room:
        warnings[room - 1 :] = [f"{plural(len(warnings) - room + 1, 'warning')} more: {ALL}"]
    lines += [style.paint(f"warning: {line}", "warn") for line in warnings]
    return [*lines, *told]


def refused_screen(report: CompileReport, why: Sequence[str], style: Style) -> list[str]:
    """No plan was found: the verdict, why, and what to type instead."""
    room = MOST_LINES - 2  # beside the verdict and the last line
    lines = [line for line in why if line][:room]
    warnings = [style.paint(f"warning: {line}", "warn") for line in report.warnings][: room - len(lines)]
    return [report.verdict_parts.line(style), *warnings, *lines, f"which tensors are in the way: {ALL}"]


def outputs_row(seen: Verification | None, reference: str) -> Row:
    """Whether outputs were found to be the same bits, and as those of what."""
    if seen is None:
        return "outputs", "not compared: `remat verify` of the plan does that"
    if seen.outputs_identical:
        where = "" if seen.is_compared_everywhere else " where they were compared"
        same = f"same bits{where} as {reference}"
    elif seen.are_outputs_kept:
        same = f"within tolerance of {reference}"
    else:
        same = f"NOT those of {reference}"
    return "outputs", f"{same}; ONNX Runtime {seen.runtime_version}"
