"""Write the table of docs/solvers.md from the registry: `python -m docs.make_pages`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from remat_cli.commands.solvers import list_solvers
from remat_cli.report.solve import SolverEntry

TARGET = Path(__file__).with_name("solvers.md")
MARK, END = "from what `remat solvers` says -->\n", "<!-- end -->"


def page() -> str:
    """The guide with the table of now."""
    before, mark, rest = TARGET.read_text(encoding="utf-8").partition(MARK)
    return before + mark + _table() + END + rest.partition(END)[2]


def _table() -> str:
    """The registry as Markdown."""
    found = list_solvers()
    return f"{_rows(found.solvers)}\nWith `--spill` ([paging](paging.md)):\n\n{_rows(found.pagers)}"


def _rows(entries: Iterable[SolverEntry]) -> str:
    lines = ["| solver | what it is | takes | proves |", "| --- | --- | --- | --- |"]
    for entry in entries:
        cells = [f"`{entry.name}`", entry.summary, entry.supports.rstrip("."), entry.proves]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
