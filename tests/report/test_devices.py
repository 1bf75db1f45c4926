from __future__ import annotations

import json

import msgspec
import pytest

from remat_cli.core.schedule.floor import working_set_bytes
from remat_cli.core.schedule.plan import Compute, Copy
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.budget import describe_bytes
from remat_cli.report import render_json, render_text
from remat_cli.report.devices.devices_text import gain
from remat_cli.report.devices.placed import (
    PlacedPlan,
    device_reports,
    find_obstacle,
    link_reports,
    memory_reports,
    placed_recomputes,
)
from remat_cli.report.style import Style
from tests.report import device_samples, samples

MIB = samples.MIB

PLANS = {"one": device_samples.one, "shared": device_samples.shared, "several": device_samples.several}


@pytest.mark.parametrize("name", PLANS)
def test_devices_and_links_add_up_to_the_plan(name):
    placed = PLANS[name]()
    devices, links = device_reports(placed), link_reports(placed)
    assert sum(device.time_ns for device in devices) + sum(link.time_ns for link in links) == placed.plan.time_ns
    computes = [step for step in placed.steps if isinstance(step, Compute) and step.op >= placed.given]
    assert sum(device.ops for device in devices) == len(computes)
    assert sum(link.copies for link in links) == sum(isinstance(step, Copy) for step in placed.steps)


def test_devices_of_one_memory_share_budget_and_peak():
    slow, fast = device_reports(device_samples.shared(), {"cpu": 25 * MIB}, {"cpu:1threads": 4_000_000})
    assert (slow.ops, fast.ops) == (2, 3)
    assert slow.budget_bytes == fast.budget_bytes == 27 * MIB
    assert slow.measured_peak_bytes == fast.measured_peak_bytes == 25 * MIB
    assert (slow.measured_time_ns, fast.measured_time_ns) == (4_000_000, None)
    # 2 ms and 1 ms, and a hand-over of 5 us for `shrink` and `join` each; 15 W, which idle hand-overs do not take.
    assert (slow.time_ns, slow.energy_nj) == (3_010_000, 45_000_000)


def test_an_estimated_device_says_so():
    *_, gpu = device_reports(device_samples.several(), {"cuda:0": None})
    assert (gpu.is_measured, gpu.unsupported, gpu.energy_nj, gpu.measured_peak_bytes) == (False, 1, None, None)
    there, back = link_reports(device_samples.several())
    assert (there.copies, there.bytes, there.is_measured) == (1, MIB, True)
    assert (back.copies, back.is_measured) == (1, False)


@pytest.mark.parametrize("name", PLANS)
def test_what_is_alive_adds_up_to_the_peak(name):
    for memory in memory_reports(PLANS[name]()):
        held = sum(tensor.bytes for tensor in memory.alive) + memory.fixed_bytes + memory.workspace_bytes
        assert held == memory.memory_bytes[memory.peak_step] == max(memory.memory_bytes)


def test_a_repeat_frees_memory_or_saves_a_copy():
    (freed,) = placed_recomputes(device_samples.shared())
    assert (freed.op, freed.runs, freed.freed_bytes, freed.memory) == ("make_skip", 2, 8 * MIB, "cpu")
    assert (freed.dropped_after, freed.made_again_at, freed.time) == (1, 3, 600_000)
    curve = device_samples.shared().plan.memory_bytes[0]
    assert freed.peak_without_bytes == curve[2] + 8 * MIB
    (saved,) = placed_recomputes(device_samples.several())
    assert (saved.freed_bytes, saved.devices) == (0, ("cuda:0", "cpu:2threads"))


def test_inspecting_shows_devices_links_and_every_memory():
    placed = device_samples.several()
    values = json.loads(render_json(device_samples.inspect_report(placed)))
    assert [device["name"] for device in values["devices"]] == ["cpu:1threads", "cpu:2threads", "cuda:0"]
    assert [(link["source"], link["target"]) for link in values["links"]] == [("cpu", "cuda:0"), ("cuda:0", "cpu")]
    assert [memory["name"] for memory in values["memories"]] == ["cpu", "cuda:0"]
    for memory, curve in zip(values["memories"], placed.plan.memory_bytes, strict=True):
        assert memory["memory_bytes"] == list(curve)
    assert values["memory_bytes"] == values["memories"][0]["memory_bytes"]
    assert values["baseline_peak_bytes"] == baseline(placed.problem).peak
    assert len(values["placement"]["steps"]) == len(placed.steps)
    assert values["baseline_device"] == "cpu:2threads"


