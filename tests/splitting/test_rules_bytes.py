"""Attention and tables in bytes, and attention with a past, in slabs: random shapes, scales and zero points."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.splitting.op_cases import contrib
from tests.splitting.sliced_op import Array, OneOp, check_slices

CONTRIB = "com.microsoft"
FEW = settings(deadline=None, max_examples=12)
SEEDS, THREADS = st.integers(0, 2**32 - 1), st.sampled_from((1, 2, 4, 8))


def in_bytes(dice: np.random.Generator, kind: type, *shape: int) -> Array:
    info = np.iinfo(kind)
    return dice.integers(info.min, info.max + 1, shape).astype(kind)


def scale(dice: np.random.Generator, count: int = 0) -> Array:
    """One, or one of each of so many, of all magnitudes."""
    found = 10 ** dice.uniform(-4, 0, max(1, count))
    return found.astype(np.float32) if count else np.array(found[0], np.float32)


def lengths_of(dice: np.random.Generator, items: int, length: int) -> Array:
    return dice.integers(1, length + 1, items).astype(np.int32)


@FEW
@given(SEEDS, st.integers(2, 5), st.sampled_from((1, 7, 33, 128)), st.sampled_from((8, 32)), THREADS)
def test_attention_in_bytes_goes_by_items(seed: int, items: int, length: int, size: int, threads: int) -> None:
    dice = np.random.default_rng(seed)
    kind = dice.choice((np.uint8, np.int8))
    heads, read = int(dice.choice((1, 3, 4))), int(dice.choice((16, 24, 65)))
    columns = 3 * heads * size
    each = columns if dice.integers(2) and kind is np.int8 else 0
    mask = None
    if dice.integers(2):
        mask = lengths_of(dice, items, length)
        if dice.integers(2):
            mask = (np.arange(length) < mask[:, None]).astype(np.int32)
    points = np.array(dice.integers(0, 256), np.uint8), in_bytes(dice, kind, *(() if each == 0 else (each,)))
    inputs = (
        in_bytes(dice, np.uint8, items, length, read),
        in_bytes(dice, kind, read, columns),
        dice.standard_normal(columns).astype(np.float32),
        *(scale(dice), scale(dice, each)),
        mask,
        *points,
    )
    op = contrib("QAttention", *inputs, weights=(1,), num_heads=heads, unidirectional=int(dice.integers(2)))
    assert check_slices(op, 0, threads=threads).all_exact
    assert check_slices(op, 1, threads=threads).all_refused


@FEW
@given(SEEDS, st.integers(2, 5), st.sampled_from((2, 7, 33)), st.sampled_from((16, 65)), THREADS)
def test_embeddings_in_bytes_go_by_items(seed: int, items: int, length: int, size: int, threads: int) -> None:
    dice = np.random.default_rng(seed)
    words, segments = (dice.integers(0, count, (items, length)).astype(np.int32) for count in (40, 2))
    rows = (40, length, 2)
    kind = np.uint8
    tables = [in_bytes(dice, kind, count, size) for count in rows]
    norms = [in_bytes(dice, kind, size) for _ in range(2)]
    mask = (np.arange(length) < lengths_of(dice, items, length)[:, None]).astype(np.int32)
    scales, points = [scale(dice) for _ in range(5)], [in_bytes(dice, kind) for _ in range(5)]
    inputs = (words, segments, *tables, *norms, mask, *scales, *points)
    weights = (*range(2, 7), *range(8, 18))
    op = OneOp("QEmbedLayerNormalization", inputs, {}, weights, CONTRIB, 1, (True, True))
    assert check_slices(op, 0, threads=threads).all_exact
    assert check_slices(op, 1, threads=threads).all_refused  # how many words an item has is told of all of them


@FEW
@given(SEEDS, st.sampled_from((4, 8)), st.sampled_from((16, 32, 64)), st.booleans(), THREADS)
def test_tables_in_blocks_go_by_places(seed: int, bits: int, block: int, has_points: bool, threads: int) -> None:
    dice = np.random.default_rng(seed)
    rows, blocks = int(dice.integers(3, 60)), int(dice.integers(1, 5))
    table = in_bytes(dice, np.uint8, rows, blocks * block * bits // 8)
    places = dice.integers(0, rows, tuple(dice.integers(2, 9, int(dice.integers(1, 4))))).astype(np.int64)
    assume(not has_points or (blocks * bits) % 8 == 0)
    points = in_bytes(dice, np.uint8, rows, blocks * bits // 8) if has_points else None
    scales = np.stack([scale(dice, blocks) for _ in range(rows)])
    op = contrib(
        "GatherBlockQuantized",
        *(table, places, scales, points)[: 4 if has_points else 3],
        weights=(0, 2, 3),
        bits=bits,
        block_size=block,
        gather_axis=0,
        quantize_axis=1,
    )
    for axis in range(places.ndim):
        assert check_slices(op, axis, threads=threads).all_exact
    assert check_slices(op, places.ndim, threads=threads).all_refused


@FEW
@given(SEEDS, st.integers(2, 4), st.sampled_from((1, 2, 33, 130)), st.sampled_from((1, 17, 200)), THREADS)
def test_attention_with_a_past_goes_by_items(seed: int, items: int, length: int, past: int, threads: int) -> None:
    dice = np.random.default_rng(seed)
    heads, size, total = int(dice.choice((2, 6))), int(dice.choice((8, 40))), past + length

    def drawn(*shape: int) -> Array:
        return dice.standard_normal(shape).astype(np.float32)

    inputs = (
        *(drawn(items, length, heads * size) for _ in range(3)),
        drawn(3 * heads * size) if dice.integers(2) else None,
        (dice.random((items, total)) < 0.8).astype(np.int32) if dice.integers(2) else None,
        drawn(int(dice.choice((1, items))), int(dice.choice((1, heads))), length, total) if dice.integers(2) else None,
        *(drawn(items, heads, past, size) for _ in range(2)),
    )
    attributes = {"num_heads": heads, "unidirectional": int(dice.integers(2))}
    op = OneOp("MultiHeadAttention", inputs, attributes, (3,), CONTRIB, 1, (True,) * 3)
    assert check_slices(op, 0, threads=threads).all_exact
    assert check_slices(op, 1, threads=threads).all_refused
