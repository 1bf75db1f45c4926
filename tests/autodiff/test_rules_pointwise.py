"""Gradients of element-wise ops against finite differences and torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from remat_cli.autodiff.reverse import Recorder, write_gradients
from remat_cli.autodiff.rules import RULES
from remat_cli.autodiff.tape import Call, Tape, shape_of
from tests.autodiff.rule_case import Case, check, check_with_torch, differentiate, runtime

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def between(low: float, high: float, *shape: int) -> np.ndarray:
    return RNG.uniform(low, high, shape)


def away(*shape: int) -> np.ndarray:
    """Numbers that are not near 0."""
    return RNG.uniform(0.3, 2, shape) * RNG.choice([-1, 1], shape)


SHAPES = [((2, 3, 4), (3, 1)), ((3, 1), (2, 3, 4)), ((5,), (5,)), ((2, 1, 4), (1, 3, 1)), ((), (2, 1)), ((1, 1), ())]
BROADCAST = [
    *(Case(op, [normal(*a), away(*b)]) for op in ("Add", "Sub", "Mul", "Div") for a, b in SHAPES),
    *(Case("Pow", [between(0.5, 2, *a), normal(*b)]) for a, b in SHAPES),
    *(Case("Mod", [away(*a) * 7, away(*b)], {"fmod": 1}) for a, b in SHAPES),
    *(Case(op, [normal(*a), normal(*b)]) for op in ("Max", "Min") for a, b in SHAPES),
]
UNARY = [
    Case("Abs", [away(2, 3, 5)]),
    Case("Acos", [between(-0.9, 0.9, 7)]),
    Case("Acosh", [between(1.2, 4, 7)]),
    Case("Asin", [between(-0.9, 0.9, 7)]),
    Case("Cast", [np.array([1.0, 2, 3])], {"to": 11}),
    Case("CastLike", [np.array([1.0, 2, 3]), np.array(1.0)], fixed=[1]),
    Case("Asinh", [normal(7)]),
    Case("Atan", [normal(7)]),
    Case("Atanh", [between(-0.9, 0.9, 7)]),
    Case("Cos", [normal(2, 3)]),
    Case("Cosh", [normal(2, 3)]),
    Case("Exp", [normal(2, 3)]),
    Case("Identity", [normal(2, 3)]),
    Case("Log", [between(0.5, 3, 2, 3)]),
    Case("Neg", [normal(2, 3)]),
    Case("Reciprocal", [away(2, 3)]),
    Case("Sin", [normal(2, 3)]),
    Case("Sinh", [normal(2, 3)]),
    Case("Sqrt", [between(0.5, 3, 2, 3)]),
    Case("Tan", [between(-1, 1, 2, 3)]),
]
POWERS = [
    *(Case("Pow", [away(2, 3), np.array(p)], fixed=[1]) for p in (2.0, 3.0, 0.0, 1.0, -1.0, -2.0)),
    *(Case("Pow", [between(0.3, 2, 2, 3), np.array([p])], fixed=[1]) for p in (0.5, -0.5, 1.7)),
    Case("Pow", [between(0.3, 2, 2, 3), np.array([0.0, 0.5, 2.0])], fixed=[1]),
    Case("Pow", [away(2, 3), np.array(2)]),  # an exponent of int64
    Case("Pow", [np.array(2.0), normal(2, 3)], fixed=[0]),
]
BOUNDS = np.array(-0.5), np.array(0.75)
CHOICES = [
    *(Case(op, [normal(2, 3), normal(3), normal(2, 1)]) for op in ("Max", "Min", "Sum", "Mean")),
    *(Case(op, [normal(2, 3), normal(3), normal(2, 1)], fixed=[1]) for op in ("Max", "Min", "Sum", "Mean")),
    *(Case(op, [normal(2, 3), normal(1)], fixed=[place]) for op in ("Max", "Min") for place in (0, 1)),
    *(Case(op, [normal(4)]) for op in ("Max", "Min", "Sum", "Mean")),
    Case("Clip", [normal(4, 5), *BOUNDS], fixed=[1, 2]),
    Case("Clip", [normal(4, 5), None, BOUNDS[1]], fixed=[2]),
    Case("Clip", [normal(4, 5), BOUNDS[0]], fixed=[1]),
    Case("Clip", [normal(4, 5)]),
    *(
        Case("Where", [RNG.integers(0, 2, shape).astype(bool), normal(2, 3), normal(3)], fixed=fixed)
        for shape in ((2, 3), (2, 1), (4, 1, 1))
        for fixed in ((), (1,), (2,))
    ),
]


def name_of(case: Case) -> str:
    shapes = "-".join("x".join(map(str, array.shape)) or "0" for array in case.arrays.values())
    return f"{case.op_type}-{shapes}" + "".join(f"-fixed{place}" for place in case.fixed)


CASES = [*BROADCAST, *UNARY, *POWERS, *CHOICES]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_gradients(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("op_type", ["Abs", "Cos", "Exp", "Neg", "Sin", "Sinh", "Cosh", "Tan", "Asinh", "Atan"])
def test_torch_agrees(op_type: str) -> None:
    torch = pytest.importorskip("torch")
    check_with_torch(Case(op_type, [normal(3, 5)]), getattr(torch, op_type.lower()))


@pytest.mark.parametrize(("op_type", "name"), [("Max", "maximum"), ("Min", "minimum"), ("Pow", "pow"), ("Div", "div")])
def test_torch_agrees_with_broadcasting(op_type: str, name: str) -> None:
    torch = pytest.importorskip("torch")
    check_with_torch(Case(op_type, [between(0.2, 2, 4, 1, 3), between(0.2, 2, 5, 1)]), getattr(torch, name))


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, 1.5])
def test_powers_of_zero_have_the_slopes_of_torch(exponent: float) -> None:
    torch = pytest.importorskip("torch")
    given = Case("Pow", [np.array([0.0, 1, 2]), np.array(exponent)], fixed=[1])
    check_with_torch(given, lambda x: torch.pow(x, exponent))
    computed = Case("Pow", [np.array([0.0, 1, 2]), np.full(3, exponent)])
    check_with_torch(computed, torch.pow)


def gradient_of_sum(case: Case) -> dict[int, np.ndarray]:
    """Gradients in float32 on the runtime, and what flowed in, by place -1."""
    return differentiate(case, np.float32, RULES, runtime)


@pytest.mark.parametrize("op_type", ["Max", "Min"])
def test_ties_give_the_whole_gradient_to_the_first(op_type: str) -> None:
    value = np.array([1.0, 2, 3])
    passed, *others = gradient_of_sum(Case(op_type, [value, value, value])).values()
    alone = gradient_of_sum(Case("Identity", [value]))[0]
    np.testing.assert_array_equal(passed, alone)
    for other in others:
        np.testing.assert_array_equal(other, 0)


ROOTS: dict[str, Callable[[], Case]] = {
    "sqrt": lambda: Case("Sqrt", [np.array([0.0, 4])]),
    "pow": lambda: Case("Pow", [np.array([0.0, 4]), np.array(0.5)], fixed=[1]),
    "asin": lambda: Case("Asin", [np.array([1.0, -1])]),
    "acosh": lambda: Case("Acosh", [np.array([1.0, 2])]),
    "sinh": lambda: Case("Sinh", [np.array([-80.0, 80])]),
}


@pytest.mark.parametrize("name", ROOTS)
def test_infinitely_steep_slopes_stay_finite_for_masks_further_back(name: str) -> None:
    grad = gradient_of_sum(ROOTS[name]())[0]
    assert np.all(np.isfinite(grad))
    assert np.max(np.abs(grad)) > 0


def gradient_ops(calls: Sequence[Call], ends: Sequence[ir.Value], inputs: Sequence[ir.Value], tape: Tape) -> list[str]:
    """Kinds of the ops that the backward pass of some calls consists of."""
    before = len(tape.nodes)
    seeds = {end: tape.constant(np.ones(shape_of(end), np.float32)) for end in ends}
    write_gradients(tape, calls, RULES, seeds, {value: lambda *_: None for value in inputs})
    return [node.op_type for node in tape.nodes[before:]]


def test_a_square_written_as_a_product_is_differentiated_once() -> None:
    tape = Tape()
    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2, 3]))
    recorder = Recorder(tape, RULES, active={value})
    square = recorder.op("Mul", value, value)
    assert gradient_ops(recorder.leading_to([square]), [square], [value], tape) == ["Add", "Mul"]


@pytest.mark.parametrize("to", [1, 11])
def test_cast_goes_back_to_the_type_it_came_from(to: int) -> None:
    value = np.array([1.0, 2, 3])
    grads: Any = gradient_of_sum(Case("Cast", [value], {"to": to}))
    assert grads[0].dtype == np.float32
    np.testing.assert_allclose(grads[0], gradient_of_sum(Case("Identity", [value]))[0], rtol=1e-6)


def test_an_exponent_of_another_type_has_a_gradient_of_its_own() -> None:
    tape = Tape()
    kinds = ((ir.DataType.FLOAT, "x"), (ir.DataType.DOUBLE, "p"))
    base, exponent = (ir.Value(name=name, type=ir.TensorType(kind), shape=ir.Shape([3])) for kind, name in kinds)
    recorder = Recorder(tape, RULES, active={base, exponent})
    power = recorder.op("Pow", base, exponent)
    found: dict[ir.Value, ir.Value] = {}
    seeds = {power: tape.constant(np.ones(3, np.float32))}
    arrived = dict.fromkeys((base, exponent), lambda value, grad: found.update({value: grad}))
    write_gradients(tape, recorder.leading_to([power]), RULES, seeds, arrived)
    assert [found[base].dtype, found[exponent].dtype] == [ir.DataType.FLOAT, ir.DataType.DOUBLE]
