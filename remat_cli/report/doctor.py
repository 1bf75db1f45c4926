"""What `doctor` found of the machine and of what is installed, what `examples` copied, and what to do next."""

from typing import Literal

import msgspec

from remat_cli.base.errors import EXIT_ERROR
from remat_cli.base.units import format_bytes
from remat_cli.report.pictures.shown import Shown
from remat_cli.report.solution import EXIT_DONE
from remat_cli.report.style import Role, Style, columns

State = Literal["good", "notice", "bad"]
COLORS: dict[State, Role] = {"good": "good", "notice": "warn", "bad": "bad"}


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at: what it is, what was found, and what to do about it (empty: nothing)."""

    name: str
    found: str
    state: State = "good"
    advice: str = ""


class DoctorReport(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Whether remat can work here.

    `providers` are those of ONNX Runtime, each with why it cannot be used (empty: it can).
    `memory_bytes` is what the machine has, `spare_bytes` what a process that is started now may take, its container's
    limit and its own counted. `cache_bytes` is what measured costs and known plans take.
    """

    findings: tuple[Finding, ...]
    versions: dict[str, str]
    providers: dict[str, str]
    memory_bytes: int
    spare_bytes: int
    cache_dir: str
    cache_bytes: int

    @property
    def exit_code(self) -> int:
        """An error where something is missing without which nothing can be compiled."""
        return EXIT_ERROR if any(each.state == "bad" for each in self.findings) else EXIT_DONE

    def lines(self, style: Style) -> list[str]:
        """What was found, then what to do."""
        rows = [(each.name, each.found) for each in self.findings]
        lines = [
            line if each.state == "good" else style.paint(line, COLORS[each.state])
            for line, each in zip(columns(rows, "<<", indent=""), self.findings, strict=True)
        ]
        usable = [name for name, problem in self.providers.items() if not problem]
        lines += [f"devices that can be used here: {', '.join(usable) or 'none'}"]
        if not style.is_short:
            lines += [f"  {name}: {problem}" for name, problem in self.providers.items() if problem]
        spare = f"of which a process may take {format_bytes(self.spare_bytes)} now"
        lines.append(f"memory: {format_bytes(self.memory_bytes)}, {spare}")
        lines.append(f"cache: {self.cache_dir} ({format_bytes(self.cache_bytes)})")
        advice = [f"- {each.advice}" for each in self.findings if each.advice]
        return [
            *lines,
            "",
            *(["what to do next:", *advice] if advice else ["all is well: remat compile MODEL --budget 80%"]),
        ]


class ExamplesReport(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Which files were wanted in a folder, how many of them were written, and a model to begin with."""

    folder: str
    files: tuple[str, ...]
    written: int
    model: str

    @property
    def exit_code(self) -> int:
        """They are all there."""
        return EXIT_DONE

    def lines(self, style: Style) -> list[str]:
        """What is there now, and what to do with it; every file with `-v`."""
        there = len(self.files) - self.written
        kept = f", {there} were there already" if there else ""
        lines = [f"{self.written} files written into {self.folder}{kept}"]
        if not style.is_short:
            lines += [f"  {name}" for name in self.files]
        return [*lines, f"begin with: remat compile {self.model} --budget 80%"]
