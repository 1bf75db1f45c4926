"""Close is what another order of adding up explains, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from remat_cli.runtime.verify.likeness import are_close, are_same_bits, have_same_bits, likeness

NAN, INF = np.nan, np.inf


def floats(*numbers: float, dtype: str = "float32") -> np.ndarray:
    return np.array(numbers, dtype)


@pytest.mark.parametrize(
    ("original", "other", "is_close", "error"),
    [
        (floats(1, -100), floats(1, -100), True, 0.0),
        (floats(1, -100), floats(1.009, -100), True, 0.9e-4),
        (floats(1, -100), floats(1.011, -100), False, 1.1e-4),
        (floats(0, 0), floats(-0.0, 0), True, 0.0),
        (floats(0, 0), floats(0, 0.9e-6), True, None),
        (floats(0, 0), floats(0, 2e-6), False, None),
        (floats(NAN, INF, 1), floats(NAN, INF, 1), True, 0.0),
        (floats(NAN, 1), floats(1, 1), False, None),
        (floats(1, 1), floats(NAN, 1), False, None),
        (floats(INF, 1), floats(-INF, 1), False, None),
        (floats(1, 1), floats(INF, 1), False, None),
        (floats(1, 2, dtype="float64"), floats(1, 2.0001, dtype="float64"), True, 0.5e-4),
        (floats(1, 2), floats(1, 2, dtype="float64"), False, None),
        (floats(1, 2), floats(1, 2).reshape(2, 1), False, None),
        (np.array([10**6, 5]), np.array([10**6, 6]), False, None),
        (np.array([10**6, 5]), np.array([10**6, 5]), True, 0.0),
        (np.array([True]), np.array([False]), False, None),
        (np.array(["a", "b"], object), np.array(["a", "b"], object), True, 0.0),
        (np.array([], np.float32), np.array([], np.float32), True, 0.0),
        ([floats(1)], [floats(1)], True, 0.0),
        ([floats(1)], [floats(2)], False, None),
    ],
)
def test_one_output(original, other, is_close, error):
    assert are_close(original, other) is is_close
    found = likeness({"y": original}, {"y": other})
    assert found.are_close is is_close
    assert found.relative_error == (error if error is None else pytest.approx(error, rel=0.01))


def test_the_worst_output_counts():
    whole = {"a": floats(1), "b": floats(100)}
    found = likeness(whole, {"a": floats(1.00001), "b": floats(100.5)})
    assert not found.are_close
    assert found.relative_error == pytest.approx(0.005)
    assert likeness(whole, {"a": floats(1.00005), "b": floats(100)}).relative_error == pytest.approx(5e-5, rel=0.01)
    assert not likeness(whole, {"a": floats(1)}).are_close


def test_bits_are_told_apart():
    assert not are_same_bits(floats(0.0), floats(-0.0))
    assert are_same_bits(floats(NAN), floats(NAN))
    assert not are_same_bits(floats(0.0), np.array([0], np.int32))
    assert are_same_bits(np.array(["long text" * 9], object), np.array(["long text" * 9], object))
    assert have_same_bits({"a": floats(1)}, {"a": floats(1)})
    assert not have_same_bits({"a": floats(1)}, {"b": floats(1)})
    assert not have_same_bits({"a": floats(1)}, {"a": floats(1), "b": floats(1)})


def test_types_that_numpy_lacks_are_floats():
    import ml_dtypes

    whole = np.array([1, 256], ml_dtypes.bfloat16)
    assert likeness({"y": whole}, {"y": whole.copy()}).relative_error == 0.0
    assert not are_close(whole, np.array([1, 260], ml_dtypes.bfloat16))
