"""The trade-off curve of a model as `remat sweep` found it: a row for each budget and batch, and the table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from remat_cli.base.errors import EXIT_ERROR, EXIT_INTERRUPTED, ConfigError
from remat_cli.base.units import format_bytes
from remat_cli.report.pictures.shown import Shown
from remat_cli.report.solution import EXIT_DONE
from remat_cli.report.style import Style, columns, percent, plural

Bounded = Literal["live", "process", "least"]
"""What a budget of a row bounds."""
Found = Literal["plan", "none", "impossible", "unkept", "failed", "lost"]
"""What became of a case: a plan, none within its limits, none at all as proved, one that verification did not pass, or
an error, or whoever ran it was lost twice."""
TOLD: dict[Found, str] = {
    "plan": "",
    "none": "no plan was found",
    "impossible": "proved impossible",
    "unkept": "not as promised",
    "failed": "failed",
    "lost": "whoever ran it was lost twice",
}


class SweepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One budget, of one batch where there are several.

    `bounds` says what the budget bounds: live bytes, a process, or nothing (`min`).
    Bytes and `overhead_percent` are promised, `measured_overhead_percent` is what verification saw. `budget_percent` is
    the share of what planning can change (None: it was none, or there is no plan), `original_bytes` what the model
    takes as it is. `from_budget`: the plan is the one for that smaller budget, which is faster than what was found for
    this one. `on_curve`: no other row of the batch is better in both bytes and time. `key` names the case with all that
    it depends on.
    """

    key: str
    budget: str
    found: Found
    batch: int | None = None
    bounds: Bounded = "live"
    budget_percent: float | None = None
    budget_bytes: int | None = None
    peak_bytes: int | None = None
    original_bytes: int | None = None
    process_bytes: int | None = None
    overhead_percent: float | None = None
    measured_overhead_percent: float | None = None
    split: int = 0
    recomputed_ops: int = 0
    from_budget: str | None = None
    on_curve: bool = False
    message: str = ""
    seconds: float = 0.0

    @property
    def has_plan(self) -> bool:
        """Whether there is a plan that was not found wrong."""
        return self.found == "plan"

    @property
    def case(self) -> str:
        """Its budget, and its batch where there are several."""
        return self.budget if self.batch is None else f"batch {self.batch}, {self.budget}"

    @property
    def line(self) -> str:
        """What was found, in one line."""
        if self.peak_bytes is None:
            return f"{self.case}: {TOLD[self.found]}{f', {self.message}' if self.message else ''}"
        wrong = "" if self.has_plan else f", {TOLD[self.found]}"
        return f"{self.case}: {format_bytes(self.peak_bytes)} live, {percent(self.overhead_percent)} time{wrong}"


def rows_in(results: Path) -> list[SweepRow]:
    """The rows of a results file; a last line that was cut short is left out.

    Raises:
        ConfigError: it holds something else.
    """
    if not results.exists():
        return []
    lines = results.read_bytes().split(b"\n")
    found = []
    for number, line in enumerate(lines):
        try:
            if line:
                found.append(msgspec.json.decode(line, type=SweepRow))
        except msgspec.MsgspecError as error:
            if number < len(lines) - 1:
                raise ConfigError(f"{results} holds no rows of a sweep ({error}): write another with -o") from error
    return found


