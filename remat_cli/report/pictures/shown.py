"""How a report shows itself where people look at values: a few lines in Python, a table and a picture in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final

from remat_cli.base.errors import AnswerError
from remat_cli.base.units import format_bytes
from remat_cli.report.style import Style

WIDTH, HEIGHT, MOST_POINTS = 640, 150, 1280
SHORT: Final = Style(is_short=True)


class Shown:
    """What every report of a command does, whatever it found."""

    __slots__ = ()

    def __str__(self) -> str:
        """The report in the lines that a screen would get."""
        shown: Any = self
        return "\n".join(shown.lines(SHORT))

    def _repr_html_(self) -> str:
        """The same for a notebook, with a picture: of memory over time, or of what is needed before and after."""
        memory = getattr(self, "memory_bytes", ())
        needs = [need for need in getattr(self, "needs", ()) if need.original_bytes]
        if memory:
            picture = memory_picture(memory, getattr(self, "baseline_memory_bytes", ()))
        else:
            picture = needs_picture([(each.original_bytes, each.needed_bytes, each.budget_bytes) for each in needs])
        return f"{picture}<pre>{escape(str(self))}</pre>"

    def raise_for_status(self) -> None:
        """Raise where the answer is not what was asked for; nothing where it is.

        Raises:
            AnswerError: the budget is impossible, no plan was found, or something was not kept as promised.
        """
        shown: Any = self
        if shown.exit_code:
            raise AnswerError(getattr(shown, "verdict", None) or str(self).partition("\n")[0], shown.exit_code)
        if getattr(shown, "fits", None) is False:
            raise AnswerError(shown.verdict)


def memory_picture(memory_bytes: Sequence[int], baseline_bytes: Sequence[int] = ()) -> str:
    """Memory over time as SVG that takes the colours of the page around it; the original's as a line behind it."""
    most = max(*memory_bytes, *baseline_bytes, 1)
    area = f"0,{HEIGHT} {_points(memory_bytes, most)} {WIDTH},{HEIGHT}"
    behind = f'<polyline points="{_points(baseline_bytes, most)}" fill="none" stroke="currentColor" opacity=".6"/>'
    told = f"memory over time, at most {format_bytes(max(memory_bytes))}"
    if baseline_bytes:
        told += f"; the original, as a line, {format_bytes(max(baseline_bytes))}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {WIDTH} {HEIGHT + 16}" width="{WIDTH}">'
        f"<title>{told}</title>"
        f'<polygon points="{area}" fill="currentColor" opacity=".35"/>{behind if baseline_bytes else ""}'
        f'<text x="0" y="{HEIGHT + 13}" font-size="12" fill="currentColor">{told}</text></svg>'
    )


def needs_picture(needs: Sequence[tuple[int, int, int]]) -> str:
    """Bars of what was needed before, what is now, and the budget; nothing where that is not known."""
    rows = [row for need in needs for row in zip(("before", "after", "budget"), need, strict=True)]
    if not rows:
        return ""
    most = max(size for _, size in rows)
    bars = "".join(
        f'<rect x="60" y="{20 * row + 3}" height="12" width="{max(1.0, (WIDTH - 160) * size / most):.1f}" '
        f'fill="currentColor" opacity="{0.8 if name == "after" else 0.35}"/>'
        f'<text x="0" y="{20 * row + 13}" font-size="12" fill="currentColor">{name}</text>'
        f'<text x="{66 + (WIDTH - 160) * size / most:.1f}" y="{20 * row + 13}" font-size="12" fill="currentColor">'
        f"{format_bytes(size)}</text>"
        for row, (name, size) in enumerate(rows)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {WIDTH} {20 * len(rows)}" width="{WIDTH}">'
        f"<title>memory before and after</title>{bars}</svg>"
    )


def _points(held_bytes: Sequence[int], most: int) -> str:
    """A curve of steps; of more than can be seen only the highest of neighbours."""
    stride = max(1, -(-len(held_bytes) // MOST_POINTS))
    seen = [max(held_bytes[first : first + stride]) for first in range(0, len(held_bytes), stride)]
    step = WIDTH / max(1, len(seen))
    corners = ((place * step, held) for at, held in enumerate(seen) for place in (at, at + 1))
    return " ".join(f"{x:.1f},{HEIGHT * (1 - held / most):.1f}" for x, held in corners)
