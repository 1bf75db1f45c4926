"""Gradients of activation functions against finite differences and torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from remat_cli.autodiff.rules import RULES
from tests.autodiff.rule_case import Case, build, check, check_with_torch, differentiate, runtime

RNG = np.random.default_rng(0)
MICROSOFT = "com.microsoft"


def away(*shape: int) -> np.ndarray:
    """Numbers that are not near 0, to either side of every kink."""
    return RNG.uniform(0.3, 2.9, shape) * RNG.choice([-1, 1], shape)


def act(op_type: str, domain: str = "", **attributes: Any) -> Case:
    return Case(op_type, [away(3, 5, 2)], attributes, domain=domain)


def celu_of_torch(case: Case) -> None:
    torch = pytest.importorskip("torch")
    check_with_torch(case, lambda x: torch.nn.functional.celu(x, case.attributes["alpha"]))


CASES = [
    *(Case("Celu", [away(3, 5, 2)], {"alpha": alpha}, judge=celu_of_torch) for alpha in (0.5, 1.0, 2.0)),
    *(act(op) for op in ("Relu", "Sigmoid", "Tanh", "Erf", "Softplus", "Softsign", "Mish", "Selu", "Gelu")),
    *(act(op) for op in ("Elu", "LeakyRelu", "HardSigmoid", "ThresholdedRelu", "Shrink")),
    act("Gelu", approximate="tanh"),
    *(act("LeakyRelu", alpha=alpha) for alpha in (0.25, 0.0, 1.0, 1.5, -0.5)),
    *(act("Elu", alpha=alpha) for alpha in (0.5, 2.0)),
    act("Selu", alpha=1.5, gamma=0.75),
    act("HardSigmoid", alpha=0.25, beta=0.625),
    *(act("ThresholdedRelu", alpha=alpha) for alpha in (0.1, -0.1)),
    act("Shrink", lambd=1.0, bias=0.5),
    act("Shrink", lambd=0.2, bias=0.0),
    Case("HardSwish", [np.linspace(-4.1, 4.2, 12).reshape(3, 4)]),
    *(Case("PRelu", [away(2, 3, 4, 5), RNG.standard_normal(shape)]) for shape in ((3, 1, 1), (1,), (2, 3, 4, 5), ())),
    Case("PRelu", [away(2, 3, 4), RNG.standard_normal((3, 1))], fixed=[1]),
    act("Gelu", MICROSOFT),
    act("QuickGelu", MICROSOFT),
    act("QuickGelu", MICROSOFT, alpha=1.0),
    act("FastGelu", MICROSOFT),
    Case("FastGelu", [away(2, 3, 4), away(4)], domain=MICROSOFT),
    Case("BiasGelu", [away(2, 3, 4), away(4)], domain=MICROSOFT),
]


def name_of(case: Case) -> str:
    attributes = "".join(f"-{name}={value}" for name, value in case.attributes.items())
    return f"{case.domain or 'onnx'}:{case.op_type}{attributes}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_gradients(case: Case) -> None:
    check(case)


WITH_TORCH: dict[str, tuple[dict[str, Any], Callable[[Any, Any], Any]]] = {
    "Relu": ({}, lambda f, x: f.relu(x)),
    "LeakyRelu": ({"alpha": 0.1}, lambda f, x: f.leaky_relu(x, 0.1)),
    "Sigmoid": ({}, lambda f, x: f.sigmoid(x)),
    "Tanh": ({}, lambda f, x: f.tanh(x)),
    "Gelu": ({}, lambda f, x: f.gelu(x)),
    "Elu": ({"alpha": 0.7}, lambda f, x: f.elu(x, 0.7)),
    "Selu": ({}, lambda f, x: f.selu(x)),
    "Celu": ({"alpha": 0.7}, lambda f, x: f.celu(x, 0.7)),
    "Softplus": ({}, lambda f, x: f.softplus(x)),
    "Softsign": ({}, lambda f, x: f.softsign(x)),
    "HardSwish": ({}, lambda f, x: f.hardswish(x)),
    "HardSigmoid": ({"alpha": 1 / 6}, lambda f, x: f.hardsigmoid(x)),
    "Mish": ({}, lambda f, x: f.mish(x)),
    "ThresholdedRelu": ({"alpha": 0.5}, lambda f, x: f.threshold(x, 0.5, 0)),
    "Shrink": ({"lambd": 0.5, "bias": 0.5}, lambda f, x: f.softshrink(x, 0.5)),
}


@pytest.mark.parametrize("op_type", WITH_TORCH)
def test_torch_agrees(op_type: str) -> None:
    torch = pytest.importorskip("torch")
    attributes, function = WITH_TORCH[op_type]
    values = np.concatenate([away(3, 7).ravel(), [-60, 60, -4, 4, -1e4, 1e4]])
    check_with_torch(Case(op_type, [values], attributes), lambda x: function(torch.nn.functional, x))


def test_torch_agrees_on_tanh_gelu_and_prelu() -> None:
    torch = pytest.importorskip("torch")
    wide = np.linspace(-30, 30, 41)
    check_with_torch(
        Case("Gelu", [wide], {"approximate": "tanh"}), lambda x: torch.nn.functional.gelu(x, approximate="tanh")
    )
    inputs = [away(2, 3, 4), RNG.standard_normal((3, 1))]
    check_with_torch(Case("PRelu", inputs), lambda x, slope: torch.nn.functional.prelu(x, slope.reshape(3)))


@pytest.mark.parametrize(("op_type", "at_zero"), [("Relu", 0), ("LeakyRelu", 0.25)])
def test_the_slope_at_zero_is_the_one_of_torch(op_type: str, at_zero: float) -> None:
    attributes = {"alpha": 0.25} if op_type == "LeakyRelu" else {}
    values = np.array([0.0, -1, 1, 1e-37])
    grad = differentiate(Case(op_type, [values], attributes), np.float32, RULES, runtime)[0]
    flowed = differentiate(Case("Identity", [values]), np.float32, RULES, runtime)[0]
    np.testing.assert_allclose(grad, flowed * [at_zero, at_zero, 1, 1], rtol=1e-6)


@pytest.mark.parametrize("op_type", ["Relu", "Sigmoid", "Tanh", "Elu", "Selu", "LeakyRelu", "HardSigmoid", "Softsign"])
def test_the_input_may_die_where_the_result_tells_the_slope(op_type: str) -> None:
    model, _ = build(act(op_type), np.float32, RULES, gradients=True)
    readers = [node.op_type for node in model.graph.node if "x0" in node.input]
    assert readers == [op_type]
