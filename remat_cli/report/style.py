"""How text looks: width, colour and character set of whatever shows it, and columns that line up."""

import importlib
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Literal

import msgspec

Role = Literal["good", "bad", "warn", "accent", "faint", "strong"]

CODES: dict[Role, str] = {"good": "32", "bad": "31", "warn": "33", "accent": "36", "faint": "2", "strong": "1"}


class Style(msgspec.Struct, frozen=True):
    """What the reader's screen can do; the default suits a file."""

    width: int = 100
    has_color: bool = False
    has_unicode: bool = True

    def paint(self, text: str, role: Role) -> str:
        """The text in a role's colour, or as it is."""
        return f"\x1b[{CODES[role]}m{text}\x1b[0m" if self.has_color and text else text


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
    """The lines of a report by `module:function`, for writers so long that they have a file of their own."""
    module, _, function = writer.partition(":")
    write: Callable[[object, Style], list[str]] = getattr(importlib.import_module(module), function)
    return write(report, style)
