"""A run of a plan as a report: sums per device and link, peaks per memory, and what it says of broken promises."""

from __future__ import annotations

import json

import msgspec
from msgspec.structs import replace

from remat_cli.report import render_json, render_text
from remat_cli.report.run_report import RunReport, run_report
from remat_cli.report.style import Style
from tests.commands.run_samples import PROGRAM, RECORD, SEEN, SLOWER

TIMES = (SLOWER, RECORD, SLOWER)


def reported(program=PROGRAM, seen=SEEN, runs=TIMES, is_repeatable=True, **told) -> RunReport:
    report = run_report("m.plan.json", "m.onnx", program, seen, runs, is_repeatable=is_repeatable)
    return msgspec.structs.replace(report, **told)


def text(report) -> str:
    return render_text(report, Style())


def test_times_are_summed_by_device_and_link():
    report = reported()
    assert [(d.device, d.sessions, d.ops, d.planned_ns, d.measured_ns) for d in report.devices] == [
        ("cpu:1threads", 1, 2, 3000, 4900),
        ("cpu:2threads", 1, 1, 2000, 3000),
    ]
    (link,) = report.links
    assert (link.source, link.target, link.copies, link.size_bytes) == ("cpu", "node1", 1, 16)
    assert (link.planned_ns, link.measured_ns) == (1000, 1000)
    assert (report.planned_ns, report.measured_min_ns, report.measured_median_ns) == (6000, 10_000, 14_000)
    assert report.repeat == 3


def test_peaks_are_those_of_each_memory():
    report = reported()
    assert [(m.planned_peak_bytes, m.measured_peak_bytes, m.budget_bytes) for m in report.memories] == [
        (140, 145, 150),
        (30, 30, 30),
    ]
    assert report.exit_code == 0


def test_the_text_shows_planned_beside_measured():
    assert text(reported()) == (
        "m.plan.json  2 sessions, 3 runs\n"
        "\n"
        "                planned  measured  difference\n"
        "  cpu:1threads  3.00 us   4.90 us    +63.33 %  1 session, 2 ops\n"
        "  cpu:2threads  2.00 us   3.00 us    +50.00 %  1 session, 1 op\n"
        "  cpu -> node1  1.00 us   1.00 us     +0.00 %  1 copy, 16 B\n"
        "  whole run     6.00 us  10.00 us    +66.67 %  median 14.00 us\n"
        "\n"
        "  memory  budget  planned peak  measured peak  difference\n"
        "  cpu      150 B         140 B          145 B    +5 bytes\n"
        "  node1     30 B          30 B           30 B        none\n"
        "\n"
        "within every budget; every run gave the same bits\n"
    )


def test_a_peak_above_its_budget_and_runs_that_differ_are_failures():
    over = reported(replace(PROGRAM, budgets=(144, 30)))
    assert over.exit_code == 5
    assert "the measured peak of cpu is above its budget" in text(over)
    assert "over budget" in text(over)
    unlike = reported(runs=(RECORD,), is_repeatable=False)
    assert unlike.exit_code == 5
    assert "different outputs" in text(unlike)


def test_what_was_not_seen_is_said():
    told = {"warnings": ("the plan was made elsewhere",), "output": "y.npz", "trace": "t.json"}
    report = reported(replace(PROGRAM, overlap=True), replace(SEEN, is_hidden=(False, True)), **told)
    lines = text(report)
    assert "at least 30 B" in lines
    assert "warning: a device on memory node1 does not tell what it holds" in lines
    assert "warning: the plan was made elsewhere" in lines
    assert "copies beside computes" in lines
    assert "outputs y.npz" in lines
    assert "trace   t.json" in lines


def test_json_holds_every_figure():
    report = reported()
    values = json.loads(render_json(report))
    assert values["memories"][0]["measured_peak_bytes"] == 145
    assert values["devices"][1]["measured_ns"] == 3000
    assert values["measured_median_ns"] == 14_000
