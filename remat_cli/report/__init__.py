"""What each command found out, one file per kind of report: its values, and the lines that tell them to people."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from remat_cli.report.style import Style


class Report(Protocol):
    """Values that become JSON, the same as text, and what they mean for a script."""

    @property
    def exit_code(self) -> int:
        """0 where all is well."""

    def lines(self, style: Style) -> list[str]:
        """The report for people."""


def render_text(report: Report, style: Style) -> str:
    """The report for people, with a newline at the end."""
    lines = report.lines(style)
    if style.is_folded:
        from remat_cli.report.style import folded

        lines = folded("\n".join(lines).split("\n"), style.width)
    return "\n".join(lines) + "\n"


def _values_of(report: object) -> dict[str, Any]:
    """The fields of a report, and those properties that it says belong in JSON too, also of a report inside it.

    Where reports of one command differ in their fields, `json_order` is the order of them all. Fields of a report that
    is `merged_in_json` stand beside those of the one around it.
    """
    values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(report))  # not-a-number becomes null
    for name in getattr(report, "also_in_json", ()):
        values[name] = msgspec.json.decode(msgspec.json.encode(getattr(report, name)))
    for name in values:
        inner = getattr(report, name)
        if hasattr(inner, "also_in_json"):
            values[name] = _values_of(inner)
        elif isinstance(inner, tuple) and any(hasattr(each, "merged_in_json") for each in inner):
            values[name] = [_values_of(each) for each in inner]
    if merged := getattr(report, "merged_in_json", None):
        values |= values.pop(merged) or {}
    order = getattr(report, "json_order", ())
    return {name: values[name] for name in (*order, *values) if name in values}


def render_json(report: Report) -> str:
    """One JSON object, keys as in the report types, indented, ASCII only, with a newline at the end."""
    from remat_cli.report.solve import SolveReport

    values: dict[str, Any] = _values_of(report)
    if isinstance(report, SolveReport):
        values |= values.pop("solution")
    return json.dumps(values, indent=2) + "\n"
