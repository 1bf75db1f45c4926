"""Reports as text; each renderer is one line in RENDERERS."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remat_cli.report.any_report import AnyReport
    from remat_cli.report.style import Style

RENDERERS: Mapping[str, str] = {
    "text": "remat_cli.report.text:render_text",
    "json": "remat_cli.report.json_report:render_json",
}


def render(report: AnyReport, renderer: str, style: Style) -> str:
    """A report as text that ends with a newline, in the renderer of that name."""
    module, _, function = RENDERERS[renderer].partition(":")
    render_with: Callable[[AnyReport, Style], str] = getattr(importlib.import_module(module), function)
    return render_with(report, style)
