"""Gradients of Resize against finite differences, the runtime's own forward pass, and torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from remat_cli.autodiff.rules import RULES
from remat_cli.base.errors import ModelError
from tests.autodiff.rule_case import Case, build, check, check_with_torch, cotangent, differentiate, runtime

RNG = np.random.default_rng(0)
TRANSFORMATIONS = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


def scaled(shape: Sequence[int], scales: Sequence[float], mode: str, **attributes: Any) -> Case:
    inputs = [RNG.standard_normal(shape), None, np.array(scales, np.float32)]
    return Case("Resize", inputs, {"mode": mode, **attributes}, fixed=(2,))


def sized(shape: Sequence[int], sizes: Sequence[int], mode: str, **attributes: Any) -> Case:
    return Case("Resize", [RNG.standard_normal(shape), None, None, np.array(sizes)], {"mode": mode, **attributes})


def name_of(case: Case) -> str:
    return "-".join([*map(str, np.shape(case.inputs[0])), *map(str, case.attributes.values())])


SCALED = [
    scaled((1, 2, 3, 4), (1, 1, 2, 2), "nearest"),
    scaled((1, 1, 5, 7), (1, 1, 0.6, 1.3), "nearest"),
    scaled((1, 1, 5, 7), (1, 1, 0.6, 1.3), "nearest", coordinate_transformation_mode="half_pixel_symmetric"),
    scaled((1, 1, 5, 7), (1, 1, 1.7, 0.45), "linear", coordinate_transformation_mode="half_pixel_symmetric"),
    scaled((1, 1, 5, 7), (1, 1, 1.7, 0.45), "linear"),
    scaled((1, 1, 5, 4), (1, 1, 2, 3), "linear", coordinate_transformation_mode="asymmetric"),
    scaled((2, 1, 5, 7), (1, 1, 1.7, 2), "cubic"),
]
CASES = [
    sized((1, 2, 3, 4), (1, 2, 6, 8), "nearest"),
    sized((1, 2, 3, 4), (1, 2, 9, 8), "nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    sized((1, 2, 3, 4), (1, 2, 7, 9), "nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    sized((1, 1, 8, 6), (1, 1, 4, 3), "nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    sized((2, 3, 5), (2, 3, 10), "nearest"),
    sized((2, 5, 3), (9,), "linear", axes=[1]),
    sized((1, 2, 3, 4), (1, 2, 6, 8), "linear"),
    sized((1, 2, 5, 4), (1, 2, 10, 12), "linear", coordinate_transformation_mode="align_corners"),
    sized((1, 2, 5, 4), (1, 2, 10, 12), "linear", coordinate_transformation_mode="asymmetric"),
    sized((1, 2, 5, 4), (1, 2, 3, 7), "linear", coordinate_transformation_mode="pytorch_half_pixel"),
    sized((1, 2, 2, 3, 4), (1, 2, 3, 5, 8), "linear"),
    sized((1, 2, 3, 4), (6, 9), "linear", axes=[2, 3], keep_aspect_ratio_policy="not_larger"),
    sized((1, 1, 4, 5), (1, 1, 8, 7), "cubic"),
    sized((1, 1, 4, 5), (1, 1, 8, 3), "cubic", cubic_coeff_a=-0.5, exclude_outside=1),
    sized((1, 2, 3, 4), (1, 2, 3, 4), "linear"),
]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_gradients(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("sizes", [(1, 1, 12, 10), (1, 1, 9, 13), (1, 1, 4, 3), (1, 1, 1, 7)])
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("mode", [*ROUNDINGS, "linear", "cubic"])
def test_gradients_are_the_transpose_of_what_the_runtime_does(
    sizes: Sequence[int], transformation: str, mode: str
) -> None:
    """All kinds of coordinates and roundings, up and down: resizing is linear, so unit vectors tell all of it."""
    kind = {"mode": "nearest", "nearest_mode": mode} if mode in ROUNDINGS else {"mode": mode}
    _check_transpose(sized((1, 1, 6, 5), sizes, coordinate_transformation_mode=transformation, **kind))


@pytest.mark.parametrize("case", SCALED, ids=name_of)
def test_scales_are_taken_as_the_runtime_takes_them(case: Case) -> None:
    _check_transpose(case)


def _check_transpose(case: Case) -> None:
    grad = differentiate(case, np.float32, RULES, runtime)[0]
    model, _ = build(case, np.float32, RULES, gradients=False)
    units = np.eye(grad.size, dtype=np.float32).reshape(grad.size, *grad.shape)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    moved = np.stack([session.run(None, {"x0": unit})[0] for unit in units])
    expected = (moved * cotangent(moved.shape[1:], np.float32)).reshape(grad.size, -1).sum(1)
    np.testing.assert_allclose(grad.reshape(-1), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("factors", [(2, 2), (1.5, 2.5), (0.5, 3), (0.7, 1.3)])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_gradients_are_those_of_torch(factors: tuple[float, float], mode: str) -> None:
    torch = pytest.importorskip("torch")
    kind: dict[str, Any] = {"mode": "linear"}
    if mode == "nearest":
        kind = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    case = scaled((1, 2, 6, 8), (1, 1, *factors), **kind)
    check_with_torch(case, lambda x: torch.nn.functional.interpolate(x, scale_factor=factors, mode=mode))


@pytest.mark.parametrize(
    ("case", "written"),
    [
        (scaled((1, 2, 3, 4), (1, 1, 2, 2), "nearest"), ["Reshape", "ReduceSum"]),
        (scaled((1, 2, 3, 4), (1, 1, 1, 2), "linear"), ["MatMul"]),
        (scaled((1, 2, 3, 4), (1, 1, 1, 1), "linear"), []),
    ],
    ids=lambda part: name_of(part) if isinstance(part, Case) else "",
)
def test_cheap_forms_are_written(case: Case, written: list[str]) -> None:
    model, _ = build(case, np.float32, RULES, gradients=True)
    assert [node.op_type for node in model.graph.node if "/grad/" in node.name] == written


def test_the_axis_that_shrinks_most_goes_first() -> None:
    model, _ = build(scaled((1, 1, 4, 4), (1, 1, 4, 2), "linear"), np.float32, RULES, gradients=True)
    shapes = {tuple(w.dims) for w in model.graph.initializer}
    first = next(node for node in model.graph.node if node.op_type == "MatMul")
    assert tuple(next(w.dims for w in model.graph.initializer if w.name == first.input[0])) == (4, 16), shapes


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"antialias": 1}, "antialias=1"),
        ({"coordinate_transformation_mode": "tf_crop_and_resize"}, "tf_crop_and_resize"),
    ],
)
def test_what_has_no_gradient_is_refused(attributes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=rf"op 'op' \(Resize\): no gradient is known for .*{reason}"):
        build(sized((1, 1, 6, 6), (1, 1, 3, 3), "linear", **attributes), np.float32, RULES, gradients=True)
