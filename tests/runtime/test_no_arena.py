"""Sessions without an arena: small blocks beside tensors as the record says, and what processes hold as predicted."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import remat_cli
from remat_cli.runtime.observe.resident import ResidentJob, measure_resident
from remat_cli.runtime.sessions._ort import installed_rules, pack_all, run_fresh
from remat_cli.runtime.sessions.feeds import make_feeds
from remat_cli.runtime.sessions.session import SessionSettings

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
NEEDS_GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
ROOM_SHARE, ROOM_BYTES = 1.05, 3 * 2**20

TRACED = """
import ctypes, sys
import numpy as np
import onnxruntime as ort
options = ort.SessionOptions()
options.enable_cpu_mem_arena = options.enable_mem_pattern = False
options.intra_op_num_threads = 1
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
feeds = {"x": np.zeros(1 << 16, np.float32)}
library = ctypes.CDLL(sys.argv[2])
session.run(None, feeds)
library.blocks_start()
session.run(None, feeds)
count = library.blocks_stop()
library.block.restype = ctypes.c_long
print(*(library.block(at) for at in range(count)))
"""


@pytest.fixture(scope="module")
def tracer(tmp_path_factory) -> Path:
    library = tmp_path_factory.mktemp("blocks") / "blocks.so"
    source = Path(__file__).with_name("blocks.c")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


@NEEDS_GLIBC
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc and LD_PRELOAD")
def test_small_blocks_lie_around_a_tensor(tracer, tmp_path):
    from onnx import TensorProto, helper, save

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1 << 16]) for name in "xy"]
    nodes = [helper.make_node("Abs", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["y"])]
    path = tmp_path / "two.onnx"
    save(helper.make_model(helper.make_graph(nodes, "two", ends[:1], ends[1:])), path)
    done = subprocess.run(
        [sys.executable, "-c", TRACED, path, tracer],
        env={"LD_PRELOAD": str(tracer), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    sizes = [int(each) for each in done.stdout.split()]
    rules = installed_rules().malloc
    aligned = [at for at, size in enumerate(sizes) if size == -(1 << 18)]  # aligned ones are noted below zero
    assert len(aligned) == 2
    for at in aligned:
        assert sizes[at - 1] == rules.before_bytes
        assert sizes[at + 1] == rules.after_bytes


@NEEDS_GLIBC
@pytest.mark.parametrize(
    ("name", "processes"),
    [
        ("transformer", 1),
        *(pytest.param(each, 20, marks=pytest.mark.slow) for each in ("unet", "densenet", "detector")),
    ],
)
def test_processes_without_an_arena_hold_no_more_than_predicted(name, processes, tmp_path):
    output = tmp_path / "out.onnx"
    report = remat_cli.compile(
        SAMPLES / f"{name}.onnx",
        budget="60%",
        session={"arena": "off"},
        output=output,
        verify="fast",
        intra_op_threads=1,
        time_limit="5s",
    )
    assert report.exit_code == 0
    plan = remat_cli.read_plan(Path(report.plan))
    assert plan.promise.process is not None
    assert plan.runs_on is not None
    assert plan.runs_on.session == ("arena=off",)
    feeds = pack_all(make_feeds(plan_inputs(output), 0))
    job = ResidentJob(str(output), feeds, SessionSettings(exact=False, intra_op_threads=1, has_arena=False), runs=5)
    seen = [run_fresh(measure_resident, job) for _ in range(processes)]
    most = max(peak.total_bytes for each in seen for peak in each.run_peak_bytes)
    assert most <= ROOM_SHARE * plan.promise.process.later_runs_bytes + ROOM_BYTES


def plan_inputs(path: Path):
    from remat_cli.onnx_io.read.load import DimBindings, inputs_of, load

    return inputs_of(load(path, DimBindings()).ir)
