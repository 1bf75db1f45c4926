"""Slabs that add up in another order than the whole: refused by default, close to the whole where that is allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.splitting.tiles.op_view import Slab
from tests.splitting.sliced_op import NCHWC, OneOp, block_size, check_close, check_slices, run

CONTRIB = "com.microsoft"
THREADS = (1, 2, 4)


def noise(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def convolution(channels: int, kernel: int, group: int = 1, **attributes: Any) -> OneOp:
    inputs = (noise(1, channels, 24, 20), noise(6 * group, channels // group, kernel, kernel))
    return OneOp("Conv", inputs, {"pads": [kernel // 2] * 4, "group": group, **attributes}, weights=(1,))


def transposed(channels: int) -> OneOp:
    inputs = (noise(1, channels, 12, 9), noise(channels, 4, 2, 2))
    return OneOp("ConvTranspose", inputs, {"strides": [2, 2]}, weights=(1,))


def padded_point() -> OneOp:
    block = block_size()
    inputs = (noise(1, 2 * block, 9, 8), noise(block, 2 * block, 1, 1))
    return OneOp("Conv", inputs, {"pads": [1] * 4}, weights=(1,), domain=NCHWC, opset=1)


def zeros_of_both_signs(*shape: int) -> np.ndarray:
    return np.where(noise(*shape) > 0, np.float32(0.0), np.float32(-0.0))


def attention(queries: int, op_type: str, **more: Any) -> OneOp:
    inputs = (noise(2, queries, 32), noise(2, 40, 32), noise(2, 40, 32))
    return OneOp(op_type, inputs, **more)


REFUSED = {
    "long sums over few positions": (convolution(64, 3), 2),
    "by width": (convolution(64, 3), 3),
    "groups": (convolution(128, 3, group=2), 2),
    "large depthwise kernel": (convolution(8, 7, group=8), 2),
    "spread": (transposed(256), 2),
    "zeros in maxima": (OneOp("MaxPool", (zeros_of_both_signs(2, 3, 9, 10),), {"kernel_shape": [2, 2]}), 3),
    "window of all": (OneOp("AveragePool", (noise(1, 3, 9, 8),), {"kernel_shape": [9, 8], "pads": [0, 0, 3, 0]}), 2),
    "wide rows": (OneOp("AveragePool", (noise(1, 1, 5, 2060),), {"kernel_shape": [3, 3]}), 3),
    "matmul by rows": (OneOp("MatMul", (noise(2, 300, 300), noise(2, 300, 64))), 1),
    "matmul by columns": (OneOp("MatMul", (noise(64, 512), noise(512, 200))), 1),
    "one column": (OneOp("MatMul", (noise(20, 30), noise(30, 1))), 0),
    "doubles": (OneOp("MatMul", (noise(20, 300, dtype=np.float64), noise(300, 40, dtype=np.float64))), 1),
    "activation": (
        OneOp(
            "FusedGemm",
            (noise(50, 70), noise(70, 33)),
            {"activation": "Elu", "activation_alpha": 1.0},
            (1,),
            CONTRIB,
            1,
        ),
        0,
    ),
    "mean over odd lines": (OneOp("ReduceMean", (noise(64, 129), np.array([1])), {}, (1,), opset=18), 0),
    "sum over a middle axis": (OneOp("ReduceSum", (noise(9, 20, 40), np.array([1])), {}, (1,)), 0),
    "one query": (attention(7, "Attention", attributes={"q_num_heads": 4, "kv_num_heads": 4}, opset=23), 1),
    "a block of one query": (
        attention(33, "MultiHeadAttention", attributes={"num_heads": 4}, domain=CONTRIB, opset=1),
        1,
    ),
    "powers": (OneOp("Pow", (np.abs(noise(5, 9)), noise(1, 9))), 1),
    "choice": (OneOp("Where", (noise(5, 9) > 0, noise(5, 1), zeros_of_both_signs(9))), 1),
    "extremum": (OneOp("Max", (zeros_of_both_signs(5, 9), zeros_of_both_signs(9))), 1),
    "local response": (OneOp("LRN", (noise(1, 5, 9, 7),), {"size": 3}), 2),
    "linear by three": (
        OneOp("Resize", (noise(1, 2, 9, 8), None, np.array([1, 1, 3, 3], np.float32)), {"mode": "linear"}, (2,)),
        2,
    ),
    **{
        name: (OneOp(name, (np.abs(noise(3, 17, 9)) / 4,)), 1)
        for name in ("Elu", "Softplus", "Mish", "Log", "Sin", "Cos", "Asin", "Acos", "Atan", "Selu", "Celu")
    },
    "Exp of doubles": (OneOp("Exp", (noise(3, 17, dtype=np.float64),)), 1),
}


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_bits_forbid_is_close(name: str, threads: int) -> None:
    op, axis = REFUSED[name]
    assert check_slices(op, axis, threads=threads).refused
    assert check_close(op, axis, threads=threads) == ()


@pytest.mark.parametrize("threads", THREADS)
def test_blocked_points_with_padding_are_close_where_they_see_the_input(threads: int) -> None:
    slabs = [Slab(2, 0, 4), Slab(2, 3, 7), Slab(2, 6, 11), Slab(2, 1, 2)]
    assert check_slices(padded_point(), 2, slabs, threads).all_refused
    assert check_close(padded_point(), 2, slabs, threads) == ()
    assert check_close(padded_point(), 2, [Slab(2, 0, 1)], threads) == (Slab(2, 0, 1),)


def test_orders_really_differ() -> None:
    """Otherwise nothing above would tell close from equal."""
    op = REFUSED["long sums over few positions"][0]
    image, weight = op.inputs
    assert image is not None
    (whole,) = run(op)
    (part,) = run(OneOp("Conv", (image[:, :, :3], weight), {"pads": [1, 1, 0, 1]}, (1,)))
    assert whole is not None
    assert part is not None
    assert whole[:, :, :2].tobytes() != part.tobytes()
    np.testing.assert_allclose(whole[:, :, :2], part, rtol=0, atol=1e-4 * np.abs(whole).max())


WRONG = {
    "causal": (OneOp("Attention", (noise(2, 3, 20, 8),) * 3, {"is_causal": 1}, opset=23), 2),
    "floats to integers": (OneOp("Cast", (noise(3, 5, 9),), {"to": 12}), 1),
    "channels of LRN": (OneOp("LRN", (noise(1, 5, 9, 7),), {"size": 3}), 1),
    "reduced axis": (OneOp("ReduceSum", (noise(9, 20, 40), np.array([1])), {}, (1,)), 1),
    "columns of a constant": (OneOp("MatMul", (noise(64, 512), noise(512, 200)), weights=(1,)), 1),
    "nearest between rows": (
        OneOp("Resize", (noise(1, 2, 9, 8), None, np.array([1, 1, 1.5, 1.5], np.float32)), {"mode": "nearest"}, (2,)),
        2,
    ),
    "halves": (OneOp("MatMul", (noise(20, 30, dtype=np.float16), noise(30, 20, dtype=np.float16))), 0),
    "integer powers": (OneOp("Pow", (np.arange(45).reshape(5, 9), np.arange(9) % 3)), 1),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_would_be_wrong_is_refused_all_the_same(name: str) -> None:
    op, axis = WRONG[name]
    assert check_slices(op, axis).all_refused
    refused = check_close(op, axis)
    assert refused == check_slices(op, axis).refused


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.data())
def test_pooling_of_any_shape_is_close(data: st.DataObject) -> None:
    kernel, sizes = ([data.draw(st.integers(low, high)) for _ in range(2)] for low, high in ((1, 4), (5, 12)))
    pads = [data.draw(st.integers(0, k - 1)) for k in kernel * 2]
    attributes = {"kernel_shape": kernel, "pads": pads, "strides": [data.draw(st.integers(1, 3)) for _ in range(2)]}
    kind = data.draw(st.sampled_from(("MaxPool", "AveragePool")))
    if kind == "AveragePool":
        attributes |= {"count_include_pad": data.draw(st.integers(0, 1))}
    check_close(OneOp(kind, (noise(2, 2, *sizes),), attributes), data.draw(st.sampled_from((0, 2, 3))))


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.data())
def test_linear_resizing_of_any_shape_is_close(data: st.DataObject) -> None:
    factor = data.draw(st.sampled_from((2, 3, 5, 6, 7)))
    size = data.draw(st.integers(2, 30)) * factor
    target = size * factor if data.draw(st.booleans()) else size // factor
    coordinates = data.draw(st.sampled_from(("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")))
    sizes = np.array([1, 2, target, 6])
    attributes = {"mode": "linear", "coordinate_transformation_mode": coordinates}
    op = OneOp("Resize", (noise(1, 2, size, 6), None, None, sizes), attributes, (3,), opset=19)
    refused = check_close(op, 2)
    assert not refused or coordinates == "align_corners"


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.data())
def test_products_of_any_shape_are_close(data: st.DataObject) -> None:
    rows, columns = (data.draw(st.sampled_from((1, 2, 7, 33, 64, 129))) for _ in range(2))
    depth, batch = data.draw(st.sampled_from((5, 129, 300))), data.draw(st.sampled_from(((), (3,), (2, 3))))
    op = OneOp("MatMul", (noise(*batch, rows, depth), noise(*batch, depth, columns)))
    threads = data.draw(st.sampled_from(THREADS))
    for axis in range(len(batch) + 2):
        assert check_close(op, axis, threads=threads) == ()
