from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from remat_cli.core.schedule.problem import NO_BUDGET
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.curve import LadderStep
from remat_cli.core.values.promises import Asked
from remat_cli.core.values.resident import ProcessMemory
from remat_cli.report.inspection import inspect_model, inspect_plan
from remat_cli.report.style import Style
from tests.report import samples

MIB = samples.MIB


def test_a_model_as_it_is():
    report = inspect_model(Path("net.onnx"), samples.graph(), samples.profile(), samples.problem(26 * MIB), "26MiB")
    first = baseline(samples.problem())
    assert (report.kind, report.peak_bytes, report.peak_step, report.peak_op) == ("model", first.peak, 2, "shrink")
    assert report.fits is False
    assert sum(t.bytes for t in report.alive) + report.fixed_bytes + report.workspace_bytes == report.peak_bytes
    assert report.recomputes == ()


def test_without_a_budget_nothing_is_judged():
    report = inspect_model(Path("net.onnx"), samples.graph(), samples.profile(), samples.problem(NO_BUDGET))
    assert (report.budget_bytes, report.fits) == (None, None)


def test_a_plan_beside_its_original():
    report = inspect_plan(Path("net.plan.json"), samples.plan_file(), ("made elsewhere",))
    assert (report.kind, report.peak_op, report.peak_step) == ("plan", "grow", 1)
    assert report.baseline_peak_bytes == baseline(samples.problem()).peak > report.peak_bytes
    assert [r.op for r in report.recomputes] == ["make_skip"]
    assert (report.gap_percent, report.blocking_op, report.warnings) == (5.0, "grow", ("made elsewhere",))


def test_a_split_plan_beside_the_whole_model():
    file = samples.split_plan_file()
    report = inspect_plan(Path("net.plan.json"), file)
    assert report.baseline_memory_bytes == baseline(samples.problem()).memory_bytes[0]
    assert report.baseline_peak_bytes == baseline(samples.problem()).peak > report.peak_bytes
    assert report.floor_bytes == file.splitting.whole_floor_bytes > report.peak_bytes
    assert (report.floor_with_splitting_bytes, report.blocking_op) == (21 * MIB + 1024, None)
    assert [region.ops for region in report.regions] == [("grow", "shrink")]
    assert len(report.step_times_ns) == len(report.memory_bytes)
    assert len(report.baseline_step_times_ns) == len(report.baseline_memory_bytes)
    assert sum(report.step_times_ns) == report.time
    assert report.peak_op == "grow/tile_1"


def test_time_that_was_measured_stands_beside_what_was_predicted():
    file = samples.plan_file()
    by_prediction = inspect_plan(Path("net.plan.json"), msgspec.structs.replace(file, verification=None))
    assert "measured" not in "\n".join(by_prediction.lines(Style()))
    seen = msgspec.structs.replace(samples.verification(), measured_overhead_percent=44.0)
    report = inspect_plan(Path("net.plan.json"), msgspec.structs.replace(file, verification=seen))
    assert report.measured_time.percent == 44.0
    lines = "\n".join(report.lines(Style()))
    assert f"+44.00 % measured, {report.overhead_percent:+.2f} % predicted" in lines
    assert "+44 % time" in report.verdict
    other_sizes = msgspec.structs.replace(report, sizes={"batch": 2})
    assert "measured" not in "\n".join(other_sizes.lines(Style())), "at other sizes nothing was"


def test_what_gates_hold_is_named():
    # A gate of 16 bytes runs after make_skip and is alive during grow: the peak is one step later, 16 bytes higher.
    file = samples.plan_file()
    curve = file.promise.memory_bytes
    promise = msgspec.structs.replace(
        file.promise,
        order=("make_skip", "gate", *file.promise.order[1:]),
        gates=("gate",),
        memory_bytes=(curve[0], curve[0] + 16, curve[1] + 16, *curve[2:]),
        peak_bytes=file.promise.peak_bytes + 16,
    )
    report = inspect_plan(Path("p"), msgspec.structs.replace(file, promise=promise))
    assert (report.peak_op, report.peak_step, report.gate_bytes) == ("grow", 2, 16)
    assert [t.name for t in report.alive] == ["g", "s"]


def model_under(budget_bytes, text, **changes):
    report = inspect_model(Path("net.onnx"), samples.graph(), samples.profile(), samples.problem(budget_bytes), text)
    return msgspec.structs.replace(report, **changes)


def test_min_says_that_only_a_search_finds_it():
    report = msgspec.structs.replace(model_under(NO_BUDGET, None), budget="min")
    assert report.fits is None
    assert report.verdict == (
        "not known: `--budget min` has no bytes to judge: the least is found by a search, `remat compile --budget min`"
    )
    assert report.lines(Style())[0] == report.verdict


REGIONS = samples.split_report().regions
WEIGHTS = ProcessMemory(MIB, MIB, 30 * MIB, 30 * MIB, 20 * MIB, 10 * MIB)


@pytest.mark.parametrize("bounds", ["live", "process"])
@pytest.mark.parametrize(
    ("budget", "changes", "advice"),
    [
        (2, {"split_obstacle": "op 'x' is large"}, "no plan is known: whole ops need more, and splitting cannot help"),
        (2, {"regions": REGIONS}, "whole ops need more; `remat compile` may split them"),
        (2, {}, "impossible with whole ops, below the floor"),
        (25.5, {"split_obstacle": "op 'x' is large"}, "that is as it is: `remat compile` may find a plan"),
    ],
)
def test_the_first_line_promises_no_plan_that_the_lines_below_rule_out(bounds, budget, changes, advice):
    budget_bytes = int(budget * MIB)
    report = model_under(budget_bytes, f"{budget}MiB", **changes)
    if bounds == "process":
        asked = Asked(process_budget_bytes=budget_bytes, process_bytes=60 * MIB)
        report = msgspec.structs.replace(report, asked=asked)
    assert report.verdict.endswith(advice)


def test_mapped_weights_are_no_part_of_a_process_that_is_below_the_floor():
    asked = Asked(process_budget_bytes=8 * MIB, process_bytes=11 * MIB)
    report = model_under(8 * MIB, "8MiB", asked=asked, process=WEIGHTS, split_obstacle="op 'x' is large")
    assert report.floor_bytes > 8 * MIB
    assert "may find a plan" in report.verdict


def test_a_ladder_ends_with_what_to_type():
    ladder = (LadderStep(5 * 2**20 + 1, 2.0), LadderStep(3 * 2**20, 9.0, True))
    report = msgspec.structs.replace(samples.inspect_report(), path="net.onnx", kind="model", ladder=ladder)
    text = "\n".join(report.lines(Style()))
    assert "for one of them: remat compile net.onnx --budget-scope live --budget 5.01MiB" in text


@pytest.mark.parametrize(
    ("is_estimate", "least"),
    [(True, "3.00 MiB is the least by estimate"), (False, "3.00 MiB is the least that was found here")],
)
def test_the_end_of_a_ladder_says_how_sure_it_is_and_what_whole_ops_need(is_estimate, least):
    report = msgspec.structs.replace(
        samples.inspect_report(), kind="model", ladder=(LadderStep(3 * MIB, 9.0, is_estimate),), floor_bytes=9 * MIB
    )
    lines = report.lines(Style())
    assert f"  {least}, no bound: `remat compile` searches for longer, and may fit less" in lines
    assert "  without tiles, at least 9.00 MiB are needed, as is proved" in lines
