"""What verifying a compiled file elsewhere found out, as values that become JSON and as lines for people."""

from typing import ClassVar, Final

import msgspec

from remat_cli.base.errors import EXIT_ERROR
from remat_cli.core.values.elsewhere import VerifiedOn
from remat_cli.core.values.runs_on import RunsOn
from remat_cli.report.file_report import file_verdict, seen_lines
from remat_cli.report.pictures.shown import Shown
from remat_cli.report.runs_on import runs_on_lines
from remat_cli.report.solution import EXIT_DONE, EXIT_NOT_FOUND, EXIT_UNVERIFIED
from remat_cli.report.style import Style

EXIT_CODES: Final[dict[str, int]] = {
    "kept": EXIT_DONE,
    "memory": EXIT_NOT_FOUND,
    "broken": EXIT_UNVERIFIED,
    "refused": EXIT_UNVERIFIED,
    "fails": EXIT_UNVERIFIED,
    "no_original": EXIT_ERROR,
}
SEVERITY: Final = (EXIT_DONE, EXIT_ERROR, EXIT_NOT_FOUND, EXIT_UNVERIFIED)
LONGEST_MESSAGE: Final = 300


class ElsewhereReport(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """A compiled file beside the original in other places; `plan` is that which led to it, if one was given.

    In JSON `fits` and `verdict` stand beside the fields: the worst of all places.
    """

    also_in_json: ClassVar = ("fits", "verdict")

    model: str
    source: str
    plan: str | None = None
    verified_on: tuple[VerifiedOn, ...]
    runs_on: RunsOn | None = None
    warnings: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the file keeps what it promises, within its budget, in all places."""
        return all(each.verification is not None and file_verdict(each.verification).fits for each in self.verified_on)

    @property
    def verdict(self) -> str:
        """The first line of the report: what the worst place showed."""
        return _verdict(self._worst)

    @property
    def exit_code(self) -> int:
        """0 where all holds everywhere, 5 where the file does not run, or outputs or order differ, 4 for memory."""
        return EXIT_CODES[self._worst.outcome]

    @property
    def _worst(self) -> VerifiedOn:
        return max(self.verified_on, key=lambda each: SEVERITY.index(EXIT_CODES[each.outcome]))

    def lines(self, style: Style) -> list[str]:
        """The verdict, then each place with its figures."""
        is_good = self.exit_code == EXIT_DONE
        lines = [style.paint(self.verdict, "good" if is_good else "bad")]
        lines.append(style.paint(self.model, "strong") + f"  against {self.source}")
        for each in self.verified_on:
            lines += ["", style.paint(each.on, "strong"), f"  {each.place.line}"]
            if each.verification is None:
                lines.append(style.paint(f"  {_verdict(each)}", "bad"))
                continue
            if each.difference is not None and not each.verification.outputs_identical:
                lines.append(style.paint(f"  outputs differ by up to {each.difference:.2g} of the largest", "bad"))
            lines += seen_lines(each.verification, style)
        told = [style.paint(f"warning: {warning}", "warn") for warning in self.warnings]
        return [*lines, *(["", *told] if told else []), *runs_on_lines(self.runs_on)]


def _verdict(each: VerifiedOn) -> str:
    """What a place showed, in a line."""
    if each.verification is not None:
        return f"{file_verdict(each.verification).text} (on {each.on})"
    said = " ".join((each.message or "").split())[:LONGEST_MESSAGE]
    if each.outcome == "no_original":
        return f"not verified: the original does not run on {each.on}: {said}"
    if each.guard is not None:
        return f"refuses to run on {each.on}, as it was made for another processor: its op {each.guard} says so"
    return f"does not {'run' if each.loads else 'load'} on {each.on}: {said}"
