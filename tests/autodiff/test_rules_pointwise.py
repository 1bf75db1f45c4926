"""Gradients of element-wise ops against finite differences and torch."""

from __future__ import annotations

import numpy as np
import pytest

from tests.autodiff.rule_case import Case, check

RNG = np.random.default_rng(0)
CASES = [
    Case("Relu", [RNG.standard_normal((2, 3, 4))]),
    Case("Add", [RNG.standard_normal((2, 3, 4)), RNG.standard_normal((3, 1))]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op_type)
def test_gradients(case: Case) -> None:
    check(case)
