"""The registry of solvers, as `remat solvers` tells it."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from remat_cli.report.solution import EXIT_DONE
from remat_cli.report.style import Style, columns


class OptionEntry(msgspec.Struct, frozen=True):
    """One option of a solver: name, type as text, and default."""

    name: str
    type: str
    default: Any


class SolverEntry(msgspec.Struct, frozen=True):
    """One solver of the registry. `supports` and `proves` are sentences."""

    name: str
    summary: str
    supports: str
    proves: str
    options: tuple[OptionEntry, ...]


class SolversReport(msgspec.Struct, frozen=True):
    """The registry of solvers."""

    exit_code: ClassVar[int] = EXIT_DONE
    solvers: tuple[SolverEntry, ...]

    def lines(self, style: Style) -> list[str]:
        """Each solver with what it takes, what it proves and its options."""
        lines: list[str] = []
        for entry in self.solvers:
            lines += [style.paint(entry.name, "strong") + f"  {entry.summary}"]
            lines += [f"  supports: {entry.supports}", f"  proves: {entry.proves}"]
            rows = [[f"--option {option.name}={option.default}", option.type] for option in entry.options]
            lines += [*columns(rows, "<<"), ""]
        return lines[:-1]
