"""What compiling one model for several targets found out: a report for each, and the worst of them."""

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

import msgspec

from remat_cli.base.errors import EXIT_ERROR, EXIT_INPUT, EXIT_INTERRUPTED
from remat_cli.report.compile import CompileReport
from remat_cli.report.pictures.shown import Shown
from remat_cli.report.solution import EXIT_DONE, EXIT_IMPOSSIBLE, EXIT_NOT_FOUND, EXIT_UNVERIFIED
from remat_cli.report.style import Style, columns

SEVERITY: Final = (
    EXIT_DONE,
    EXIT_NOT_FOUND,
    EXIT_IMPOSSIBLE,
    EXIT_UNVERIFIED,
    EXIT_INPUT,
    EXIT_ERROR,
    EXIT_INTERRUPTED,
)
"""Exit codes, the worst last."""
Known = Literal["run", "predicted"]


class TargetReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one target: the report of its compile, whose fields stand beside these in JSON, or an `error`.

    `known` says by kind of processor whether what is promised there was run, or predicted from runs of other kinds.
    """

    merged_in_json: ClassVar = "compiled"
    name: str
    exit_code: int
    known: Mapping[str, Known] = {}
    error: str | None = None
    compiled: CompileReport | None = None

    @property
    def verdict(self) -> str:
        """The first line of its report, or of the error."""
        return self.compiled.verdict if self.compiled is not None else f"failed: {self.error}"

    @property
    def known_line(self) -> str:
        """On which kinds of processors it was run, and for which it was predicted."""
        return "; ".join(
            f"{how}: {', '.join(kinds)}"
            for how in ("run", "predicted")
            if (kinds := [kind for kind, known in self.known.items() if known == how])
        )


class TargetsReport(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """One compile for several targets; in JSON `fits` and `verdict` of all of them stand beside the fields."""

    also_in_json: ClassVar = ("fits", "verdict")
    model: str
    targets: tuple[TargetReport, ...]
    seconds: float

    @property
    def fits(self) -> bool:
        """Whether every target has a file that keeps what was asked of it."""
        return all(each.compiled is not None and each.compiled.fits for each in self.targets)

    @property
    def verdict(self) -> str:
        """How many targets have such a file, and which have not."""
        failed = [f"{each.name} (exit code {each.exit_code})" for each in self.targets if each.exit_code != EXIT_DONE]
        done = f"{len(self.targets) - len(failed)} of {len(self.targets)} targets have a file"
        return f"{done}; not {', '.join(failed)}" if failed else done

    @property
    def exit_code(self) -> int:
        """That of the worst target."""
        return max((each.exit_code for each in self.targets), key=SEVERITY.index)

    def lines(self, style: Style) -> list[str]:
        """All targets in a line each, then the report of each one."""
        lines = [style.paint(self.verdict, "good" if self.exit_code == EXIT_DONE else "bad")]
        lines += columns([(each.name, each.verdict) for each in self.targets], "<<")
        for each in self.targets:
            known = f"  ({each.known_line})" if each.known else ""
            lines += ["", style.paint(f"target {each.name}", "accent") + known]
            if each.compiled is None:
                lines.append(f"failed: {each.error}")
            else:  # each file is run as any other is
                lines += msgspec.structs.replace(each.compiled, snippet="", one_line="").lines(style)
        return lines
