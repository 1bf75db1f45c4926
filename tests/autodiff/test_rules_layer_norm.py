"""Gradients of layer, vector and axis-wise normalisations against finite differences and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from remat_cli.autodiff.rules import RULES
from remat_cli.base.errors import ModelError
from tests.autodiff.rule_case import Case, check, check_with_torch, differentiate, runtime

DOUBLE = 11  # stash_type; without it float64 cases would be normalised in float32


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def layer_norm(x: tuple[int, ...], *parameters: tuple[int, ...], **attributes: Any) -> Case:
    return Case("LayerNormalization", [draw(*x) * 2 + 1, *(draw(*p) + 1 for p in parameters)], attributes)


@pytest.mark.parametrize(
    "case",
    [
        layer_norm((2, 3, 8), (8,), (8,)),
        layer_norm((2, 3, 8), (8,), epsilon=0.1),
        layer_norm((2, 3, 4, 5), (4, 5), (4, 5), axis=2),
        layer_norm((2, 3, 4), (2, 3, 4), (2, 3, 4), axis=0),
        layer_norm((2, 3, 4), (1,), (1, 4), axis=-2),
        layer_norm((5, 7), (7,), (7,), axis=1),
    ],
    ids=lambda case: str(len(case.inputs)),
)
def test_layer_norm(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("trained", [0, 1, 2])
def test_layer_norm_where_one_input_is_trained(trained: int) -> None:
    case = layer_norm((2, 3, 8), (8,), (8,))
    check(Case(case.op_type, case.inputs, fixed=[place for place in range(3) if place != trained]))


@pytest.mark.parametrize(("mean", "deviation"), [(0, 1), (1e3, 1), (-1e3, 0.1)])
def test_layer_norm_against_torch(mean: float, deviation: float) -> None:
    torch = pytest.importorskip("torch")
    case = layer_norm((4, 9, 33), (33,), (33,))
    x = (case.inputs[0] * deviation + mean).astype(np.float32)
    case = Case(case.op_type, [x, *case.inputs[1:]])
    check_with_torch(case, lambda x, s, b: torch.nn.functional.layer_norm(x, (33,), s, b))


def test_a_scale_per_row_is_refused() -> None:
    with pytest.raises(ModelError, match="more dimensions"):
        differentiate(layer_norm((2, 3, 8), (3, 8)), np.float32, RULES, runtime)


def skip_layer_norm(skip: tuple[int, ...], places: int, **more: Any) -> Case:
    inputs = [draw(2, 3, 8), draw(*skip), draw(8) + 1, draw(8), draw(8) * 2]
    return Case("SkipLayerNormalization", inputs[:places], {"epsilon": 1e-5}, domain="com.microsoft", **more)


@pytest.mark.parametrize(
    "case",
    [
        skip_layer_norm((2, 3, 8), 5),
        skip_layer_norm((2, 3, 8), 3),
        skip_layer_norm((1, 3, 8), 4),
        skip_layer_norm((3, 8), 5, fixed=(0,)),
        skip_layer_norm((2, 3, 8), 5, fixed=(2, 3), outputs=4, checked=(0, 3)),
        skip_layer_norm((2, 3, 8), 4, outputs=4, checked=(3,), fixed=(2, 3)),
    ],
    ids=lambda case: f"{len(case.inputs)}-{len(case.checked)}",
)
def test_skip_layer_norm(case: Case) -> None:
    check(case)


CASES = [
    layer_norm((2, 3, 8), (8,), (8,)),
    skip_layer_norm((2, 3, 8), 5),
    Case("LpNormalization", [draw(2, 3, 4) + 0.1], {"axis": 1}),
    Case("MeanVarianceNormalization", [draw(2, 3, 4, 5)]),
]


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 4), -1), ((2, 3, 4), 1), ((5,), 0)])
def test_lp_norm(shape: tuple[int, ...], axis: int, p: int) -> None:
    torch = pytest.importorskip("torch")
    case = Case("LpNormalization", [draw(*shape) + 0.1], {"axis": axis, "p": p})
    check(case)
    check_with_torch(case, lambda x: torch.nn.functional.normalize(x, p=p, dim=axis))


def test_lp_norm_of_nothing_has_no_gradient() -> None:
    found = differentiate(Case("LpNormalization", [np.zeros((2, 3))]), np.float32, RULES, runtime)
    assert not found[0].any()


@pytest.mark.parametrize(
    ("shape", "axes"), [((2, 3, 4, 5), None), ((2, 3, 4), [1, 2]), ((2, 3, 2, 5), [-1]), ((3, 4), [0, 1])]
)
def test_mean_variance_norm(shape: tuple[int, ...], axes: list[int] | None) -> None:
    check(Case("MeanVarianceNormalization", [draw(*shape)], {"axes": axes} if axes else {}))


def test_mean_variance_norm_of_a_constant_is_finite() -> None:
    found = differentiate(Case("MeanVarianceNormalization", [np.ones((2, 3, 2, 2))]), np.float32, RULES, runtime)
    assert np.isfinite(found[0]).all()
