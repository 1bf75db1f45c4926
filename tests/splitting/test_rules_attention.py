from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.splitting.tiles.op_view import Slab
from tests.splitting.sliced_op import Array, OneOp, check_slices

FEW = settings(deadline=None, max_examples=10, derandomize=True)
LENGTHS = st.sampled_from((2, 7, 33, 64, 130))
WIDTHS = st.sampled_from((8, 16, 40))
THREADS = st.sampled_from((1, 2, 4))
CONTRIB = "com.microsoft"


def noise(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@FEW
@given(LENGTHS, LENGTHS, WIDTHS, st.integers(0, 4), THREADS)
def test_attention_of_four_axes(queries: int, keys: int, width: int, mask: int, threads: int) -> None:
    masks = (
        None,
        noise(queries, keys),
        noise(1, queries, keys),
        noise(3, 1, queries, keys),
        noise(3, 4, queries, keys),
    )
    inputs = (noise(3, 4, queries, width), noise(3, 4, keys, width), noise(3, 4, keys, width + 1), masks[mask])
    op = OneOp("Attention", inputs, opset=23)
    assert check_slices(op, 0, threads=threads).all_exact
    assert check_slices(op, 1, threads=threads).all_exact
    outcome = check_slices(op, 2, threads=threads)
    assert outcome.exact
    assert all(slab.extent == 1 for slab in outcome.refused)
    assert check_slices(op, 3).all_refused


@FEW
@given(LENGTHS, LENGTHS, WIDTHS, st.sampled_from((23, 24)), THREADS)
def test_attention_in_half_precision(queries: int, keys: int, width: int, opset: int, threads: int) -> None:
    shapes = ((2, 4, queries, width), (2, 2, keys, width), (2, 2, keys, width), (queries, keys))
    op = OneOp("Attention", tuple(noise(*shape).astype(np.float16) for shape in shapes), opset=opset)
    assert check_slices(op, 0, threads=threads).all_exact
    assert check_slices(op, 1, [Slab(1, 0, 2), Slab(1, 2, 4)], threads=threads).all_exact
    assert all(slab.extent == 1 for slab in check_slices(op, 2, threads=threads).refused)


@FEW
@given(LENGTHS, LENGTHS, WIDTHS, THREADS)
def test_attention_of_three_axes(queries: int, keys: int, width: int, threads: int) -> None:
    inputs = (noise(3, queries, 4 * width), noise(3, keys, 2 * width), noise(3, keys, 2 * width), noise(queries, keys))
    op = OneOp("Attention", inputs, {"q_num_heads": 4, "kv_num_heads": 2}, opset=23)
    assert check_slices(op, 0, threads=threads).all_exact
    assert check_slices(op, 1, threads=threads).exact
    assert check_slices(op, 2).all_refused


def test_heads_that_share_keys_are_cut_in_groups() -> None:
    op = OneOp("Attention", (noise(2, 6, 20, 8), noise(2, 2, 30, 8), noise(2, 2, 30, 8)), opset=23)
    assert check_slices(op, 1, [Slab(1, 0, 3), Slab(1, 3, 6)]).all_exact
    assert check_slices(op, 1, [Slab(1, 0, 2), Slab(1, 1, 4), Slab(1, 5, 6)]).all_refused


def test_causal_attention_is_not_cut_along_queries() -> None:
    op = OneOp("Attention", (noise(2, 3, 20, 8), noise(2, 3, 20, 8), noise(2, 3, 20, 8)), {"is_causal": 1}, opset=23)
    assert check_slices(op, 0).all_exact
    assert check_slices(op, 1).all_exact
    assert check_slices(op, 2).all_refused


def test_attention_whose_keys_are_read_further_is_cut_by_batch_and_heads() -> None:
    inputs = (noise(2, 3, 20, 8), noise(2, 3, 20, 8), noise(2, 3, 20, 8), None, noise(2, 3, 4, 8), noise(2, 3, 4, 8))
    op = OneOp("Attention", inputs, opset=23, outputs=(True, True, True))
    assert check_slices(op, 0).all_exact
    assert check_slices(op, 1).all_exact
    assert check_slices(op, 2).all_refused


@FEW
@given(st.sampled_from((7, 64, 130, 300)), LENGTHS, st.sampled_from((8, 32)), st.booleans(), THREADS)
def test_multi_head_attention(queries: int, keys: int, width: int, has_bias: bool, threads: int) -> None:
    bias = noise(3 * 4 * width) if has_bias else None
    inputs = (noise(2, queries, 4 * width), noise(2, keys, 4 * width), noise(2, keys, 4 * width), bias)
    op = OneOp("MultiHeadAttention", inputs, {"num_heads": 4}, domain=CONTRIB, opset=1)
    assert check_slices(op, 0, threads=threads).exact
    assert check_slices(op, 1, threads=threads).exact


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_attention_with_packed_weights_is_cut_by_batch(threads: int) -> None:
    inputs = (noise(3, 50, 48), noise(48, 96), noise(96))
    op = OneOp("Attention", inputs, {"num_heads": 4}, (1, 2), domain=CONTRIB, opset=1)
    assert check_slices(op, 0, threads=threads).all_exact
    assert check_slices(op, 1).all_refused
