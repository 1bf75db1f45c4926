"""Memory over time as lines of text: bars of block characters, the budget as a rule, the peak marked."""

import math
from collections.abc import Iterator, Sequence

import msgspec

from remat_cli.base.units import format_bytes
from remat_cli.report.style import Role, Style, painted

EIGHTHS = " ▁▂▃▄▅▆▇█"
MIB = 2**20


class ChartRule(msgspec.Struct, frozen=True):
    """A horizontal line across the chart at some number of bytes; bars above one of role `warn` are drawn as bad."""

    label: str
    bytes: int
    role: Role = "warn"


class Band(msgspec.Struct, frozen=True):
    """A stretch of steps, first and last inclusive, that is marked under the chart with a label.

    What `meaning` says of the marks is written once for all bands that share it.
    """

    label: str
    first: int
    last: int
    meaning: str = ""


class _Frame(msgspec.Struct, frozen=True):
    """The visible part: `rows` of text between `low` and `high` bytes."""

    low: float
    high: float
    rows: int

    def level(self, count: float) -> float:
        """Height of a number of bytes, in rows from the bottom, cut to the frame."""
        span = self.high - self.low
        return min(max((count - self.low) / span, 0.0), 1.0) * self.rows if span > 0 else 0.0

    def row_of(self, count: float) -> int:
        """The row, from the bottom, that shows a number of bytes."""
        return min(self.rows - 1, int(self.level(count)))


def memory_chart(
    memory_bytes: Sequence[int],
    *,
    fixed_bytes: int = 0,
    rules: Sequence[ChartRule] = (),
    bands: Sequence[Band] = (),
    rows: int = 10,
    style: Style | None = None,
) -> list[str]:
    """Draw bytes held during each step, as wide as the style says; the vertical axis is in MiB.

    More steps than columns: each column shows the largest of its steps, so that no peak is lost. The fixed part is
    shaded. Where it is more than half of everything, the axis starts at it, as its labels say. Only rules near enough
    to what is drawn are shown. Bands are a line of marks below the axis.
    """
    style = style or Style()
    if not memory_bytes:
        return ["  (no steps)"]
    peak = max(memory_bytes)
    rules = [rule for rule in rules if rule.bytes <= 1.6 * peak]
    top = max([peak, *(rule.bytes for rule in rules)])
    frame = _Frame(float(fixed_bytes if fixed_bytes > top / 2 else 0), float(top), rows)
    labels = _axis_labels(frame)
    margin = max(len(label) for label in labels.values())
    values = resample(memory_bytes, max(10, style.width - margin - 6))
    limit = min((rule.bytes for rule in rules if rule.role == "warn"), default=None)
    tick, side, corner, ground = "┤│└─" if style.has_unicode else "+|+-"
    lines = []
    for row in reversed(range(rows)):
        rule = next((rule for rule in rules if frame.row_of(rule.bytes) == row), None)
        bars = painted([_cell(value, row, frame, (fixed_bytes, limit, rule), style) for value in values], style)
        lines.append(f"  {labels.get(row, ''):>{margin}} {tick if row in labels else side}{bars.rstrip()}")
    lines.append(f"  {labels[-1]:>{margin}} {corner}{ground * len(values)}")
    below = [*_marks_below(memory_bytes, bands, len(values), style)]
    dashes = "╌╌" if style.has_unicode else "--"
    below += [style.paint(f"{dashes} {rule.label} {format_bytes(rule.bytes)}", rule.role) for rule in rules]
    meanings = dict.fromkeys(band.meaning for band in bands if band.meaning)
    below += [style.paint(f"{_line(2, style)} {meaning}", "good") for meaning in meanings]
    return lines + [f"  {'':>{margin}}  {line}" for line in below]


def _axis_labels(frame: _Frame) -> dict[int, str]:
    """MiB at the upper edge of the top and the middle row, and at the bottom line (row -1)."""
    span = frame.high - frame.low
    decimals = max(0, min(3, 2 - math.floor(math.log10(span / MIB)))) if span > 0 else 0
    rows = (-1, (frame.rows - 1) // 2, frame.rows - 1)
    return {row: f"{(frame.low + span * (row + 1) / frame.rows) / MIB:.{decimals}f} MiB" for row in rows}


def resample(values: Sequence[int], width: int) -> list[int]:
    """As many values as columns: the largest of each column's steps; few steps are widened evenly."""
    count = len(values)
    if count >= width:
        return [max(values[column * count // width : (column + 1) * count // width]) for column in range(width)]
    return [values[column * count // width] for column in range(width)]


def _cell(
    value: int, row: int, frame: _Frame, marks: tuple[int, int | None, ChartRule | None], style: Style
) -> tuple[str, Role | None]:
    """The character at a column and row, and its colour: fixed part, bar, rule, or nothing."""
    fixed, limit, rule = marks
    fill = frame.level(value) - row
    if rule and (fill <= 0.06 or fill >= 1):  # the rule cuts through bars that go beyond its row
        return ("╌" if style.has_unicode else "-"), rule.role
    if fill <= 0.06:
        return " ", None
    if row + 1 <= frame.level(fixed):
        return ("░" if style.has_unicode else ":"), "faint"
    role: Role = "bad" if limit is not None and value > limit else "accent"
    if not style.has_unicode:
        return ("#" if fill >= 0.5 else "."), role
    return EIGHTHS[max(1, min(8, round(fill * 8)))], role


def _marks_below(memory_bytes: Sequence[int], bands: Sequence[Band], width: int, style: Style) -> Iterator[str]:
    """A line of marks, each band's label at its start, and a mark under the first peak's column, with its label.

    Where bands meet in one column the later one shows. The label of the peak is on the side with room, or else below.
    """
    cells, count = [" "] * width, len(memory_bytes)
    for band in sorted(bands, key=lambda band: band.first):
        first = _column(band.first, count, width)
        last = max(first, (_column(band.last + 1, count, width) if band.last + 1 < count else width) - 1)
        cells[first : last + 1] = [*(band.label + _line(width, style))[: last + 1 - first]]
    if text := "".join(cells).rstrip():
        yield style.paint(text, "good")
    peak = max(memory_bytes)
    step = memory_bytes.index(peak)
    column, mark = _column(step, count, width), "▲" if style.has_unicode else "^"
    label = f"peak {format_bytes(peak)} at step {step}"
    if column + 2 + len(label) <= width:
        yield " " * column + style.paint(f"{mark} {label}", "strong")
    elif column > len(label):
        yield " " * (column - len(label) - 1) + style.paint(f"{label} {mark}", "strong")
    else:
        yield " " * column + style.paint(mark, "strong")
        yield style.paint(label, "strong")


def _line(width: int, style: Style) -> str:
    return ("━" if style.has_unicode else "=") * width


def _column(step: int, count: int, width: int) -> int:
    """The first column that shows a step, the inverse of `resample`."""
    if count >= width:
        return next(column for column in range(width) if step < (column + 1) * count // width)
    return next(column for column in range(width) if column * count // width == step)
