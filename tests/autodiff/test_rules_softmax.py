"""Gradients of softmax and its logarithm against finite differences and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from remat_cli.autodiff.rules import RULES
from tests.autodiff.rule_case import Case, check, check_with_torch, differentiate, runtime

OPS = ["Softmax", "LogSoftmax"]


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


CASES = [Case(op_type, [draw(2, 5) * 3]) for op_type in OPS]


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize(
    ("shape", "attributes"), [((2, 5), {}), ((2, 3, 4), {"axis": 1}), ((7,), {"axis": 0}), ((2, 3, 4, 3), {"axis": -3})]
)
def test_gradients(op_type: str, shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    check(Case(op_type, [draw(*shape) * 3], attributes))


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_against_torch(op_type: str, axis: int) -> None:
    torch = pytest.importorskip("torch")
    function = torch.softmax if op_type == "Softmax" else torch.log_softmax
    check_with_torch(Case(op_type, [draw(3, 5, 17) * 4], {"axis": axis}), lambda x: function(x, axis))


@pytest.mark.parametrize("op_type", OPS)
def test_far_apart_inputs_give_finite_gradients(op_type: str) -> None:
    found = differentiate(Case(op_type, [np.array([[1e4, 0.0, -1e4], [88.0, 89.0, 90.0]])]), np.float32, RULES, runtime)
    assert np.isfinite(found[0]).all()
