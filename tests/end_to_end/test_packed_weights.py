"""Weights as kernels pack them, as a user meets them: what loading holds, and what is done where it holds more."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import remat_cli
from remat_cli.compiling.one_model import verify as verifying
from remat_cli.compiling.one_model.settle import WITHOUT_COPIES
from remat_cli.compiling.process.resident import ResidentRequest
from remat_cli.core.values.resident import ProcessMemory, ProcessSeen
from remat_cli.onnx_io.write.packed import packed_weights
from remat_cli.ort_rules.primers import PREFIX
from remat_cli.runtime.observe.resident import can_measure_resident

MIB = 2**20
SIZE, LAYERS = 1024, 10
pytestmark = [
    pytest.mark.usefixtures("cache"),
    pytest.mark.skipif(not can_measure_resident(), reason="the system does not tell resident memory"),
]


@pytest.fixture(scope="module")
def products(tmp_path_factory) -> Path:
    """Ten products with weights of 4 MiB, one after the other."""
    path = tmp_path_factory.mktemp("products") / "products.onnx"
    random, x, nodes, weights = np.random.default_rng(0), "x", [], []
    for layer in range(LAYERS):
        values = random.standard_normal((SIZE, SIZE), np.float32) / 32
        weights.append(numpy_helper.from_array(values, f"w{layer}"))
        nodes += [helper.make_node("MatMul", [x, f"w{layer}"], [f"m{layer}"], f"M{layer}")]
        nodes += [helper.make_node("Tanh", [f"m{layer}"], [f"t{layer}"], f"T{layer}")]
        x = f"t{layer}"
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [16, SIZE])] for name in ("x", x)]
    graph = helper.make_graph(nodes, "g", *ports, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def compiled(model: Path, folder: Path, **how: object):
    output = folder / "out.onnx"
    report = remat_cli.compile(
        model, budget="100%", output=output, force=True, intra_op_threads=1, capped_run=False, **how
    )
    assert report.output is not None
    assert report.verification is not None
    return report, output


def test_a_process_that_loads_packed_copies_holds_what_was_predicted(products, tmp_path):
    """Of ten copies that a session makes and drops, one stays; the file has primers and the original's bits."""
    report, output = compiled(products, tmp_path)
    process = report.verification.process
    assert process.is_as_predicted
    own_bytes = process.rewritten.loaded_bytes - process.rewritten.mapped_bytes
    assert own_bytes < 4 * MIB + process.predicted.loaded_bytes * 0.03 + 4 * MIB
    assert set(packed_weights(output).copies) == {*(f"w{layer}" for layer in range(LAYERS)), f"{PREFIX}weight"}
    feeds = {"x": np.ones((16, SIZE), np.float32)}
    one, other = (ort.InferenceSession(path).run(None, feeds)[0] for path in (products, output))
    assert one.tobytes() == other.tobytes()


def above(memory: ProcessMemory, more_bytes: int) -> ProcessMemory:
    return msgspec.structs.replace(memory, loaded_bytes=memory.loaded_bytes + more_bytes)


@pytest.mark.parametrize("is_better_without", [pytest.param(True, marks=pytest.mark.slow), False])
def test_what_was_measured_above_the_prediction_is_planned_again_without_copies(
    products, tmp_path, monkeypatch, is_better_without
):
    """If that is as predicted and needs no more; else the copies stay, and the figures tell what was not kept."""

    def seen(request: ResidentRequest, advance: object = None) -> ProcessSeen:
        packed = bool(packed_weights(request.rewritten).copies)
        more_bytes = 50 * MIB if packed or not is_better_without else 0
        rewritten = above(request.predicted, more_bytes)
        if packed:
            rewritten = msgspec.structs.replace(rewritten, anonymous_bytes=rewritten.anonymous_bytes + 99 * MIB)
        return ProcessSeen(request.predicted, rewritten, request.predicted, 0)

    monkeypatch.setattr(verifying, "see_processes", seen)
    report, output = compiled(products, tmp_path)
    plan = remat_cli.read_plan(report.plan)
    assert bool(packed_weights(output).copies) != is_better_without
    assert plan.request.packed_weights != is_better_without
    assert (WITHOUT_COPIES in report.verification.notes) == is_better_without
    assert report.verification.process.is_as_predicted == is_better_without
