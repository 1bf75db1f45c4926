"""What loading was forecast to take, against what a fresh process holds."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from remat_cli.onnx_io.write.save import save
from remat_cli.onnx_io.write.steady import INLINE_BYTES, can_be_steady, steady
from remat_cli.ort_rules.heaps.heap import threshold_after
from remat_cli.ort_rules.loading import LoadedFile, LoadedWeight, LoadForecast, load_forecast
from remat_cli.ort_rules.steady import SteadyForm
from remat_cli.runtime.sessions._ort import installed_rules
from tests.onnx_io.graphs import model_of

MIB = 2**20
N = 1024
LAYERS = 8
TOLERANCE_BYTES, TOLERANCE_SHARE = 2 * MIB, 0.03

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists() or platform.libc_ver()[0] != "glibc", reason="needs /proc and glibc"
)

LOAD = """
import json, sys
import numpy as np
import onnxruntime as ort


def held():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return {name: int(lines[name].split()[0]) * 1024 for name in ("VmHWM", "VmRSS", "RssAnon", "RssFile")}


def session(path):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


made = bytearray(int(sys.argv[3]))  # as inputs are, before a model is loaded
del made
feeds = {"x": np.ones((4, 1024), np.float32)}
first = session(sys.argv[1])
first.run(None, feeds)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = held()
second = session(sys.argv[2])
loaded = held()
second.run(None, feeds)
after = held()
print(json.dumps({
    "peak": loaded["VmHWM"] - before["VmRSS"],
    "loaded": loaded["VmRSS"] - before["VmRSS"],
    "mapped": after["RssFile"] - loaded["RssFile"],
}))
"""


def sample() -> ir.Model:
    """Weights of 4 MiB that are packed, one of 6 MiB that is read as it is, small biases."""
    nodes, weights, last = [], {}, "x"
    generator = np.random.default_rng(0)
    for layer in range(LAYERS):
        weights[f"w{layer}"] = generator.standard_normal((N, N)).astype(np.float32) / 32
        weights[f"b{layer}"] = np.zeros(N, np.float32)
        nodes.append(helper.make_node("Gemm", [last, f"w{layer}", f"b{layer}"], [f"g{layer}"], f"G{layer}"))
        nodes.append(helper.make_node("Tanh", [f"g{layer}"], [f"t{layer}"], f"T{layer}"))
        last = f"t{layer}"
    weights["plain"] = generator.standard_normal((384, 4, N)).astype(np.float32)
    nodes.append(helper.make_node("Add", [last, "plain"], ["sum"], "A"))
    nodes.append(helper.make_node("ReduceMax", ["sum"], ["y"], "R", keepdims=0))
    proto = model_of(nodes, {"x": (4, N)}, ["y"], weights)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ()))
    return ir.from_proto(proto)


def nothing() -> ir.Model:
    return ir.from_proto(model_of([helper.make_node("Tanh", ["x"], ["y"], "T")], {"x": (4, N)}, ["y"]))


def forecast(model: ir.Model, *, external: bool, captured: bool) -> LoadForecast:
    """Every weight of two dimensions is packed, at its own size."""
    weights = []
    for value in (value for graph in model.graphs() for value in graph.initializers.values()):
        assert value.const_value is not None
        size = value.const_value.nbytes
        packed = size if len(value.const_value.shape) == 2 else 0
        where = {"is_mapped": external and size > INLINE_BYTES, "is_captured": captured and size > INLINE_BYTES}
        weights.append(LoadedWeight(size, packed, not packed, **where))
    return load_forecast(
        weights, LoadedFile(sum(1 for graph in model.graphs() for _ in graph)), installed_rules().loading
    )


def measured(folder: Path, model: ir.Model, *, external: bool, made_bytes: int = 0) -> dict[str, int]:
    save(nothing(), folder / "first.onnx")
    save(model, folder / "second.onnx", external=external)
    command = [sys.executable, "-c", LOAD, str(folder / "first.onnx"), str(folder / "second.onnx"), str(made_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def is_near(found: int, expected: int, less: int = 0) -> bool:
    """Within the tolerance of a figure, or of one that may be so much less."""
    room = TOLERANCE_BYTES + TOLERANCE_SHARE * expected
    return expected - less - room <= found <= expected + room


@pytest.mark.parametrize("is_steady", [False, True])
@pytest.mark.parametrize("external", [False, True])
def test_a_process_holds_what_was_forecast(tmp_path, external, is_steady):
    model = sample()
    assert can_be_steady(model)
    if is_steady:
        model = steady(model, SteadyForm())
    expected = forecast(model, external=external, captured=is_steady)
    found = measured(tmp_path, model, external=external)
    assert is_near(found["peak"], expected.load_peak_bytes, expected.reused_bytes)
    assert is_near(found["loaded"], expected.loaded_bytes - expected.mapped_bytes, expected.reused_bytes)
    assert is_near(found["mapped"], expected.mapped_bytes)
    assert (expected.reused_bytes > TOLERANCE_BYTES) == (not external and not is_steady)


def of_many_sizes() -> ir.Model:
    """Weights of 128 KiB to 2.25 MiB that are read as they are, in the order of a classifier of pictures."""
    nodes, weights, last = [], {}, "x"
    sizes = [256, 2304, 1024, 144, 128, 144, 576, 256, 512, 256, 576, 256, 576, 256, 512, 2304, 1024, 2048, 1024, 2304]
    for layer, size in enumerate(sizes):
        weights[f"w{layer}"] = np.random.default_rng(layer).standard_normal((size // 16, 4, N)).astype(np.float32)
        nodes.append(helper.make_node("Add", [last, f"w{layer}"], [f"sum{layer}"], f"A{layer}"))
        nodes.append(helper.make_node("ReduceMax", [f"sum{layer}"], [last := f"m{layer}"], f"R{layer}", keepdims=0))
    proto = model_of(nodes, {"x": (4, N)}, [last], weights)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info(last, TensorProto.FLOAT, ()))
    return ir.from_proto(proto)


@pytest.mark.parametrize("made_kib", [0, 300, 600, 1100, 3000, 20_000, 40_000])
def test_what_was_made_before_decides_what_the_heap_keeps(tmp_path, made_kib):
    model, made_bytes = of_many_sizes(), made_kib * 1024
    sizes = [value.const_value.nbytes for value in model.graph.initializers.values()]
    weights = [LoadedWeight(size, 0, True) for size in sizes]
    file = LoadedFile(len(model.graph), threshold_bytes=threshold_after([made_bytes]))
    expected = load_forecast(weights, file, installed_rules().loading)
    found = measured(tmp_path, model, external=False, made_bytes=made_bytes)
    assert is_near(found["loaded"], expected.loaded_bytes), (found, expected)
