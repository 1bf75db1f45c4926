from __future__ import annotations

import contextlib
import math
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from onnx import TensorProto, helper

from remat_cli.base.errors import RuntimeFailure
from remat_cli.core.schedule.program import InputSpec
from remat_cli.runtime.measure import profilers
from remat_cli.runtime.measure.profile_cache import cpu_name, provenance
from remat_cli.runtime.measure.profilers import ProfileRequest, measure, read_node_stats, workspace_bytes
from remat_cli.runtime.observe._events import InsideKernel, ProfileEvent
from remat_cli.runtime.sessions.feeds import make_feeds
from remat_cli.runtime.sessions.session import runtime_version
from tests.runtime.models import ORIGINAL_ORDER, X, save_model, skip_model, untyped, value, weight

QUICK = ProfileRequest(intra_op_threads=1)


def test_every_op_has_a_cost(tmp_path):
    seen = []
    path = skip_model(tmp_path / "m.onnx")
    measured = measure(path, make_feeds([X], 0), ORIGINAL_ORDER, QUICK, lambda done, total: seen.append((done, total)))
    assert tuple(cost.name for cost in measured.ops) == ORIGINAL_ORDER
    costs = {cost.name: cost for cost in measured.ops}
    assert costs["c2"].time_ns > costs["c0"].time_ns / 4 > 0
    assert 0.5 * measured.run_ns < sum(cost.time_ns for cost in measured.ops) < 2 * measured.run_ns
    assert all(cost.time_ns % 1000 == 0 and cost.noise_percent >= 0 for cost in measured.ops)
    assert measured.packed_bytes == 0
    assert seen[0] == (0, 10)
    assert seen[-1] == (10, 10)
    assert seen == sorted(seen)


def test_a_slow_model_is_run_ten_times_at_most(tmp_path):
    names = [f"m{number}" for number in range(1, 61)]
    path = skip_model(tmp_path / "m.onnx", products=len(names))
    measured = measure(path, make_feeds([X], 0), names, ProfileRequest(intra_op_threads=1))
    assert 3 <= measured.runs <= 10
    assert measured.run_noise_percent >= 0


def times_of(monkeypatch, *, seconds, noisy, beside=None, most_seconds=math.inf, is_long=False):
    """How many runs there are in all, and plain ones, of a model that takes so long, steadily or not."""
    clock = [0.0]
    number = iter(range(1000))

    def run(session, feeds):
        clock[0] += seconds * (1 + noisy * next(number))

    monkeypatch.setattr(profilers, "run_session", run)
    monkeypatch.setattr(profilers, "open_session", lambda path, settings, options: None)
    monkeypatch.setattr(profilers, "profiled_session", lambda *arguments: contextlib.nullcontext((None, [])))
    monkeypatch.setattr(profilers.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(profilers.time, "perf_counter_ns", lambda: int(1e9 * clock[0]))
    job = profilers.MeasureJob("m", (), (), ProfileRequest(most_seconds=most_seconds), beside)
    run_ns = int(1e9 * seconds) if is_long else 0
    _, plain_ns, ratios = profilers.run_rounds(job, {}, lambda done: None, run_ns)
    assert len(ratios) == ((len(plain_ns) if is_long else len(plain_ns) // 2) if beside else 0)
    return next(number), len(plain_ns)


def test_short_runs_end_once_they_agree(monkeypatch):
    assert times_of(monkeypatch, seconds=0.001, noisy=0) == (4 + 4, 4)  # two rounds of two, with profiling and without
    assert times_of(monkeypatch, seconds=0.04, noisy=0) == (8, 4)


def test_short_runs_of_two_models_end_once_their_ratio_is_sure(monkeypatch):
    assert times_of(monkeypatch, seconds=0.001, noisy=0, beside="other") == (4 + 2 * 8, 8)


def test_runs_that_never_agree_end_all_the_same(monkeypatch):
    most = 2 * profilers.MOST_ROUNDS
    alone, plain = times_of(monkeypatch, seconds=0.001, noisy=0.5)
    assert (alone, plain) == (2 * profilers.PROFILED_ROUNDS + most + 2, most)
    total, plain = times_of(monkeypatch, seconds=0.001, noisy=0.5, beside="other")
    assert total <= 2 * profilers.PROFILED_ROUNDS + 2 * most + 2
    assert plain <= most


def test_where_time_is_short_two_rounds_are_enough_settled_or_not(monkeypatch):
    assert times_of(monkeypatch, seconds=0.3, noisy=0.5, most_seconds=1.0) == (8, 4)
    assert times_of(monkeypatch, seconds=2.0, noisy=0.5, beside="other", most_seconds=1.0) == (12, 4)


def test_long_runs_are_made_no_more_often_than_times_agree(monkeypatch):
    assert times_of(monkeypatch, seconds=0.3, noisy=0, is_long=True) == (2, 2)  # with profiling
    assert times_of(monkeypatch, seconds=0.3, noisy=0.5, is_long=True) == (3, 3)
    assert times_of(monkeypatch, seconds=0.3, noisy=0, beside="other", is_long=True) == (5, 2)  # profiled once
    assert times_of(monkeypatch, seconds=0.7, noisy=0.5, beside="other", is_long=True) == (7, 3)
    total, plain = times_of(monkeypatch, seconds=0.3, noisy=0.5, beside="other", is_long=True)
    assert profilers.LONG_ROUNDS < plain <= profilers.MOST_ROUNDS
    assert total <= 2 * plain + profilers.PROFILED_ROUNDS


def test_op_that_did_not_run_is_named(tmp_path):
    with pytest.raises(RuntimeFailure, match=r"did not run op 'nobody'"):
        measure(skip_model(tmp_path / "m.onnx"), make_feeds([X], 0), ["a", "nobody"], QUICK)


def upsampling_model(path: Path) -> Path:
    """Exp, then a ConvTranspose whose column buffer is 36 times its input, then Exp; names with underscores."""
    generator = np.random.default_rng(0)
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], name="first_op_1"),
        helper.make_node("ConvTranspose", ["a", "w"], ["b"], name="up_sample_2"),
        helper.make_node("Exp", ["b"], ["y"], name="last"),
    ]
    weights = [weight("w", generator.standard_normal((16, 64, 3, 3)).astype(np.float32))]
    inputs = [value("x", TensorProto.FLOAT, IMAGE.shape)]
    return save_model(path, nodes, inputs, untyped("y"), weights)


