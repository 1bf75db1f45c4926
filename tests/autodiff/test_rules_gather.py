"""Gradients of ops that read or write at indices, against finite differences and torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from remat_cli.autodiff.pieces import LARGEST_ONE_HOT
from remat_cli.autodiff.rules import RULES
from remat_cli.autodiff.tape import Call, Grads, Tape
from remat_cli.base.errors import ModelError
from tests.autodiff.rule_case import Case, build, check, check_with_torch, cotangent, reference, runtime

RNG = np.random.default_rng(0)
LONG = LARGEST_ONE_HOT + 3


def real(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def places(bound: int, *shape: int) -> np.ndarray:
    """Indices, some negative, some twice."""
    return RNG.integers(-bound, bound, shape)


def corners(shape: tuple[int, ...], *lead: int) -> np.ndarray:
    return np.stack([places(dim, *lead) for dim in shape], -1)


CONSTANT = [
    Case("Gather", [real(5, 4), np.array(2)]),
    Case("Gather", [real(5, 4), np.array(-1)], {"axis": 1}),
    Case("Gather", [real(5, 4), np.array([1, 2, 3])]),
    Case("Gather", [real(5, 4), np.array([3, 1])], {"axis": 1}),
    Case("Gather", [real(5, 4), np.array([4, 0, 3])]),
    Case("Gather", [real(5, 4), np.array([4, 0, 3, 1, 2])]),
    Case("Gather", [real(2, 3), np.repeat(np.arange(3), 2)], {"axis": 1}),
    Case("Gather", [real(5, 4), np.array([2, 2])]),
    Case("Gather", [real(2, 6, 3), places(6, 3, 4)], {"axis": 1}),
    Case("Gather", [real(7), places(7, 9)]),
    Case("Gather", [real(LONG, 1), places(LONG, 9000)]),
    Case("GatherND", [real(3, 4, 5), corners((3, 4), 6)]),
    Case("GatherND", [real(3, 4, 5), corners((4,), 3, 2)], {"batch_dims": 1}),
]
ELEMENTS = [
    Case("GatherElements", [real(4, 5), places(4, 3, 5)]),
    Case("GatherElements", [real(4, 5), places(5, 4, 7)], {"axis": 1}),
]
CHOSEN = [
    Case("TopK", [real(4, 7), np.array([3])], outputs=2),
    Case("TopK", [real(6, 2, 3), np.array([2])], {"axis": 0, "largest": 0}, outputs=2),
]
SCATTERED = [
    Case("ScatterND", [real(5, 3), np.array([[1], [4]]), real(2, 3)]),
    Case("ScatterND", [real(5, 3), np.array([[1], [4]]), real(2, 3)], fixed=(0,)),
    Case("ScatterND", [real(5, 3), np.array([[1, 2], [-1, 0], [0, 0]]), real(3)], fixed=(2,)),
    Case("ScatterND", [real(5, 3), np.array([[1], [4], [0]]), real(3, 3)], {"reduction": "add"}),
    Case("ScatterElements", [real(4, 3), np.array([[3, 0, -2], [1, 2, 0]]), real(2, 3)]),
    Case("ScatterElements", [real(3, 4), np.array([[3, 1], [1, -4], [2, 0]]), real(3, 2)], {"axis": 1}),
    Case("ScatterElements", [real(4, 3), np.array([[3, 0, 2], [3, 2, 0]]), real(2, 3)], {"reduction": "add"}),
]
COMPUTED = [
    Case("Gather", [real(5, 4), places(5, 3)]),
    Case("Gather", [real(2, 6, 3), places(6, 3, 4)], {"axis": 1}),
    Case("Gather", [real(LONG, 4), places(LONG, 3, 50)]),
    Case("Gather", [real(2, LONG, 3), places(LONG, 40)], {"axis": -2}),
    Case("Gather", [real(2, 3, LONG), np.array(-1)], {"axis": 2}),
    Case("Gather", [real(7), places(7, 2, 3)]),
    Case("Gather", [real(7, 4), places(7, 2, 3).astype(np.int32)]),
    Case("Gather", [real(LONG, 4), places(LONG, 9).astype(np.int32)]),
    Case("Gather", [real(3), places(3, 5)]),
    Case("GatherElements", [real(4, 5), places(5, 4, 7)], {"axis": 1}),
    Case("GatherND", [real(3, 4, 5), corners((3, 4), 6)]),
    Case("GatherND", [real(3, 4, 50), corners((4, 50), 3, 7)], {"batch_dims": 1}),
    Case("GatherND", [real(2, 3, 4, 5), corners((4,), 2, 3)], {"batch_dims": 2}),
]


CASES = [*CONSTANT, *ELEMENTS, *CHOSEN, *SCATTERED]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op_type)
def test_gradients(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", COMPUTED, ids=lambda case: case.op_type)
def test_gradients_at_indices_that_are_fed(case: Case) -> None:
    """They are those at the same indices as constants, which finite differences have judged."""
    expected = _gradient(case, np.float64, fed=False)
    np.testing.assert_allclose(_gradient(case, np.float64, fed=True), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(_gradient(case, np.float32, fed=True), expected, rtol=1e-4, atol=1e-4)


def test_an_embedding_has_the_gradient_of_torch() -> None:
    torch = pytest.importorskip("torch")
    tokens = RNG.integers(0, LONG, (4, 30))
    case = Case("Gather", [real(LONG, 8), tokens])
    check_with_torch(case, lambda table: torch.nn.functional.embedding(torch.tensor(tokens), table))


def test_chosen_numbers_have_the_gradient_of_torch() -> None:
    torch = pytest.importorskip("torch")
    check_with_torch(Case("TopK", [real(5, 9), np.array([4])], outputs=2), lambda x: torch.topk(x, 4)[0])


def test_a_big_table_is_scattered_into_zeros_that_are_not_stored(tmp_path: Path) -> None:
    """In eight threads, each token many times: the same bits as in one."""
    model, feeds = _fed(Case("Gather", [real(2000, 16), RNG.integers(0, 20, 4000)]), np.float32)
    one = _run_threads(model, feeds, 1, tmp_path / "one.onnx")
    for _ in range(3):
        np.testing.assert_array_equal(_run_threads(model, feeds, 8, tmp_path / "eight.onnx"), one)
    optimised = onnx.load(tmp_path / "one.onnx").graph
    assert [node.op_type for node in optimised.node].count("ScatterElements") == 1
    assert sum(np.prod(tensor.dims) for tensor in optimised.initializer) < 20


def test_gradients_that_are_not_finite_do_not_spoil_other_rows() -> None:
    model, feeds = _fed(Case("Gather", [real(LONG, 2), np.array([3, 3, 0])]), np.float32)
    nothing = {name: np.full_like(array, np.nan) for name, array in feeds.items() if array.shape == (3, 2)}
    grad = runtime(model, feeds | nothing)[0]
    assert np.isnan(grad[[0, 3]]).all()
    assert not grad[[1, 2, *range(4, LONG)]].any()


@pytest.mark.parametrize("reduction", ["mul", "max"])
def test_other_reductions_are_refused(reduction: str) -> None:
    case = Case("ScatterND", [real(5), np.array([[1]]), real(1)], {"reduction": reduction})
    with pytest.raises(ModelError, match=f"no gradient is known for reduction '{reduction}'"):
        build(case, np.float32, RULES, gradients=True)


def _gradient(case: Case, dtype: Any, fed: bool) -> np.ndarray:
    model, feeds = _fed(case, dtype) if fed else build(case, dtype, RULES, gradients=True)
    result: np.ndarray = (reference if dtype is np.float64 else runtime)(model, feeds)[0]
    return result


def _fed(case: Case, dtype: Any) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """The gradient where neither the rule nor the runtime knows indices and incoming gradient beforehand."""
    rule = RULES[case.op_type]

    def hidden(tape: Tape, call: Call, grads: Grads) -> Mapping[int, ir.Value]:
        inputs = (call.input(0), tape.op("Identity", call.input(1)))
        return rule.gradient(tape, replace(call, inputs=inputs), grads)

    model, feeds = build(case, dtype, {case.op_type: replace(rule, gradient=hidden)}, gradients=True)
    result = runtime(build(case, np.float32, RULES, gradients=False)[0], {"x0": case.inputs[0].astype(np.float32)})[0]
    for array in (case.inputs[1], cotangent(result.shape, dtype)):
        _feed(model, feeds, np.asarray(array))
    return model, feeds


def _feed(model: onnx.ModelProto, feeds: dict[str, Any], array: np.ndarray) -> None:
    """Make an input of a constant. In place."""
    weights = model.graph.initializer
    tensor = next(w for w in weights if np.array_equal(onnx.numpy_helper.to_array(w), array))
    model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    feeds[tensor.name] = array
    weights.remove(tensor)


def _run_threads(model: onnx.ModelProto, feeds: dict[str, Any], threads: int, path: Path) -> np.ndarray:
    """What a session of so many threads computes; `path` gets the model as it optimised it."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.optimized_model_filepath = str(path)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, feeds)[0]
    return result
