"""A page as HTML: one file with its script, its style and its data, so that it opens anywhere without a network."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from remat_cli.base.errors import MissingDependency
from remat_cli.base.units import format_bytes
from remat_cli.report.page.charts import curve_chart, memory_chart, phase_chart
from remat_cli.report.page.values import Course, Page, PageTable, PageTensor

HERE: Final = Path(__file__).parent
MOST_TENSORS: Final = 300
"""In the table of tensors; what is smaller still counts in the picture."""
MOST_READERS: Final = 6
MOST_OPEN: Final = 12
"""Rows of a table that are seen at once; the others are folded away."""
EXTRA: Final = 'a page needs vl-convert-python: pip install "remat_cli[html]"'


def require_charts() -> None:
    """Check that charts can be drawn.

    Raises:
        MissingDependency: vl-convert-python is not installed.
    """
    _charts_module()


def _charts_module() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise MissingDependency(EXTRA) from None
    return vl_convert


def page_html(page: Page) -> bytes:
    """The file.

    Raises:
        MissingDependency: vl-convert-python is not installed.
    """
    body = "\n".join(_body(page))
    bundle = _charts_module().javascript_bundle() if "data-chart" in body else ""
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    policy = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{escape(page.title)}</title>
<style>{style}</style>
</head>
<body>
{body}
<script>{bundle}</script>
<script>{script}</script>
</body>
</html>
""".encode()


def _body(page: Page) -> Iterator[str]:
    """Sections in their order."""
    is_bad = page.verdict.startswith(("does not", "NOT KEPT", "not known"))
    yield f"<header><h1>{escape(page.title)}</h1>"
    if page.verdict:
        yield f'<p class="verdict{" bad" if is_bad else ""}">{escape(page.verdict)}</p>'
    yield f"<p>{escape(page.summary)}</p></header><main>"
    most_bytes = max((held for course in page.courses for held in course.memory_bytes), default=1)
    for number, course in enumerate(page.courses):
        yield from _course(number, course, most_bytes)
    if page.phases:
        yield from _figure("Process memory by phase", "phases", phase_chart(page.phases))
        rows = tuple((bar.phase, bar.kind, format_bytes(bar.bytes)) for bar in page.phases)
        yield _folded("the same as a table", PageTable(title="", heads=("phase", "of", "memory"), rows=rows))
    if page.curve:
        yield from _figure("What less memory costs", "curve", curve_chart(page.curve))
        points = tuple((one.label, format_bytes(one.bytes), f"{one.overhead_percent:+.1f} %") for one in page.curve)
        yield _folded("the same as a table", PageTable(title="", heads=("plan", "memory", "time"), rows=points))
    for table in page.tables:
        yield f"<section><h2>{escape(table.title)}</h2>{_table(table)}</section>"
    if page.commands:
        lines = escape("\n".join(page.commands))
        yield f"<section><h2>Commands to get the same</h2><pre><code>{lines}</code></pre></section>"
    yield "</main>"


def _course(number: int, course: Course, most_bytes: int) -> Iterator[str]:
    """Memory over time, what is there at the step under the pointer, and the table of tensors."""
    if not course.memory_bytes:
        return
    known = {
        "ops": course.ops,
        "bytes": course.memory_bytes,
        "peak": course.memory_bytes.index(max(course.memory_bytes)),
        "tensors": [
            {"id": f"t{number}-{place}", "name": one.name, "size": one.size_bytes, "lives": one.lives}
            for place, one in enumerate(course.tensors)
        ],
    }
    heading = f"Memory over time: {course.title}, at most {format_bytes(max(course.memory_bytes))}"
    yield _data(f"course-{number}", known)
    yield from _figure(heading, f"memory-{number}", memory_chart(course, most_bytes), f"course-{number}")
    if course.tensors:
        field = f'<label>find a tensor or op <input type="search" data-filters="tensors-{number}"></label>'
        yield f"<details><summary>tensors of {escape(course.title)}, the largest first</summary>{field}"
        rows = "".join(_tensor_row(f"t{number}-{n}", one) for n, one in enumerate(course.tensors[:MOST_TENSORS]))
        heads = ("tensor", "size", "shape", "made by", "there at steps", "read by", "why")
        yield f'<div class="scroll"><table id="tensors-{number}">{_head(heads)}<tbody>{rows}</tbody></table></div>'
        left = course.tensors[MOST_TENSORS:]
        if left:
            yield f"<p>and {len(left)} smaller ones, {format_bytes(sum(one.size_bytes for one in left))} in all</p>"
        yield "</details>"


def _tensor_row(name: str, one: PageTensor) -> str:
    lives = ", then ".join(f"{first} to {last}" for first, last in one.lives)
    readers = ", ".join(one.readers[:MOST_READERS]) + (" ..." if len(one.readers) > MOST_READERS else "")
    shape = "x".join(map(str, one.shape)) or "scalar"
    texts = (one.maker or "the caller", lives, readers or "nobody: an output", one.why)
    cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
    size = f'<td class="number">{format_bytes(one.size_bytes)}</td><td>{shape}</td>'
    return f'<tr id="{name}"><th scope="row">{escape(one.name)}</th>{size}{cells}</tr>'


def _figure(heading: str, name: str, spec: dict[str, Any], course: str = "") -> Iterator[str]:
    """A chart; one of a course can be walked through, with the pointer or arrow keys."""
    yield _data(name, spec)
    about, walked, told = "", "", ""
    if course:
        about = f' data-course="{course}"'
        keys = "arrow keys go step by step, p to the peak"
        walked = f' tabindex="0" role="application" aria-label="{escape(heading, quote=True)}; {keys}"'
        told = f'<output aria-live="polite"></output><small>{keys}</small>'
    box = f'<div class="chart"{walked}><div style="width:100%"></div></div>{told}'
    yield f'<section><h2>{escape(heading)}</h2><figure data-chart="{name}"{about}>{box}</figure></section>'


def _data(name: str, value: Any) -> str:
    """Data for the script; what could end it early is written otherwise."""
    text = json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _table(table: PageTable) -> str:
    about = f"<p>{escape(table.about)}</p>" if table.about else ""
    first, rest = table.rows[:MOST_OPEN], table.rows[MOST_OPEN:]
    more = f"<details><summary>{len(rest)} more</summary>{_grid(table.heads, rest)}</details>" if rest else ""
    return f"{about}{_grid(table.heads, first)}{more}"


def _grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table>{_head(heads)}<tbody>{cells}</tbody></table></div>'


def _head(heads: Sequence[str]) -> str:
    return "<thead><tr>" + "".join(f'<th scope="col">{escape(head)}</th>' for head in heads) + "</tr></thead>"


def _folded(summary: str, table: PageTable) -> str:
    return f"<details><summary>{escape(summary)}</summary>{_table(table)}</details>"
