from __future__ import annotations

from pathlib import Path

import msgspec

from remat_cli.core.schedule.problem import NO_BUDGET
from remat_cli.core.schedule.simulate import baseline
from remat_cli.report.inspection import inspect_model, inspect_plan
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