def test_a_plan_fits_only_if_every_memory_holds_it():
    placed = device_samples.several()
    assert device_samples.inspect_report(placed).fits is True
    peaks = placed.placement.peak_bytes | {"cuda:0": 29 * MIB}
    over = msgspec.structs.replace(placed.placement, peak_bytes=peaks)
    assert device_samples.inspect_report(msgspec.structs.replace(placed, placement=over)).fits is False


def test_a_run_that_keeps_no_promise_has_its_exit_code():
    shared = device_samples.shared()
    assert device_samples.compile_report(shared).exit_code == 0
    assert device_samples.compile_report(shared, device_samples.verification()).exit_code == 0
    assert device_samples.compile_report(shared, device_samples.wrong_verification()).exit_code == 5
    assert device_samples.no_plan("infeasible").exit_code == 3
    assert device_samples.no_plan("not_found").exit_code == 4


def test_the_peak_is_that_of_the_plan_as_it_is_run():
    report = device_samples.compile_report(device_samples.several())
    assert report.solution.peak_bytes == device_samples.several().plan.peak + MIB
    assert report.devices[0].predicted_peak_bytes == report.solution.peak_bytes


def test_a_gain_is_told_as_it_is():
    assert gain(-12.3, "cpu") == "12.30 % faster than the best single device (cpu)"
    assert gain(4.5, "cpu") == "+4.50 % over the best single device (cpu)"
    assert gain(0.001, "cpu") == "as fast as the best single device (cpu)"


def test_faster_is_claimed_only_where_it_was_measured():
    def text(placed: PlacedPlan, time_ns: int | None) -> str:
        seen = None if time_ns is None else device_samples.verification(time_ns)
        return render_text(device_samples.compile_report(placed, seen), Style())

    shared = device_samples.shared()
    assert "not measured" in text(shared, None)
    assert "not faster" not in text(shared, 6_399_999)
    assert "not faster here: cpu:2threads alone takes 6.40 ms" in text(shared, 6_400_000)
    assert "not faster" not in text(device_samples.one(), 6_500_000)
    failed = render_text(device_samples.compile_report(shared, device_samples.wrong_verification()), Style())
    assert "measured:" not in failed
    assert "does not count: verification failed" in failed


def test_the_mark_is_explained_where_it_is_written():
    for name, is_marked in (("one", False), ("shared", False), ("several", True)):
        for report in (device_samples.compile_report(PLANS[name]()), device_samples.inspect_report(PLANS[name]())):
            text = render_text(report, Style())
            assert ("~ estimated from a description" in text) is is_marked
            assert text.count("~") > 1 or not is_marked


def test_an_op_that_fits_in_no_memory_is_named():
    found = device_samples.shared()
    assert find_obstacle(found) is None
    tight = msgspec.structs.replace(found, problem=found.problem.with_budget(9 * MIB), plan=None)
    obstacle = find_obstacle(tight)
    # `grow` reads 1 MiB and makes 16 MiB with the least workspace of both; besides lies what is fixed.
    fixed, workspace = found.problem.memories[0].fixed_bytes, min(found.problem.ops[1].workspace_bytes)
    need = fixed + workspace + working_set_bytes(found.problem, found.problem.ops[1])
    assert (obstacle.op, obstacle.needs) == ("grow", {"cpu": need})
    line = f"op grow ({obstacle.op_type}) needs {describe_bytes(need)} in cpu while it runs"
    report = device_samples.told(tight, samples.run("infeasible", None), "9MiB")
    assert line in render_text(report, Style())


def test_an_op_that_fits_in_one_of_several_memories_is_no_obstacle():
    found = device_samples.several()
    small = msgspec.structs.replace(found, problem=found.problem.with_budget(MIB, 1), plan=None)
    assert find_obstacle(found) is None
    obstacle = find_obstacle(small)
    assert (obstacle.op, set(obstacle.needs)) == ("grow", {"cpu", "cuda:0"})
