"""Rewritten models whose shapes depend on values: what a plan saw in one run is not what the next one has."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

from remat_cli.base.errors import ModelError
from remat_cli.onnx_io.read.load import DimBindings, load
from remat_cli.onnx_io.read.to_graph import to_graph
from tests.helpers import free_problem, observe, to_bytes
from tests.onnx_io.graphs import random_schedule
from tests.onnx_io.test_rewrite import Reference, refer_to

CHOSEN = """<ir_version: 8, opset_import: ["" : {opset}]> g (float[8, 4] x, bool[8] which) => (float y, float z) {{
    rows = Compress<axis = 0>(x, which)
    column = {sum}
    some = Squeeze(column)
    more = Exp(some)
    y = Sin(more)
    fewer = Neg(some)
    z = Cos(fewer)
}}"""
SUMS = {12: "ReduceSum<axes = [1], keepdims = 1>(rows)", 13: "ReduceMax<axes = [1], keepdims = 1>(rows)"}


def chosen(opset: int) -> onnx.ModelProto:
    """Rows that a mask chooses, whose sums have no axis where it is a single one."""
    model = parser.parse_model(CHOSEN.format(opset=opset, sum=SUMS[opset]))
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


def run(data: bytes, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(data, options).run(None, dict(feeds))


def check(model: onnx.ModelProto, reference: Reference, others: list[Mapping[str, np.ndarray]]) -> int:
    """Plans in some orders give what the model gives for inputs that no plan has seen; how many gates they have."""
    gates = 0
    for seed in range(6):
        rewritten = reference.rewrite(random_schedule(free_problem(reference.graph), random.Random(seed), 2))
        gates += rewritten.gates
        for feeds in others:
            wanted, found = run(model.SerializeToString(), feeds), run(to_bytes(rewritten.model), feeds)
            for one, other in zip(wanted, found, strict=True):
                assert np.shape(one) == np.shape(other)
                assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    return gates


def test_what_has_fewer_dimensions_in_another_run_passes_gates(tmp_path: Path) -> None:
    model, generator = chosen(13), np.random.default_rng(0)
    x = generator.standard_normal((8, 4)).astype(np.float32)
    masks = (np.arange(8) % 2 == 0, np.arange(8) == 3, np.ones(8, bool), np.zeros(8, bool))
    assert check(model, refer_to(model, tmp_path), [{"x": x, "which": mask} for mask in masks])


def test_before_opset_13_no_gate_is_written_that_would_fail_there(tmp_path: Path) -> None:
    """Gates say there how many dimensions a tensor has."""
    reference = refer_to(chosen(12), tmp_path)
    schedules = [random_schedule(free_problem(reference.graph), random.Random(seed), 2) for seed in range(6)]
    with pytest.raises(ModelError, match=r"has depends on values.*convert the model to 13 or newer"):
        list(map(reference.rewrite, schedules))


@pytest.mark.parametrize("opset", [12, 17])
def test_a_shape_that_is_a_default_is_read_as_it_is_given(tmp_path: Path, opset: int) -> None:
    """Shapes that are constants are written with an open length, which no caller could change."""
    text = """<ir_version: 8, opset_import: ["" : %d]> g (float[8, 4] x, int64[2] shape) => (float[a, b] y)
        <int64[2] shape = {8, 4}> {
        held = Exp(x)
        more = Reshape(held, shape)
        y = Sin(more)
    }"""
    model = parser.parse_model(text % opset)
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    given = [{"x": x}, {"x": x, "shape": np.array([4, 8])}, {"x": x, "shape": np.array([-1, 2])}]
    check(model, refer_to(model, tmp_path), given)


def test_a_default_stays_an_input(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[8, 4] x, float[4] more) => (float[8, 4] y)
        <float[4] more = {1, 2, 3, 4}> { held = Exp(x) y = Add(held, more) }"""
    model = parser.parse_model(text)
    x = np.ones((8, 4), np.float32)
    check(model, refer_to(model, tmp_path), [{"x": x}, {"x": x, "more": np.zeros(4, np.float32)}])


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize("length", ["fed", "computed"])
def test_a_resize_to_computed_sizes_is_loaded_whatever_waits(tmp_path: Path, opset: int, length: str) -> None:
    """The runtime takes a view of what says sizes for no number at all, and refuses the op."""
    axes = "zero" if opset > 12 else ""
    unsqueeze = f"Unsqueeze(times, {axes})" if axes else "Unsqueeze<axes = [0]>(times)"
    wanted = {"fed": "Identity(n)", "computed": unsqueeze}[length]
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]> g
        (float[2, 4, 8] x, int64[1] n) => (float[a, b, c] y, float[d, e, f] z)
        <int64[2] first = {{2, 4}}, int64[1] zero = {{0}}, int64[1] one = {{1}}, int64 two = {{2}},
         float[0] no = {{}}> {{
        held = Exp(x)
        shape = Shape(held)
        long = Gather<axis = 0>(shape, two)
        times = Mul(long, two)
        more = {wanted}
        last = Mul(more, one)
        sizes = Concat<axis = 0>(first, last)
        y = Resize<mode = "nearest">(held, no, no, sizes)
        other = Neg(held)
        z = Resize<mode = "nearest">(other, no, no, sizes)
    }}"""
    model = parser.parse_model(text)
    x = np.random.default_rng(0).standard_normal((2, 4, 8)).astype(np.float32)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    source = load(path, DimBindings())
    feeds = {"x": x, "n": np.array([16])}
    reference = Reference(source, source.ir, to_graph(source.ir, observe(source.ir, feeds)), feeds)
    assert check(model, reference, [feeds, {"x": x, "n": np.array([5])}])
