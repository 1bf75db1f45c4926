"""What verifying a compiled file without its plan found out, as values that become JSON and as lines for people."""

import msgspec

from remat_cli.core.values.budget import describe_bytes
from remat_cli.core.values.file_check import FileVerification
from remat_cli.core.values.promises import MeasuredPromise
from remat_cli.core.values.runs_on import RunsOn
from remat_cli.report.process_text import pair_lines
from remat_cli.report.runs_on import runs_on_lines
from remat_cli.report.solution import EXIT_DONE, EXIT_NOT_FOUND, EXIT_UNVERIFIED
from remat_cli.report.style import Style, columns, percent

YES = {True: "yes", False: "NO", None: "not checked"}


class FileReport(msgspec.Struct, frozen=True, kw_only=True):
    """One verification of a compiled file beside the original; `plan` is that which led to it, if one was given.

    `promises` are those of the file, each with the verdict on it; `runs_on` is where it runs.
    """

    model: str
    source: str
    plan: str | None = None
    verification: FileVerification
    promises: tuple[MeasuredPromise, ...]
    runs_on: RunsOn | None = None
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 where all that could be checked holds, 5 where outputs or order were not kept, 4 where memory was not."""
        if self.verification.passed:
            return EXIT_DONE
        return EXIT_UNVERIFIED if self.verification.is_broken else EXIT_NOT_FOUND

    def lines(self, style: Style) -> list[str]:
        """The verdict, what was checked, and the figures behind it."""
        seen = self.verification
        lines = [*_verdict_lines(seen, style), style.paint(self.model, "strong") + f"  against {self.source}", ""]
        lines += columns(_rows(seen), "<<")
        lines += pair_lines(seen.process.original, seen.process.rewritten) if seen.process is not None else []
        told = [style.paint(f"warning: {warning}", "warn") for warning in self.warnings]
        lines += [f"  note: {note}" for note in seen.notes]
        return [*lines, *(["", *told] if told else []), *runs_on_lines(self.runs_on)]


def _verdict_lines(seen: FileVerification, style: Style) -> list[str]:
    runtime = f" on ONNX Runtime {seen.runtime_version}"
    if not seen.passed:
        failures = [style.paint(f"  {failure}", "bad") for failure in seen.failures]
        return [style.paint("NOT KEPT", "bad") + f" by the file{runtime}", *failures]
    left = [NAMES[each.measure] for each in seen.promises if each.kept is None]
    more = f"; not checked: {', '.join(left)}" if left else ""
    return [style.paint("the file keeps its promises", "good") + runtime + more]


NAMES = {"outputs": "outputs", "order": "order", "live": "live tensors", "default_session": "an ordinary session"}


def _rows(seen: FileVerification) -> list[list[str]]:
    return [
        *([["compared with", seen.reference]] if seen.reference else []),
        ["outputs identical", YES[seen.outputs_identical]],
        ["order honoured", YES[seen.order_honoured]],
        ["live tensors, predicted", _bytes(seen.predicted_peak_bytes)],
        ["live tensors, measured", _bytes(seen.measured_peak_bytes)],
        ["budget of the file", _bytes(seen.budget_bytes)],
        ["default session, original", _bytes(seen.original_default_session_peak_bytes)],
        ["default session, this model", _bytes(seen.measured_peak_default_session_bytes)],
        ["time, measured", percent(seen.measured_overhead_percent)],
    ]


def _bytes(count: int | None) -> str:
    return "not known" if count is None else describe_bytes(count)
