"""Steps and signs written as steep lines: exact for every number of full precision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from remat_cli.autodiff.pieces import sign, step
from remat_cli.autodiff.tape import IR_VERSION, OPSET, Tape
from tests.autodiff.rule_case import runtime


def written(function: Callable[[Tape, ir.Value], ir.Value], array: np.ndarray) -> np.ndarray:
    """What a piece of graph makes of an array on the runtime."""
    tape = Tape()
    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.from_numpy(array.dtype)), shape=ir.Shape(array.shape))
    result = function(tape, value)
    graph = ir.Graph(
        [value],
        [result],
        nodes=tape.nodes,
        initializers=list(tape.constants.values()),
        opset_imports={"": OPSET},
        name="slope",
    )
    return runtime(ir.to_proto(ir.Model(graph, ir_version=IR_VERSION)), {"x": array})[0]


TINY = float(np.finfo(np.float32).tiny)
EDGES = np.array([0.0, -0.0, TINY, -TINY, 1e-30, -1e-30, 1, -1, 3e38, -3e38, np.inf, -np.inf], np.float32)


@pytest.mark.parametrize(("function", "expected"), [(step, EDGES > 0), (sign, np.sign(EDGES))])
def test_exact_at_the_edges(function: Callable[[Tape, ir.Value], ir.Value], expected: np.ndarray) -> None:
    np.testing.assert_array_equal(written(function, EDGES), expected)


@pytest.mark.parametrize(("function", "expected"), [(step, EDGES > 0), (sign, np.sign(EDGES))])
def test_double_precision_has_kernels_too(function: Callable[[Tape, ir.Value], ir.Value], expected: np.ndarray) -> None:
    np.testing.assert_array_equal(written(function, EDGES.astype(np.float64)), expected)
