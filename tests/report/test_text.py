"""Golden texts: what people see, character by character. `UPDATE` shows how to renew them after a wanted change."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from remat_cli.report import render_text
from remat_cli.report.profile import CacheReport
from remat_cli.report.solve import OptionEntry, SolverEntry, SolversReport
from remat_cli.report.style import Style, columns, duration, folded, percent, shorten
from tests.contest.report import compare_samples
from tests.report import device_samples, samples

GOLDEN = Path(__file__).parent / "golden"

UPDATE = "python -m tests.report.test_text"

REPORTS = {
    "compile": samples.compile_report,
    "compile_impossible": samples.impossible_report,
    "compile_failed": samples.failed_report,
    "compile_targets": samples.targets_report,
    "compile_split": samples.split_report,
    "compile_obstacle": samples.obstacle_report,
    "inspect_plan": samples.inspect_report,
    "inspect_split_plan": samples.split_inspect_report,
    "inspect_proposal": samples.proposal_report,
    "compare": compare_samples.compare_report,
    "solve": samples.solve_report,
    "solve_not_found": lambda: samples.solve_report("not_found"),
    "verify": samples.verify_report,
    "verify_close": lambda: samples.verify_report(samples.close_verification()),
    "verify_too_far": lambda: samples.verify_report(
        msgspec.structs.replace(samples.close_verification(), outputs_close=False, outputs_max_relative_error=0.02)
    ),
    "verify_devices": lambda: samples.sessions_verify_report(device_samples.wrong_verification()),
    "devices_shared": lambda: device_samples.compile_report(device_samples.shared(), device_samples.verification()),
    "devices_not_faster": lambda: device_samples.compile_report(
        device_samples.shared(), device_samples.verification(6_500_000)
    ),
    "devices_several": lambda: device_samples.compile_report(device_samples.several()),
    "devices_failed": lambda: device_samples.compile_report(
        device_samples.several(), device_samples.wrong_verification()
    ),
    "devices_one": lambda: device_samples.compile_report(device_samples.one()),
    "devices_impossible": lambda: device_samples.no_plan("infeasible"),
    "devices_not_found": lambda: device_samples.no_plan("not_found"),
    "inspect_devices_one": lambda: device_samples.inspect_report(device_samples.one()),
    "inspect_devices_shared": lambda: device_samples.inspect_report(device_samples.shared()),
    "inspect_devices_several": lambda: device_samples.inspect_report(device_samples.several()),
    "train": samples.train_report,
    "train_compiled": lambda: samples.train_report(samples.compile_report()),
    "train_impossible": lambda: samples.train_report(samples.impossible_report()),
    "max_batch": samples.max_batch_report,
    "max_batch_none": samples.no_batch_report,
    "profile": samples.profile_report,
    "cache": lambda: CacheReport("/home/me/.cache/remat", 1),
    "solvers": lambda: SolversReport(
        (
            SolverEntry("keep-all", "every op once", "One device.", "optimal when it fits", ()),
            SolverEntry("fast", "quick", "Always.", "nothing", (OptionEntry("restarts", "int", 4),)),
        )
    ),
}


@pytest.mark.parametrize("name", REPORTS)
def test_text_is_golden(name):
    assert render_text(REPORTS[name](), Style(90)) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("name", REPORTS)
def test_narrow_screens_get_the_same_words_in_shorter_lines(name, color):
    """Charts and tables are drawn for the width that is there; what is longer goes on below, and code does not."""
    whole = render_text(REPORTS[name](), Style(40, has_color=color))
    text = render_text(REPORTS[name](), Style(40, has_color=color, is_folded=True))
    assert text.split() == whole.split()
    shown = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]
    code = {line.strip() for report in (REPORTS[name](),) for line in code_of(report)}
    long = [line for line in shown if len(line) > 40 and line.strip() not in code]
    assert [line for line in long if len(line.split()) > 1] == []


def code_of(report):
    snippet = getattr(report, "snippet", "")
    compiled = getattr(report, "compiled", None)
    return [*snippet.splitlines(), *(code_of(compiled) if compiled else [])]


def test_folding_breaks_between_columns_and_leaves_code():
    lines = ["  live tensors, measured  25.60 MiB  16.85 MiB", "", "Run it:", "", "    a = 1  # as long as it is", ""]
    assert folded([*lines, "and words that go on and on"], 24) == [
        "  live tensors, measured",
        "      25.60 MiB",
        "      16.85 MiB",
        *lines[1:],
        "and words that go on and",
        "    on",
    ]


@pytest.mark.parametrize("name", REPORTS)
def test_lines_fit_and_do_not_end_in_blanks(name):
    for line in render_text(REPORTS[name](), Style(90)).splitlines():
        assert line == line.rstrip()
        assert len(line) <= 120


@pytest.mark.parametrize("name", REPORTS)
def test_color_adds_only_escape_codes(name):
    colored = render_text(REPORTS[name](), Style(90, has_color=True))
    assert re.sub(r"\x1b\[\d+m", "", colored) == re.sub(r" +$", "", render_text(REPORTS[name](), Style(90)), flags=re.M)


@pytest.mark.parametrize("name", REPORTS)
def test_ascii_style_needs_only_ascii(name):
    assert render_text(REPORTS[name](), Style(90, has_unicode=False)).isascii()


def test_columns_line_up():
    assert columns([["a", "1"], ["bbb", "22"]], "<>") == ["  a     1", "  bbb  22"]
    assert columns([], "<>") == []


def test_shorten_keeps_both_ends():
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghijk", 9) == "abc...ijk"
    assert len(shorten("x" * 500, 20)) == 20


def test_numbers_read_well():
    assert [duration(t) for t in (999, 1500, 2_500_000, 3e9)] == ["999 ns", "1.50 us", "2.50 ms", "3.00 s"]
    assert (percent(2.756), percent(None), percent(-1)) == ("+2.76 %", "unknown", "-1.00 %")


if __name__ == "__main__":
    for key, report in REPORTS.items():
        (GOLDEN / f"{key}.txt").write_text(render_text(report(), Style(90)), encoding="utf-8")