IMAGE = InputSpec("x", "float", (1, 16, 32, 32))
COLUMNS_BYTES = 64 * 9 * 32 * 32 * 4


def test_workspace_is_found(tmp_path):
    path = upsampling_model(tmp_path / "m.onnx")
    measured = measure(path, make_feeds([IMAGE], 0), ["first_op_1", "up_sample_2", "last"], QUICK)
    assert [cost.workspace_bytes for cost in measured.ops] == [0, COLUMNS_BYTES, 0]
    assert measured.packed_bytes == 16 * 64 * 3 * 3 * 4


COUNTED = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import numpy as np
from remat_cli.runtime.sessions.session import SessionSettings, open_session, session_options
counter = ctypes.CDLL(sys.argv[2])
counter.memcount_current.restype = counter.memcount_peak.restype = ctypes.c_long
options = session_options(SessionSettings(intra_op_threads=1))
options.enable_cpu_mem_arena = False
session = open_session(Path(sys.argv[3]), SessionSettings(), options)
x = np.ones((1, 16, 32, 32), np.float32)
session.run(None, {"x": x})
before = counter.memcount_current()
counter.memcount_reset()
session.run(None, {"x": x})
print(counter.memcount_peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc and LD_PRELOAD")
def test_a_counter_of_all_heap_bytes_agrees_within_five_percent(tmp_path):
    source, library = Path(__file__).with_name("memcount.c"), tmp_path / "memcount.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    model = upsampling_model(tmp_path / "m.onnx")
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, root, str(library), str(model)],
        env={"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=True,
    )
    tensors = 16 * 32 * 32 * 4 + 64 * 34 * 34 * 4
    assert int(done.stdout) == pytest.approx(tensors + COLUMNS_BYTES, rel=0.05)


def event(name: str, **changes: int) -> ProfileEvent:
    counters = {"requested_bytes": 0, "growth_bytes": 0, "in_use_bytes": 0, "peak_bytes": 0, "held_bytes": 0}
    return ProfileEvent(name=name, op_type="Op", start_us=0, duration_us=1, types=(), **{**counters, **changes})


def test_workspace_is_the_smaller_of_two_limits():
    events = [event("a", in_use_bytes=10, peak_bytes=40), event("b", in_use_bytes=10, peak_bytes=100)]
    assert workspace_bytes(events, {"a": 50, "b": 50}) == {"a": 30, "b": 50}


def test_workspace_of_a_subgraph_is_what_it_held():
    """Its kernels' workspace counts, as far as it can have been there."""
    held = (InsideKernel("conv", 160, 190), InsideKernel("relu", 170, 500))
    found = [
        workspace_bytes([msgspec.structs.replace(event("if", requested_bytes=100), inside=held)], temporary)["if"]
        for temporary in ({}, {"conv": 25}, {"conv": 80})
    ]
    assert found == [70, 85, 90]


@pytest.mark.parametrize("text", ["", "name\nx_1\n", "#name,a,b,c,total_temp_allocations\nx_1,1,2,3,many\n"])
def test_unreadable_statistics_are_one_line(tmp_path, text):
    (tmp_path / "stats.csv").write_text(text)
    with pytest.raises(RuntimeFailure, match="memory statistics cannot be read"):
        read_node_stats(tmp_path / "stats.csv")


def test_statistics_of_names_with_commas(tmp_path):
    header = "#name,input_sizes,initializers_sizes,total_dynamic_sizes,total_temp_allocations"
    (tmp_path / "stats.csv").write_text(f"{header}\na,b_c_123,1,2,3,4\n\n")
    assert read_node_stats(tmp_path / "stats.csv") == {"a,b_c": 4}


def test_provenance_says_where_figures_come_from():
    source = provenance("cpu", 2, "all", 10, 2)
    assert (source.runtime, source.runtime_version) == ("onnxruntime", runtime_version())
    assert (source.provider, source.intra_op_threads) == ("CPUExecutionProvider", 2)
    assert source.cpu == cpu_name() != ""
    assert source.os
    assert source.measured
