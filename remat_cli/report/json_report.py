"""Reports as JSON: one object, keys as in the report types."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from remat_cli.report.any_report import AnyReport
from remat_cli.report.report import SolveReport
from remat_cli.report.style import Style


def render_json(report: AnyReport, style: Style) -> str:
    """One JSON object, indented, ASCII only, with a newline at the end; the style does not matter."""
    plain = msgspec.json.decode(msgspec.json.encode(to_json(report)))  # not-a-number becomes null
    return json.dumps(plain, indent=2) + "\n"


def to_json(report: AnyReport) -> dict[str, Any]:
    """The object a script gets; a solved instance carries its solution's fields at the top."""
    values: dict[str, Any] = msgspec.to_builtins(report)
    if isinstance(report, SolveReport):
        values |= values.pop("solution")
    return values
