"""Values of a plan on WebGPU that wait in the host meanwhile: planned, run, verified, told."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

import remat_cli
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.runtime.paging.paged_run import PagedRunner
from remat_cli.runtime.sessions.feeds import feeds_of
from remat_cli.runtime.sessions.providers import absence, parse_device
from tests.webgpu.nets import write_ladder

if importlib.util.find_spec("onnxruntime_ep_webgpu") is None:
    pytest.skip("the package onnxruntime-ep-webgpu is not installed", allow_module_level=True)
if reason := absence(parse_device("webgpu")):
    pytest.skip(reason, allow_module_level=True)
pytestmark = pytest.mark.webgpu


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("host")
    words = {"device": "webgpu", "spill": "host", "budget": "60%", "solver": "paging", "time_limit": "2s"}
    return remat_cli.compile(write_ladder(folder / "ladder.onnx"), cache_dir=folder / "cache", **words)


def test_a_plan_pages_to_the_host_and_agrees_with_the_cpu(report):
    assert report.exit_code == 0
    assert report.verification.outputs_close
    assert report.paging.memory == "host"
    assert report.paging.written_bytes >= 3 * 16 * 2**10
    peaks = read_plan(Path(report.plan)).placement.peak_bytes
    assert peaks["webgpu:0"] <= report.solution.budget_bytes < report.solution.baseline_peak_bytes


def test_the_device_holds_no_more_than_planned(report):
    with remat_cli.load(report.plan) as plan:
        program = plan.program
        feeds = feeds_of(program.inputs, None, None, 0, {})
        expected = plan.run(feeds)
        for is_overlapped in (True, False):
            with PagedRunner(program, is_overlapped=is_overlapped) as runner:
                for _ in range(3):
                    found, record = runner.run_recorded(feeds)
                    assert all(expected[name].tobytes() == found[name].tobytes() for name in expected)
                    held = [action.before_bytes[0] for action in record.actions]
                    assert all(a <= room for a, room in zip(held, program.spill.room_bytes, strict=False))
        assert max(held) < sum(value.size_bytes for value in program.values.values()) / 2


def test_transfers_have_tracks_of_their_own(report, tmp_path):
    trace = tmp_path / "trace.json"
    ran = remat_cli.run(report.plan, repeat=1, trace=trace)
    assert ran.exit_code == 0
    assert ran.pages.memory == "host"
    events = json.loads(trace.read_text())["traceEvents"]
    tracks = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"writes host", "reads host"} <= tracks
    moved = [event for event in events if event["ph"] == "X" and event["name"].startswith(("write ", "read "))]
    assert len(moved) == 2 * ran.pages.moves
