"""What verifying a compiled file without its plan found out, as values that become JSON and as lines for people."""

from typing import ClassVar

import msgspec

from remat_cli.core.values.budget import describe_bytes
from remat_cli.core.values.file_check import FileVerification
from remat_cli.core.values.promises import MeasuredPromise, worst
from remat_cli.core.values.runs_on import RunsOn
from remat_cli.report.pictures.shown import Shown
from remat_cli.report.process_text import pair_lines
from remat_cli.report.runs_on import runs_on_lines
from remat_cli.report.solution import EXIT_DONE, EXIT_NOT_FOUND, EXIT_UNVERIFIED
from remat_cli.report.style import Style, columns, percent
from remat_cli.report.verdict import WHERE, Need, Price, ReportVerdict

YES = {True: "yes", False: "NO", None: "not checked"}


class FileReport(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """One verification of a compiled file beside the original; `plan` is that which led to it, if one was given.

    `promises` are those of the file, each with the verdict on it; `runs_on` is where it runs. In JSON `fits` and
    `verdict` stand beside the fields.
    """

    also_in_json: ClassVar = ("fits", "verdict")

    model: str
    source: str
    plan: str | None = None
    verification: FileVerification
    promises: tuple[MeasuredPromise, ...]
    runs_on: RunsOn | None = None
    warnings: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the file keeps what it promises, within its budget."""
        return file_verdict(self.verification).fits

    @property
    def verdict(self) -> str:
        """The first line of the report."""
        return file_verdict(self.verification).text

    @property
    def exit_code(self) -> int:
        """0 where all that could be checked holds, 5 where outputs or order were not kept, 4 where memory was not."""
        codes = {"broken": EXIT_UNVERIFIED, "memory": EXIT_NOT_FOUND}
        return codes.get(worst(self.promises), EXIT_DONE)

    def lines(self, style: Style) -> list[str]:
        """The verdict, what was checked, and the figures behind it."""
        heading = style.paint(self.model, "strong") + f"  against {self.source}"
        lines = [file_verdict(self.verification).line(style), heading, "", *seen_lines(self.verification, style)]
        told = [style.paint(f"warning: {warning}", "warn") for warning in self.warnings]
        return [*lines, *(["", *told] if told else []), *runs_on_lines(self.runs_on)]


def seen_lines(seen: FileVerification, style: Style) -> list[str]:
    """What was checked of a file, and the figures behind it."""
    runtime = f" on ONNX Runtime {seen.runtime_version}"
    if not seen.passed:
        failures = [style.paint(f"  {failure}", "bad") for failure in seen.failures]
        lines = [style.paint("NOT KEPT", "bad") + f" by the file{runtime}", *failures]
    else:
        left = [NAMES[each.measure] for each in seen.promises if each.kept is None]
        more = f"; not checked: {', '.join(left)}" if left else ""
        lines = [style.paint("the file keeps its promises", "good") + runtime + more]
    # The budget that the user gave, and what a budget on the process was measured to be used for.
    budget_bytes = seen.process_promise.budget_bytes
    if budget_bytes is None:
        told = "" if seen.budget_bytes is None else f", {WHERE['live']}"
        budget_rows = [["budget of the file", f"{_bytes(seen.budget_bytes)}{told}"]]
    else:
        mapped = "counted" if seen.process_promise.with_mapped else "not counted"
        budget_rows = [
            ["budget of the file", f"{_bytes(budget_bytes)}, {WHERE['process']}, mapped pages {mapped}"],
            ["the process needs", f"{_bytes(seen.needed_bytes)}, inputs included"],
        ]
    lines += columns(
        [
            *([["compared with", seen.reference]] if seen.reference else []),
            ["outputs identical", YES[seen.outputs_identical]],
            ["order honoured", YES[seen.order_honoured]],
            ["live tensors, predicted", _bytes(seen.predicted_peak_bytes)],
            ["live tensors, measured", _bytes(seen.measured_peak_bytes)],
            *budget_rows,
            ["default session, original", _bytes(seen.original_default_session_peak_bytes)],
            ["default session, this model", _bytes(seen.measured_peak_default_session_bytes)],
            ["time, measured", percent(seen.measured_overhead_percent)],
        ],
        "<<",
    )
    lines += pair_lines(seen.process.original, seen.process.rewritten) if seen.process is not None else []
    return [*lines, *(f"  note: {note}" for note in seen.notes)]


def file_verdict(seen: FileVerification) -> ReportVerdict:
    """What the report says first."""
    is_process = seen.process_promise.budget_bytes is not None
    if is_process:
        budget_bytes, original_bytes = seen.process_promise.budget_bytes, seen.original_needed_bytes
        found, predicted_bytes = [seen.needed_bytes], seen.predicted_needed_bytes
    else:
        budget_bytes, original_bytes = seen.budget_bytes, seen.original_default_session_peak_bytes
        found, predicted_bytes = [seen.measured_peak_bytes], seen.predicted_peak_bytes
        found += [] if seen.is_portable else [seen.measured_peak_default_session_bytes]
    measured = [each for each in found if each is not None]
    needed_bytes = max(measured, default=predicted_bytes)
    needs: tuple[Need, ...] = ()
    if budget_bytes is not None and needed_bytes is not None:
        need = Need(
            needed_bytes=needed_bytes,
            budget_bytes=budget_bytes,
            bounds="process" if is_process else "live",
            original_bytes=original_bytes,
        )
        needs = (need,)
    return ReportVerdict(
        needs=needs,
        is_measured=bool(measured) if needs else not is_process,
        broken=seen.failures,
        warned=seen.warned,
        bits="same bits" if seen.outputs_identical else "other outputs",
        price=Price(predicted_percent=None, measured_percent=seen.measured_overhead_percent, is_looked_up=False),
    )


NAMES = {
    "outputs": "outputs",
    "order": "order",
    "live": "live tensors",
    "default_session": "an ordinary session",
    "process": "the process",
}


def _bytes(count: int | None) -> str:
    return "not known" if count is None else describe_bytes(count)
