"""Resize and Upsample in slabs: every axis is exact, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.splitting.sliced_op import NCHWC, OneOp, block_size, check_slices

COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
NOTHING = np.zeros(0, np.float32)  # opset 11 wants all inputs


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def by_scales(x: np.ndarray, scales: tuple[float, ...], opset: int = 19, **attributes: Any) -> OneOp:
    return OneOp("Resize", (x, NOTHING, np.array(scales, np.float32)), attributes, weights=(1, 2), opset=opset)


def by_sizes(x: np.ndarray, sizes: tuple[int, ...], opset: int = 19, **attributes: Any) -> OneOp:
    return OneOp("Resize", (x, NOTHING, NOTHING, np.array(sizes, np.int64)), attributes, weights=(1, 2, 3), opset=opset)


@pytest.mark.parametrize("opset", [11, 19])
@pytest.mark.parametrize("factor", [2, 3, 5])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_nearest_by_whole_factors(coordinates, factor, opset):
    x = values(3, 2, 9, 7)
    is_exact = coordinates in COORDINATES[:3]
    for nearest in NEAREST:
        attributes = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": nearest}
        op = by_scales(x, (1, 1, factor, factor), opset, **attributes)
        outcome = check_slices(op, 2)
        assert outcome.all_exact if is_exact else outcome.all_refused
        assert check_slices(op, 0).all_exact
        assert check_slices(op, 1).all_exact
    assert check_slices(by_sizes(x, (3, 2, 9 * factor, 7), opset, **attributes), 2).all_exact == is_exact
    assert check_slices(by_sizes(x, (3, 2, 9 * factor, 7), opset, **attributes), 3).all_exact


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("coordinates", COORDINATES[:3])
def test_linear_by_powers_of_two(coordinates, factor):
    attributes = {"mode": "linear", "coordinate_transformation_mode": coordinates}
    for shape, scales in (((2, 3, 9, 7), (1, 1, factor, factor)), ((2, 2, 5, 4, 6), (1, 1, factor, factor, 2))):
        op = by_scales(values(*shape), scales, **attributes)
        assert all(check_slices(op, axis).all_exact for axis in (0, 1, 2, 3, len(shape) - 1))
    sized = by_sizes(values(2, 3, 9, 7), (2, 3, 9 * factor, 14), **attributes)
    assert check_slices(sized, 2).all_exact
    assert check_slices(sized, 3).all_exact


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("coordinates", COORDINATES[:3])
def test_shrinking_by_powers_of_two(coordinates, mode):
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    for divisor in (2, 4):
        op = by_scales(values(2, 3, 21, 16), (1, 1, 1 / divisor, 1 / divisor), **attributes)
        assert check_slices(op, 2).all_exact
        assert check_slices(op, 3).all_exact


@settings(max_examples=150)
@given(st.data())
def test_whatever_is_not_refused_is_exact(data):
    mode = data.draw(st.sampled_from(["nearest", "linear", "cubic"]))
    attributes: dict[str, Any] = {"mode": mode}
    attributes["coordinate_transformation_mode"] = data.draw(st.sampled_from(COORDINATES))
    attributes["nearest_mode"] = data.draw(st.sampled_from(NEAREST))
    if mode != "nearest" and data.draw(st.booleans()):
        attributes["antialias"] = 1
    sizes = data.draw(st.tuples(st.integers(3, 12), st.integers(3, 12)))
    x = values(2, 2, *sizes)
    if data.draw(st.booleans()):
        scale = st.sampled_from([1.0, 2.0, 3.0, 0.5, 1.5, 0.7, 4.0])
        op = by_scales(x, (1, 1, data.draw(scale), data.draw(scale)), **attributes)
    else:
        op = by_sizes(x, (2, 2, data.draw(st.integers(3, 30)), data.draw(st.integers(3, 30))), **attributes)
    check_slices(op, data.draw(st.integers(0, 3)))


def test_what_cannot_be_shifted_is_refused():
    x = values(1, 2, 9, 8)
    assert check_slices(by_scales(x, (1, 1, 2, 2), mode="cubic"), 2).all_refused
    assert check_slices(by_scales(x, (1, 1, 3, 3), mode="linear"), 2).all_refused
    assert check_slices(by_sizes(x, (1, 2, 14, 13), mode="nearest"), 2).all_refused
    assert check_slices(by_scales(x, (1, 1, 0.5, 0.5), mode="linear", antialias=1), 2).all_refused


def test_factors_known_only_at_run_time_are_refused():
    op = OneOp("Resize", (values(1, 2, 9, 8), None, np.array([1, 1, 2, 2], np.float32)), {"mode": "nearest"})
    assert check_slices(op, 2).all_refused


def test_named_axes():
    x = values(2, 3, 9, 8)
    op = by_sizes(x, (18, 24), axes=[2, 3], mode="nearest")
    assert check_slices(op, 2).all_exact
    assert check_slices(op, 3).all_exact
    assert check_slices(op, 0).all_exact
    assert check_slices(by_scales(x, (2.0,), axes=[-1], mode="linear"), 3).all_exact


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("opset", [7, 9, 10])
def test_older_forms(opset, mode):
    x, scales = values(2, 3, 9, 8), [1.0, 1.0, 2.0, 4.0]
    kind = "Resize" if opset == 10 else "Upsample"
    if opset == 7:
        op = OneOp(kind, (x,), {"mode": mode, "scales": scales}, opset=opset)
    else:
        op = OneOp(kind, (x, np.array(scales, np.float32)), {"mode": mode}, weights=(1,), opset=opset)
    assert all(check_slices(op, axis).all_exact for axis in range(4))


@pytest.mark.parametrize(
    ("mode", "coordinates"),
    [("nearest", "asymmetric"), ("linear", "asymmetric"), ("linear", "half_pixel"), ("linear", "align_corners")],
)
def test_blocked_upsampling(mode, coordinates):
    attributes = {"scales": [1, 1, 2, 4], "mode": mode, "coordinate_transformation_mode": coordinates}
    op = OneOp("Upsample", (values(2, 2 * block_size(), 9, 7),), attributes, domain=NCHWC, opset=1)
    is_exact = coordinates != "align_corners"
    assert check_slices(op, 0).all_exact
    assert check_slices(op, 1).all_refused
    assert check_slices(op, 2).all_exact == is_exact
    assert check_slices(op, 3).all_exact == is_exact


def test_blocked_upsampling_by_three():
    x = values(2, block_size(), 9, 7)
    nearest = OneOp("Upsample", (x,), {"scales": [1, 1, 3, 3], "mode": "nearest"}, domain=NCHWC, opset=1)
    assert check_slices(nearest, 2).all_exact
