"""Golden texts: what people see, character by character. `UPDATE` shows how to renew them after a wanted change."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from remat_cli.core.values.noise import TimeNoise
from remat_cli.core.values.promises import Asked
from remat_cli.report import render_text
from remat_cli.report.compile import CompileReport
from remat_cli.report.profile import CacheReport
from remat_cli.report.screen import MOST_LINES
from remat_cli.report.solution import NEAREST_PERCENT, NEAREST_PROCESS
from remat_cli.report.solve import OptionEntry, SolverEntry, SolversReport
from remat_cli.report.style import Style, columns, duration, folded, percent, shorten
from tests.contest.report import compare_samples
from tests.report import device_samples, samples

GOLDEN = Path(__file__).parent / "golden"
SCREEN = Style(200, is_short=True)

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
    "max_batch_not_proved": lambda: samples.max_batch_report(is_proved=False),
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


SHORT = [name for name in REPORTS if isinstance(REPORTS[name](), CompileReport)]
"""Reports of one compile."""


@pytest.mark.parametrize("name", SHORT)
def test_short_text_is_golden(name):
    text = render_text(REPORTS[name](), Style(90, is_short=True))
    assert text == (GOLDEN / f"short_{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SHORT)
def test_a_screen_has_twelve_lines_and_leaves_out_nothing_that_is_wrong(name):
    report = REPORTS[name]()
    crowded = msgspec.structs.replace(report, warnings=tuple(f"warning number {n}" for n in range(20)))
    lines = render_text(crowded, Style(is_short=True)).splitlines()
    assert len(lines) <= MOST_LINES
    assert lines[0] == report.verdict
    assert any("warning number 0" in line for line in lines)
    assert "-v" in lines[-1]
    if report.verification is not None:
        shown = "\n".join(lines)
        assert all(failure in shown for failure in report.verification.failures)


def test_a_screen_says_how_many_warnings_it_leaves_out():
    report = samples.compile_report()
    few = msgspec.structs.replace(report, warnings=tuple(f"w{n}" for n in range(20)))
    text = render_text(few, Style(is_short=True))
    shown = sum(f"warning: w{n}\n" in text for n in range(20))
    assert f"{21 - shown} warnings more: this command with -v" in text  # with the note of its verification


def test_what_is_wrong_and_how_sure_that_is_stands_on_the_screen_where_the_verdict_has_no_room_for_it():
    seen = msgspec.structs.replace(samples.verification(outputs_identical=False), time_noise=TimeNoise(40.0, 2.0, 1.0))
    text = render_text(samples.compile_report(seen), SCREEN)
    assert text.startswith("NOT KEPT: the outputs differ from the original's")
    assert text.count(seen.noise_told) == 1


def test_a_file_of_weights_is_named_beside_the_model():
    report = msgspec.structs.replace(samples.compile_report(), data="net.remat.onnx.data")
    assert "files    net.remat.onnx, net.remat.onnx.data, net.plan.json\n" in render_text(report, SCREEN)
    assert "data  net.remat.onnx.data, which the model needs beside it\n" in render_text(report, Style())


def test_notes_on_how_it_was_checked_are_not_warned_of():
    seen = msgspec.structs.replace(samples.verification(), notes=("weak", "caps"), notes_on_caps=("caps",))
    text = render_text(msgspec.structs.replace(samples.compile_report(seen), warnings=("weak", "caps")), SCREEN)
    assert "warning: weak" in text
    assert "caps" not in text


def test_a_busy_machine_and_a_search_that_was_cut_are_on_the_screen():
    seen = msgspec.structs.replace(samples.verification(), time_noise=TimeNoise(40.0, 2.0, 1.0))
    asked = Asked(time_limit_seconds=5.0, search_was_cut=True)
    text = render_text(msgspec.structs.replace(samples.compile_report(seen), asked=asked), SCREEN)
    assert seen.noise_told
    assert text.splitlines()[0].count(seen.noise_told) == 1
    assert "warning: the search was cut after 5 s (--time-limit)" in text


def test_without_a_plan_the_screen_says_what_to_type():
    facts = {NEAREST_PROCESS: 30 * 2**20 + 1, NEAREST_PERCENT: 12.0}
    solution = msgspec.structs.replace(samples.no_solution("not_found"), facts=facts)
    asked = Asked(process_budget_bytes=20 * 2**20, process_bytes=50 * 2**20)
    text = render_text(msgspec.structs.replace(samples.impossible_report(), solution=solution, asked=asked), SCREEN)
    assert "for that plan, which costs +12 % time, give the same command --budget 31MiB" in text


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
    for key in SHORT:
        shown = render_text(REPORTS[key](), Style(90, is_short=True))
        (GOLDEN / f"short_{key}.txt").write_text(shown, encoding="utf-8")
