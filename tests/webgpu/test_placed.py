"""Plans whose ops run on the CPU and on WebGPU in turn, really run: values go from session to session on the device."""

from __future__ import annotations

import pytest

from remat_cli.base.progress import silent
from remat_cli.compiling.prepare import prepare
from remat_cli.compiling.program import make_program
from remat_cli.devices.provider_table import named_spec
from remat_cli.runtime.segments.segment_run import time_runs
from remat_cli.runtime.sessions.session import SessionSettings, run_profiled
from remat_cli.runtime.verify.likeness import likeness
from remat_cli.settings.settings import load_settings
from tests.compiling.placed_plans import place
from tests.presence import skip_without
from tests.webgpu.nets import write_skips

skip_without("webgpu:0")
pytestmark = pytest.mark.webgpu

CPU, GPU = named_spec("cpu"), named_spec("webgpu:0")


@pytest.fixture
def prepared(tmp_path):
    path = write_skips(tmp_path / "m.onnx")
    (tmp_path / "work").mkdir()
    names = ["cpu", "webgpu:0"]
    config = load_settings({"cache_dir": str(tmp_path / "cache"), "devices": names, "quiet": True})
    return prepare(path, config.conditions, tmp_path / "work", silent())


@pytest.mark.parametrize(("block", "recompute_every"), [(1, 0), (2, 0), (3, 1)])
def test_a_plan_on_both_agrees_with_the_cpu_and_repeats_bit_by_bit(prepared, tmp_path, block, recompute_every):
    (tmp_path / "placed").mkdir()
    placed = place(prepared, tmp_path / "placed", (CPU, GPU), block=block, recompute_every=recompute_every)
    program = make_program(placed.plan, placed.path, tmp_path / "placed")
    assert {program.devices[action.device].name for action in program.sessions} == {"cpu", "webgpu:0"}
    expected = run_profiled(prepared.reference_path, prepared.feeds, SessionSettings()).outputs
    first, second = (time_runs(program, prepared.feeds, 3, {}) for _ in range(2))
    assert likeness(expected, first.arrays).are_close
    assert first.is_repeatable
    assert all(first.arrays[name].tobytes() == second.arrays[name].tobytes() for name in expected)
