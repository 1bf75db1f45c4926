"""The table of the README, of public architectures and of programs of packages together: `python -m bench.readme`."""

from __future__ import annotations

from collections.abc import Iterator

from bench.compiling import ROOT, Row, table_lines
from bench.field import report as field
from bench.field.programs import PROGRAMS
from bench.real import report as real

README = ROOT / "README.md"
BEGIN = "<!-- made by `python -m bench.readme` from the rows of `make bench-real` and `make bench-field` -->\n"
END = "<!-- end -->\n"
SHOWN = 5  # of each kind, those that are left the least
MOST_OVERHEAD_PERCENT = 10.0
HEAD = ("what runs", "its process takes", "compiled", "time")


def with_table(text: str) -> str:
    """The README with the table of the rows that are here."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError("the README lacks the marks of its table")
    lines = table_lines(HEAD, [*_architectures(), *_programs()])
    return before + begin + "\n" + "".join(f"{line}\n" for line in lines) + "\n" + end + after


def _architectures() -> Iterator[list[str]]:
    """Models of public libraries: later runs of a process, and the time that was measured."""
    for before, after in real.best_rows(real.BENCH.rows())[:SHOWN]:
        sizes = [f"{real.later_bytes(row) / real.MIB:,.0f} MiB" for row in (before, after)]  # type: ignore[operator]
        yield [before["model"], *sizes, f"{after['measured_overhead_percent']:+.0f} %"]


def _programs() -> Iterator[list[str]]:
    """Programs with the same answers and about the same time: how far their processes grow."""
    same = [row for row in field.best_rows(field.BENCH.rows()) if field.has_same_answer(row) and _is_fast(row)]
    does = {each.name: each.does for each in PROGRAMS}
    for row in sorted(same, key=field.less, reverse=True)[:SHOWN]:
        sizes = [f"{field.mib(field.grown_bytes(row[run]))} MiB" for run in ("before", "seen")]
        cost = f"{row['solution']['overhead_percent']:+.0f} %"
        yield [f"{row['program']}: {does[row['program']]}", *sizes, cost]


def _is_fast(row: Row) -> bool:
    overhead = row["solution"]["overhead_percent"]
    return overhead is not None and overhead <= MOST_OVERHEAD_PERCENT


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
