"""Gradients of reductions and running sums against finite differences and torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from remat_cli.autodiff.rules import RULES
from tests.autodiff.rule_case import Case, check, check_with_torch, differentiate, runtime

RNG = np.random.default_rng(0)
REDUCTIONS = [op for op in RULES if op.startswith("Reduce")]
AXES = [((2, 3, 5), (1,)), ((2, 3, 5), (0, -1)), ((2, 3, 5), None), ((2, 1, 3, 2), (-3, 3)), ((7,), (0,)), ((2, 3), ())]


def positive(*shape: int) -> np.ndarray:
    """Numbers that are far from each other and from 0: no ties, logarithms exist."""
    return RNG.permutation(np.linspace(0.4, 2.4, int(np.prod(shape)))).reshape(shape)


def reduced(op_type: str, values: np.ndarray, axes: tuple[int, ...] | None, **attributes: int) -> Case:
    inputs = [values] if axes is None else [values, np.array(axes, np.int64)]
    return Case(op_type, inputs, attributes)


CASES = [
    *(
        reduced(op, positive(*shape), axes, keepdims=keep)
        for op in REDUCTIONS
        for shape, axes in AXES
        for keep in (0, 1)
    ),
    *(reduced(op, positive(2, 3), (), noop_with_empty_axes=1) for op in REDUCTIONS),
    *(reduced(op, positive(2, 3), None, noop_with_empty_axes=1) for op in REDUCTIONS),
    *(reduced(op, -positive(2, 3, 4), (1,)) for op in ("ReduceL1", "ReduceL2", "ReduceProd", "ReduceLogSumExp")),
    *(
        Case("CumSum", [positive(2, 3, 4), np.array(axis)], {"exclusive": exclusive, "reverse": reverse})
        for axis in (0, -1)
        for exclusive in (0, 1)
        for reverse in (0, 1)
    ),
]


def name_of(case: Case) -> str:
    axes = case.inputs[1].tolist() if len(case.inputs) > 1 else None
    return f"{case.op_type}-{case.inputs[0].shape}-{axes}-{dict(case.attributes)}".replace(" ", "")


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_gradients(case: Case) -> None:
    check(case)


WITH_TORCH: dict[str, Callable[[Any, Any], Any]] = {
    "ReduceSum": lambda torch, x: torch.sum(x, (0, 2)),
    "ReduceMean": lambda torch, x: torch.mean(x, (0, 2)),
    "ReduceMax": lambda torch, x: torch.amax(x, (0, 2)),
    "ReduceMin": lambda torch, x: torch.amin(x, (0, 2)),
    "ReduceLogSumExp": lambda torch, x: torch.logsumexp(x, (0, 2)),
    "ReduceL1": lambda torch, x: torch.linalg.vector_norm(x, 1, (0, 2)),
    "ReduceL2": lambda torch, x: torch.linalg.vector_norm(x, 2, (0, 2)),
}


@pytest.mark.parametrize("op_type", WITH_TORCH)
def test_torch_agrees_also_on_ties(op_type: str) -> None:
    torch = pytest.importorskip("torch")
    values = RNG.integers(-2, 3, (3, 4, 5)).astype(float)
    check_with_torch(reduced(op_type, values, (0, 2), keepdims=0), lambda x: WITH_TORCH[op_type](torch, x))


def test_a_product_with_zeros_has_the_gradient_of_torch() -> None:
    torch = pytest.importorskip("torch")
    values = np.array([[2.0, 3, 4], [2, 0, 4], [0, 3, 0], [0, 0, 0]])
    check_with_torch(reduced("ReduceProd", values, (1,), keepdims=0), lambda x: torch.prod(x, 1))


def test_a_running_sum_has_the_gradient_of_torch() -> None:
    torch = pytest.importorskip("torch")
    check_with_torch(Case("CumSum", [positive(3, 4), np.array(1)]), lambda x: torch.cumsum(x, 1))


def test_the_norm_of_nothing_has_no_slope() -> None:
    grad = differentiate(reduced("ReduceL2", np.zeros((2, 3)), (1,)), np.float32, RULES, runtime)[0]
    np.testing.assert_array_equal(grad, 0)
