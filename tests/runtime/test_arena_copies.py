"""Copies of weights that loading puts into the arena, beside the runtime's own log and counters."""

from __future__ import annotations

import json
import platform
import re
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.onnx_io.write.arena_copies import arena_copies
from remat_cli.ort_rules.arena import LoadedSession, simulate_runs
from remat_cli.ort_rules.records import rules_for
from remat_cli.ort_rules.requests import Request
from remat_cli.ort_rules.runtime import WIDE_BLOCK, Runtime
from remat_cli.runtime.sessions.session import SessionSettings, run_profiled, runtime_version
from tests.runtime.test_arena import tracer, watched

__all__ = ["tracer"]  # the fixture

CPU = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
pytestmark = pytest.mark.skipif("avx2" not in CPU, reason="needs Linux and AVX2")
SIZE = 24
BLOCK = WIDE_BLOCK if "avx512f" in CPU else 8
RULES = rules_for(Runtime(runtime_version(), platform.machine(), BLOCK))
CHANNELS = (3, 64, 256, 256, 256, 512, 20, 320)
"""From layer to layer: from 3 channels there is no kernel of its own, and to 20 only with AVX-512."""


def quantised(path: Path, *, signed: bool = True, again: bool = False) -> Path:
    """A chain of quantised convolutions; with `again` the fourth reads the weight of the third."""
    kind = np.int8 if signed else np.uint8
    weights = [
        numpy_helper.from_array(np.array(0.02, np.float32), "scale"),
        numpy_helper.from_array(np.array(7, np.uint8), "zero"),
        numpy_helper.from_array(np.array(0, kind), "zero_of_weights"),
    ]
    nodes, last = [], "x"
    for number, (before, after) in enumerate(pairwise(CHANNELS)):
        name = f"w{number}"
        if again and number == 3:
            name = "w2"
        else:
            values = np.random.default_rng(number).integers(0, 100, (after, before, 3, 3))
            weights.append(numpy_helper.from_array(values.astype(kind), name))
        reads = [last, "scale", "zero", name, "scale", "zero_of_weights", "scale", "zero"]
        nodes.append(helper.make_node("QLinearConv", reads, [f"y{number}"], f"c{number}", pads=[1] * 4))
        last = f"y{number}"
    ports = [
        helper.make_tensor_value_info("x", TensorProto.UINT8, [1, CHANNELS[0], SIZE, SIZE]),
        helper.make_tensor_value_info(last, TensorProto.UINT8, [1, CHANNELS[-1], SIZE, SIZE]),
    ]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def sizes(path: Path) -> list[int]:
    return [copy.bytes for copy in arena_copies(ir.load(path), RULES.packing.in_arena)]


def extended(log: str) -> list[int]:
    return [int(size) for size in re.findall(r"Extended allocation by (\d+) bytes", log)]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc and LD_PRELOAD")
def test_runs_find_the_regions_that_loading_took(tmp_path, tracer):
    path = quantised(tmp_path / "m.onnx")
    found = [Request(*event) for event in json.loads(watched("traced", path, tracer, tracer=tracer).stdout)]
    loading, first = watched("logged", path, 1, 0).stderr.split("RUN\n")
    arena = LoadedSession(RULES.arena, sizes(path)).arena()
    assert arena.regions == extended(loading)
    assert len(arena.regions) == 3
    arena.run(found)
    assert arena.regions == extended(loading) + extended(first)


def test_what_loading_took_counts_as_loadings(tmp_path):
    copies = sizes(quantised(tmp_path / "m.onnx"))
    output = Request(0, 2**20, True, in_block=False)
    (run,) = simulate_runs([output], 1, 0, LoadedSession(RULES.arena, tuple(copies)))
    assert run.new_regions == ()
    assert run.resident_bytes == 2**20
    (alone,) = simulate_runs([output], 1, 0, LoadedSession(RULES.arena))
    assert alone.resident_bytes == 2**20 + 2**20 // 32


def test_other_weights_lie_outside(tmp_path):
    path = quantised(tmp_path / "m.onnx", signed=False)
    assert sizes(path) == []
    assert extended(watched("logged", path, 1, 0).stderr.split("RUN\n")[0]) == []


def test_each_op_has_a_copy_of_its_own(tmp_path):
    once, twice = quantised(tmp_path / "once.onnx"), quantised(tmp_path / "twice.onnx", again=True)
    assert sizes(twice) == sizes(once)
    feeds = {"x": np.zeros((1, CHANNELS[0], SIZE, SIZE), np.uint8)}
    held = [run_profiled(path, feeds, SessionSettings(intra_op_threads=1)).baseline_bytes for path in (once, twice)]
    assert held[0] == held[1]