class SweepReport(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """The curve of a model: `results` is the file of rows, of which `new_rows` were found now.

    `missing` cases had not ended when the user stopped the command. `picture` is the file that was written.
    """

    model: str
    results: str
    curve: tuple[SweepRow, ...]
    new_rows: int = 0
    missing: int = 0
    picture: str | None = None
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 for a whole sweep, whatever it says; 1 where a case failed; 130 for one that Ctrl-C cut short."""
        if self.missing:
            return EXIT_INTERRUPTED
        return EXIT_ERROR if any(row.found in ("failed", "lost") for row in self.curve) else EXIT_DONE

    def lines(self, style: Style) -> list[str]:
        """A table, largest budgets first, and what stood in the way."""
        many = len({row.batch for row in self.curve}) > 1
        heads = [*(["batch"] if many else []), "budget", "live", "process", "time", "measured", "how", ""]
        rows = [heads]
        for row in self.curve:
            begin = [*([str(row.batch)] if many else []), row.budget]
            if row.peak_bytes is None:
                rows.append([*begin, "-", "-", "-", "-", TOLD[row.found], ""])
                continue
            how = [f"{plural(row.split, 'region')} in tiles"] if row.split else []
            how += [f"{plural(row.recomputed_ops, 'op')} again"] if row.recomputed_ops else []
            how += [f"as for {row.from_budget}"] if row.from_budget is not None else []
            how += [] if row.has_plan else [TOLD[row.found]]
            process = "-" if row.process_bytes is None else format_bytes(row.process_bytes)
            measured = "-" if row.measured_overhead_percent is None else percent(row.measured_overhead_percent)
            figures = (format_bytes(row.peak_bytes), process, percent(row.overhead_percent), measured)
            rows.append([*begin, *figures, ", ".join(how) or "order alone", "*" * row.on_curve])
        lines = [style.paint(self.model, "strong"), "", *columns(rows, "<" * len(heads))]
        lines += ["", "* on the curve: no other row is better in memory and time"]
        wrong = [row for row in self.curve if row.message and not row.has_plan]
        lines += [f"{row.case}: {row.message}" for row in wrong]
        if self.missing:
            lines += [style.paint(f"{plural(self.missing, 'case')} had not ended: --resume goes on", "warn")]
        more = f", picture in {self.picture}" if self.picture else ""
        return [*lines, f"rows in {self.results}{more}"]


def as_curve(rows: Iterable[SweepRow]) -> tuple[SweepRow, ...]:
    """Rows as a compile gives them that knows all of them: by batch, the largest budget first.

    A plan for less memory takes the place of one that is slower: it fits, and what a compile found is kept for others.
    """
    by_batch: dict[int | None, list[SweepRow]] = {}
    for row in rows:
        by_batch.setdefault(row.batch, []).append(row)
    found: list[SweepRow] = []
    for batch in sorted(by_batch, key=lambda each: each or 0):
        settled = [_settled(row, by_batch[batch]) for row in by_batch[batch]]
        marked = [msgspec.structs.replace(row, on_curve=_is_on_curve(row, settled)) for row in settled]
        found += sorted(marked, key=lambda row: -(row.budget_bytes or 0))
    return tuple(found)


def _settled(row: SweepRow, others: Iterable[SweepRow]) -> SweepRow:
    """A row with the best plan of all that fit its budget."""
    best = row
    for other in others:
        is_known = row.budget_bytes is not None and other.budget_bytes is not None
        fits = is_known and (other.budget_bytes or 0) <= (row.budget_bytes or 0)
        if fits and row.bounds == "live" and other.has_plan and _price(other) < _price(best):
            best = other
    if best is row:
        return row
    names = ("key", "budget", "bounds", "budget_percent", "budget_bytes", "seconds")
    own = {name: getattr(row, name) for name in names}
    return msgspec.structs.replace(best, **own, from_budget=best.from_budget or best.budget)


def _price(row: SweepRow) -> tuple[float, float]:
    """Time, then bytes; more than any where there is no plan."""
    is_known = row.has_plan and row.overhead_percent is not None and row.peak_bytes is not None
    return (row.overhead_percent or 0.0, row.peak_bytes or 0) if is_known else (float("inf"), float("inf"))


def _is_on_curve(row: SweepRow, others: Iterable[SweepRow]) -> bool:
    """Whether no other plan is as good in bytes and time, and better in one."""
    if not row.has_plan:
        return False
    own_time, own_bytes = _price(row)
    pairs = ((time, size) for time, size in (_price(other) for other in others if other.has_plan))
    return not any(
        time <= own_time and size <= own_bytes and (time < own_time or size < own_bytes) for time, size in pairs
    )
