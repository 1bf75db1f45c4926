"""Plans on a GPU and the CPU, really run: `make test-gpu`; skipped where the CUDA provider cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from remat_cli.base.errors import MissingDependency, RuntimeFailure
from remat_cli.base.progress import silent
from remat_cli.cli import main
from remat_cli.compiling.prepare import prepare
from remat_cli.compiling.program import make_program
from remat_cli.devices.provider_table import named_spec
from remat_cli.onnx_io.read.load import save
from remat_cli.onnx_io.read.one_op import call_model
from remat_cli.runtime.measure.links import FASTEST, measure_link
from remat_cli.runtime.segments._segment_sessions import as_array, copied, outside_bytes
from remat_cli.runtime.segments.segment_run import time_runs
from remat_cli.runtime.sessions.providers import parse_device, place_of, placed_value
from remat_cli.runtime.sessions.session import SessionSettings, device_settings, open_session, run_profiled
from remat_cli.runtime.verify.likeness import likeness
from remat_cli.settings.settings import load_settings
from tests.compiling.placed_plans import Placed, place
from tests.presence import skip_without

skip_without("cuda:0")
pytestmark = pytest.mark.gpu

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
CPU, GPU = named_spec("cpu"), named_spec("cuda:0")
ON_GPU = device_settings(GPU, SessionSettings())


@pytest.fixture(scope="module", params=["unet"])
def prepared(request, tmp_path_factory):
    """A sample optimised to standard ops, as for every plan that uses a GPU."""
    folder = tmp_path_factory.mktemp(request.param)
    config = load_settings({"cache_dir": str(folder / "cache"), "devices": ["cpu", "cuda:0"], "quiet": True})
    return prepare(SAMPLES / f"{request.param}.onnx", config.conditions, folder, silent())


@pytest.fixture(scope="module")
def placed(prepared, tmp_path_factory) -> Placed:
    """Blocks of four ops on the CPU and the GPU in turn, some computed again."""
    return place(prepared, tmp_path_factory.mktemp("placed"), (CPU, GPU), block=4, recompute_every=1)


@pytest.fixture
def program(placed, tmp_path):
    """The same, ready to be run."""
    return make_program(placed.plan, placed.path, tmp_path)


def same_bits(some, others) -> bool:
    return some.keys() == others.keys() and all(some[key].tobytes() == others[key].tobytes() for key in some)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool"])
def test_copies_there_and_back_are_exact(dtype):
    array = (np.arange(1000) % 2 if dtype == "bool" else np.arange(1000)).astype(dtype).reshape(10, 100)
    there = copied(placed_value(array, ("cpu", 0)), place_of(parse_device("cuda:0")))
    assert there.device_name() == "cuda"
    again = copied(there, place_of(parse_device("cuda:0")))
    assert again.data_ptr() != there.data_ptr()
    back = copied(again, ("cpu", 0))
    assert back.device_name() == "cpu"
    assert as_array(back).dtype == array.dtype
    assert as_array(back).tobytes() == array.tobytes()


def test_a_least_model_runs_there(tmp_path):
    save(call_model(), tmp_path / "call.onnx")
    session = open_session(tmp_path / "call.onnx", ON_GPU)
    assert session.get_providers()[0] == "CUDAExecutionProvider"
    given = np.array([2.5], np.float32)
    host = open_session(tmp_path / "call.onnx", SessionSettings())
    assert session.run(None, {"x": given})[0].tobytes() == host.run(None, {"x": given})[0].tobytes()


def test_links_are_measured_both_ways():
    settings = {"cpu": device_settings(CPU, SessionSettings()), "cuda:0": ON_GPU}
    for names in (("cpu", "cuda:0"), ("cuda:0", "cpu")):
        link = measure_link(names, (settings[names[0]], settings[names[1]]))
        assert (link.source, link.target) == names
        assert link.latency_ns >= 0
        assert 0 < link.bytes_per_second < FASTEST


def test_a_plan_on_both_agrees_with_the_cpu_and_repeats_bit_by_bit(placed, program):
    devices = {program.devices[action.device].name for action in program.sessions}
    assert devices == {"cpu", "cuda:0"}
    expected = run_profiled(placed.prepared.reference_path, placed.prepared.feeds, SessionSettings()).outputs
    first, second = (time_runs(program, placed.prepared.feeds, 3, {}) for _ in range(2))
    assert likeness(expected, first.arrays).are_close
    assert first.is_repeatable
    assert same_bits(first.arrays, second.arrays)


def test_computing_again_changes_no_bit(placed, program, tmp_path):
    (tmp_path / "once").mkdir()
    once = place(placed.prepared, tmp_path / "once", (CPU, GPU), block=4, recompute_every=0)
    assert len(once.judged.schedule.steps) < len(placed.judged.schedule.steps)
    plain = make_program(once.plan, once.path, tmp_path / "once")
    runs = [time_runs(each, placed.prepared.feeds, 1, {}).arrays for each in (program, plain)]
    assert same_bits(*runs)


def test_a_cap_is_enforced_on_the_gpu(placed, program):
    roomy = {"cuda:0": 2 * program.planned_peak_bytes[1] + 2**28}
    free = time_runs(program, placed.prepared.feeds, 1, {})
    assert same_bits(free.arrays, time_runs(program, placed.prepared.feeds, 1, roomy).arrays)
    tight = {"cuda:0": outside_bytes(program, 1) + 4096}
    with pytest.raises(RuntimeFailure, match="out of memory on device 'cuda:0'"):
        time_runs(program, placed.prepared.feeds, 1, tight)


def test_a_gpu_of_another_number_is_not_taken_instead(tmp_path):
    save(call_model(), tmp_path / "call.onnx")
    with pytest.raises(MissingDependency, match="'cuda:99' is not there"):
        open_session(tmp_path / "call.onnx", SessionSettings(device="cuda:99"))


@pytest.mark.parametrize("share", ["64MiB", "100%", "65%"])
def test_compile_and_run_within_the_budget_of_the_gpu(tmp_path, monkeypatch, capsys, share):
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    out, budget = tmp_path / "out.onnx", f"cpu=100%,cuda:0={share}"
    devices = ["--device", "cpu", "--device", "cuda:0", "--budget", budget]
    code = main(["compile", str(SAMPLES / "chain.onnx"), *devices, "-o", str(out), "--time-limit", "5s", "-q"])
    assert code in ((0, 3, 4) if share == "65%" else (0,))
    if code:
        return
    capsys.readouterr()
    run = ["run", str(tmp_path / "out.plan.json"), "--enforce-budget", "--repeat", "2", "--format", "json", "-q"]
    if main(run):  # an arena that is capped needs room for gaps too: docs/devices.md
        assert share != "64MiB"
        assert "out of memory on device 'cuda:0'" in capsys.readouterr().err
        return
    report = json.loads(capsys.readouterr().out)
    assert report["is_capped"]
    assert report["is_repeatable"]
    assert all(memory["measured_peak_bytes"] <= memory["budget_bytes"] for memory in report["memories"])
