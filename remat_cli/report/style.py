"""How text looks: width, colour and character set of whatever shows it, and columns that line up."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Literal

import msgspec

from remat_cli.base.named import named
from remat_cli.base.units import format_bytes
from remat_cli.core.values.budget import describe_bytes

Role = Literal["good", "bad", "warn", "accent", "faint", "strong"]

CODES: dict[Role, str] = {"good": "32", "bad": "31", "warn": "33", "accent": "36", "faint": "2", "strong": "1"}


class Style(msgspec.Struct, frozen=True):
    """What the reader's screen can do; the default suits a file. `is_folded`: longer lines go on in the next one.

    `is_short`: what a compile came to takes a few lines, else all that is known of it is told.
    """

    width: int = 100
    has_color: bool = False
    has_unicode: bool = True
    is_folded: bool = False
    is_short: bool = False

    def paint(self, text: str, role: Role) -> str:
        """The text in a role's colour, or as it is."""
        return f"\x1b[{CODES[role]}m{text}\x1b[0m" if self.has_color and text else text

    def size(self, count: int) -> str:
        """A size that people read, with the exact bytes where there is room for them."""
        return format_bytes(count) if self.is_short else describe_bytes(count)


def painted(pieces: Sequence[tuple[str, Role | None]], style: Style) -> str:
    """Pieces of text in their colours; equal neighbours are painted together."""
    text = ""
    for role, same in groupby(pieces, key=lambda piece: piece[1]):
        joined = "".join(piece for piece, _ in same)
        text += style.paint(joined, role) if role else joined
    return text


def columns(rows: Sequence[Sequence[str]], align: str, indent: str = "  ") -> list[str]:
    """Rows as lines with aligned columns; `align` has one `<` or `>` per column."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(align))] if rows else []
    lines = []
    for row in rows:
        cells = [f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def shorten(text: str, width: int) -> str:
    """The text, its middle left out if it is longer than `width` (at least 5)."""
    if len(text) <= width:
        return text
    half = (width - 3) // 2
    return f"{text[: width - 3 - half]}...{text[-half:]}" if half else text[:width]


COLOR = re.compile(r"\x1b\[[0-9;]*m")
GAP = re.compile(r" +")
CODE_INDENT, HANGING = "    ", 4  # what code is indented by, and what the rest of a line is more than its beginning


def folded(lines: Sequence[str], width: int) -> list[str]:
    """Lines of at most so many columns, the rest of a longer one below it, further in; broken between columns or words.

    Code stays as it is: what is indented after a heading that ends with a colon, and an empty line.
    """
    found: list[str] = []
    is_code = False
    for number, line in enumerate(lines):
        after_heading = number > 1 and not lines[number - 1] and lines[number - 2].endswith(":")
        is_code = (line.startswith(CODE_INDENT) and (is_code or after_heading)) or (is_code and not line)
        found += [line] if is_code or len(COLOR.sub("", line)) <= width else _pieces(line, width)
    return found


def _pieces(line: str, width: int) -> Iterator[str]:
    """One line as several."""
    indent = len(line) - len(line.lstrip())
    more = min(indent, width // 4) + HANGING
    rest, before = line.lstrip(), " " * indent if indent < width // 2 else " " * more
    while rest:
        # Where to break: after the last column that fits, if it fills half of the room, else after the last word.
        room = width - len(before)
        gaps = [(len(COLOR.sub("", rest[: gap.start()])), gap) for gap in GAP.finditer(rest)]
        if len(COLOR.sub("", rest)) <= room:
            end = len(rest)
        else:
            fitting = [(shown, gap) for shown, gap in gaps if shown <= room]
            columns_ = [gap for shown, gap in fitting if len(gap[0]) > 1 and shown >= room // 2]
            if columns_ or fitting:
                end = (columns_ or [gap for _, gap in fitting])[-1].end()
            else:
                end = gaps[0][1].end() if gaps else len(rest)
        yield before + rest[:end].rstrip()
        rest, before = rest[end:].lstrip(), " " * more


def percent(value: float | None) -> str:
    """A signed percentage with two decimals, or `unknown`."""
    return "unknown" if value is None else f"{value:+.2f} %"


def duration(time_ns: float) -> str:
    """A time in the unit that fits: ns, us, ms or s."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if time_ns >= size:
            return f"{time_ns / size:.2f} {unit}"
    return f"{time_ns:.0f} ns"


def plural(count: int, noun: str) -> str:
    """`1 op`, `3 ops`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def lines_of(writer: str, report: object, style: Style) -> list[str]:
    """The lines of a report in its user's names, by `module:function`: writers have files of their own."""
    write: Callable[[object, Style], list[str]] = named(writer)
    in_users_names: Callable[[object], object] = named("remat_cli.report.told:in_users_names")
    return write(in_users_names(report), style)
