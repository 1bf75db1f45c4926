"""What `inspect` predicts of files that leave sizes open, beside what a process holds that runs them as they are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import remat_cli as remat
from remat_cli.core.values.promises import PROCESS_ROOM_BYTES, PROCESS_SHARE
from remat_cli.runtime.observe.resident import ResidentJob, can_measure_resident, measure_resident
from remat_cli.runtime.sessions._ort import pack_all, run_fresh
from remat_cli.runtime.sessions.session import SessionSettings

pytestmark = pytest.mark.skipif(not can_measure_resident(), reason="the system does not tell resident memory")
WIDTH, HEADS = 64, 4


def weight(name, *shape):
    values = np.random.default_rng(len(name)).standard_normal(shape) * 0.05
    return numpy_helper.from_array(values.astype(np.float32), name)


def numbers(name, *values):
    return numpy_helper.from_array(np.array(values), name)


def saved(path, nodes, shape, outputs, weights):
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "net",
        [value("x", TensorProto.FLOAT, shape)],
        [value("y", TensorProto.FLOAT, outputs)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def attention(folder):
    """As exporters write it whose sizes are open: shapes are worked out from the input, so nothing inside is known."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["batch_and_time"], end=2),
        node("Concat", ["batch_and_time", "parts"], ["of_heads"], axis=0),
        node("Concat", ["batch_and_time", "whole"], ["of_all"], axis=0),
    ]
    for name in "qkv":
        order = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        nodes += [
            node("MatMul", ["x", f"w{name}"], [f"{name}0"]),
            node("Reshape", [f"{name}0", "of_heads"], [f"{name}1"]),
            node("Transpose", [f"{name}1"], [name], perm=order),
        ]
    nodes += [
        node("MatMul", ["q", "k"], ["scores"]),
        node("Softmax", ["scores"], ["shares"], axis=-1),
        node("MatMul", ["shares", "v"], ["mixed"]),
        node("Transpose", ["mixed"], ["turned"], perm=[0, 2, 1, 3]),
        node("Reshape", ["turned", "of_all"], ["joined"]),
        node("Add", ["joined", "x"], ["y"]),
    ]
    weights = [weight(f"w{name}", WIDTH, WIDTH) for name in "qkv"]
    sizes = [numbers("parts", HEADS, WIDTH // HEADS), numbers("whole", WIDTH)]
    shape = ["batch", "time", WIDTH]
    return saved(folder / "attention.onnx", nodes, shape, shape, [*weights, *sizes])


def pictures(folder):
    """Sizes without names, and ops that would work in place or use dead buffers again if shapes were known."""
    node = helper.make_node
    nodes, last = [], "x"
    for number in range(3):
        nodes += [
            node("Conv", [last, f"w{number}"], [f"c{number}"], pads=[1, 1, 1, 1]),
            node("Elu", [f"c{number}"], [f"e{number}"]),
            node("Erf", [f"e{number}"], [f"f{number}"]),
        ]
        last = f"f{number}"
    nodes += [node("GlobalAveragePool", [last], ["pooled"]), node("Flatten", ["pooled"], ["y"])]
    weights = [weight(f"w{number}", 32, 32 if number else 3, 3, 3) for number in range(3)]
    return saved(folder / "pictures.onnx", nodes, [None, 3, None, None], [None, 32], weights)


CASES = {
    "attention": (attention, {"dim": ["batch=2", "time=512"]}, (2, 512, WIDTH)),
    "pictures": (pictures, {"input_shape": ["x:1,3,192,192"]}, (1, 3, 192, 192)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_file_with_open_sizes_is_predicted_as_it_is(tmp_path, monkeypatch, name):
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    make, words, shape = CASES[name]
    path = make(tmp_path)
    report = remat.inspect(path, intra_op_threads=1, **words)
    feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    job = ResidentJob(str(path), pack_all(feeds), SessionSettings(exact=False, intra_op_threads=1))
    seen = max(peak.total_bytes for peak in run_fresh(measure_resident, job).run_peak_bytes)
    assert abs(report.process.later_runs_bytes - seen) <= PROCESS_SHARE * seen + PROCESS_ROOM_BYTES


def test_the_same_file_with_its_sizes_bound_needs_less(tmp_path, monkeypatch):
    """So that a prediction for the bound one would be wrong: shapes are folded, and buffers used again."""
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    path = attention(tmp_path)
    model = onnx.load(path)
    for dim, size in zip(model.graph.input[0].type.tensor_type.shape.dim, (2, 512, WIDTH), strict=True):
        dim.Clear()
        dim.dim_value = size
    onnx.save(model, tmp_path / "bound.onnx")
    bound = remat.inspect(tmp_path / "bound.onnx", intra_op_threads=1)
    given = remat.inspect(path, dim=["batch=2", "time=512"], intra_op_threads=1)
    assert bound.process.later_runs_bytes < 0.8 * given.process.later_runs_bytes


def test_a_budget_in_bytes_is_judged_by_the_process_and_a_share_by_what_is_live(tmp_path, monkeypatch):
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    path, words = attention(tmp_path), {"dim": ["batch=2", "time=512"], "split": "off"}
    plain = remat.inspect(path, **words)
    assert (plain.fits, plain.verdict) == (None, None)
    process_bytes = plain.process.counted_bytes(with_mapped=False) + 2 * 512 * WIDTH * 4
    between = (plain.peak_bytes + process_bytes) // 2
    for budget, scope, fits in (
        (between, None, False),
        (process_bytes, None, True),
        (process_bytes - 1, "process", False),
        (between, "live", True),
        ("100%", None, True),
        ("90%", None, False),
    ):
        report = remat.inspect(path, budget=budget, budget_scope=scope, **words)
        assert report.fits is fits, (budget, scope)
        assert report.verdict.startswith("fits by prediction: " if fits else "does not fit by prediction: ")
