"""Gradients of local response normalisation against finite differences and torch."""

from __future__ import annotations

import numpy as np
import pytest

from tests.autodiff.rule_case import Case, check, check_with_torch

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 6, 3, 4))
CASES = {
    "defaults": Case("LRN", [X], {"size": 5}),
    "strong": Case("LRN", [X * 3], {"size": 3, "alpha": 0.9, "beta": 0.5, "bias": 0.7}),
    "steep": Case("LRN", [X], {"size": 5, "alpha": 2.0, "beta": 1.3, "bias": 2.0}),
    "wider than the channels": Case("LRN", [X], {"size": 9, "alpha": 1.0}),
    "one channel": Case("LRN", [X], {"size": 1, "alpha": 1.0}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_gradients(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("size", [3, 5])
def test_against_torch(size: int) -> None:
    torch = pytest.importorskip("torch")
    case = Case("LRN", [X], {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5})
    check_with_torch(case, lambda x: torch.nn.functional.local_response_norm(x, size, 0.5, 0.6, 1.5))
