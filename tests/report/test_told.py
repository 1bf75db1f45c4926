"""Texts say the names of the user's file; values keep those of the optimised model."""

from __future__ import annotations

import msgspec

from remat_cli.core.values.told_names import ToldNames
from remat_cli.report import render_json, render_text
from remat_cli.report.style import Style
from tests.report import samples

NAMES = ToldNames({"make_skip": "enc.1 (Conv)", "grow": "dec.0 (Resize)"}, {"skip": "features"})


def test_inspect_tells_producers_and_recomputes_by_module():
    report = msgspec.structs.replace(samples.inspect_report(), names=NAMES)
    text = render_text(report, Style(160))
    assert "enc.1 (Conv)" in text
    assert "make_skip" not in text
    assert "make_skip" in render_json(report)


def test_what_is_in_the_way_is_told_by_module():
    report = msgspec.structs.replace(samples.impossible_report(), names=NAMES)
    for is_short in (True, False):
        text = render_text(report, Style(160, is_short=is_short))
        assert "dec.0 (Resize)" in text
        assert "grow" not in text


def test_without_names_nothing_changes():
    report = samples.inspect_report()
    assert render_text(msgspec.structs.replace(report, names=ToldNames({"no": "x"})), Style()) == render_text(
        report, Style()
    )
