"""Scores by distance that are shifted row by row run in loops, with the bits of the whole, however they are written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from remat_cli.core.values.sizes import SizeFamily, SizeRange
from tests.splitting.looped_model import LoopedModel
from tests.splitting.test_looped_models import Build

HEADS, WIDTH, MOST = 2, 4, 40
SIZES = [40, 1, 2, 3, 40, 17, 8, 1, 33, 40]


def lengths(build: Build, value: str, *axes: int) -> list[str]:
    """Lengths of a tensor, each as one number in a list."""
    return [build.op("Gather", build.op("Shape", value), build.weight([axis])) for axis in axes]


def padded(build: Build, scores: str) -> str:
    """As NeMo writes it."""
    return build.op("Pad", scores, build.weight([0, 0, 0, 1, 0, 0, 0, 0]), build.weight(0, np.float32))


def joined(build: Build, scores: str) -> str:
    """As ESPnet and Transformers write it: a column of zeros before them."""
    b, h, rows = lengths(build, scores, 0, 1, 2)
    shape = build.op("Concat", b, h, rows, build.weight([1]), axis=0)
    return build.op("Concat", build.op("Expand", build.weight([[[[0]]]], np.float32), shape), scores, axis=-1)


def shifted(longer: Callable[[Build, str], str]) -> Callable[[Build, str], str]:
    def make(build: Build, scores: str) -> str:
        b, h, rows, columns = lengths(build, scores, 0, 1, 2, 3)
        more = build.op("Add", columns, build.weight([1]))
        made = build.op("Reshape", longer(build, scores), build.op("Concat", b, h, more, rows, axis=0))
        made = build.op("Slice", made, build.weight([1]), build.weight([2**31]), build.weight([2]))
        made = build.op("Reshape", made, build.op("Concat", b, h, rows, columns, axis=0))
        return build.op("Slice", made, build.weight([0]), rows, build.weight([3]), build.weight([1]))

    return make


def attention(build: Build, shift: Callable[[Build, str], str]) -> str:
    """Heads that look at all positions, by what is there and by how far away it is."""
    (length,) = lengths(build, "x", 1)
    places = build.normal(1, 2 * MOST - 1, HEADS * WIDTH)
    first = build.op("Sub", build.weight([MOST]), length)
    last = build.op("Sub", build.op("Add", build.weight([MOST]), length), build.weight([1]))
    places = build.op("Slice", places, first, last, build.weight([1]))
    split = build.weight([0, -1, HEADS, WIDTH])
    parts = (build.op("Reshape", each, split) for each in ("x", "x", places))
    turns = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 3, 1])
    query, key, place = (build.op("Transpose", each, perm=turn) for each, turn in zip(parts, turns, strict=True))
    scores = build.op("Add", build.op("MatMul", query, key), shift(build, build.op("MatMul", query, place)))
    value = build.op("Transpose", build.op("Reshape", "x", split), perm=[0, 2, 1, 3])
    return build.op("MatMul", build.op("Softmax", scores), value)


@pytest.mark.parametrize("batch", [1, "b"])
@pytest.mark.parametrize("longer", [padded, joined])
def test_a_shift_of_relative_positions_runs_row_by_row(batch, longer):
    build = Build()
    made = attention(build, shifted(longer))
    model = build.model([batch, "n", HEADS * WIDTH], made)
    ranges = (SizeRange("n", 1, MOST), *((SizeRange("b", 1, 3),) if batch == "b" else ()))
    looped = LoopedModel(model, SizeFamily(ranges), least_bytes=4 * HEADS * MOST * MOST)
    assert {"GatherElements", "Softmax"} <= looped.cut
    looped.check([{"n": size, "b": 1 + size % 3} for size in SIZES], rows=16)


def test_what_only_looks_like_a_shift_is_left_alone():
    """Columns from the second on are no rows of what was shifted."""

    def other(build: Build, scores: str) -> str:
        shifted(padded)(build, scores)
        turned = build.nodes.pop().input[0]
        last = build.op("Add", lengths(build, scores, 2)[0], build.weight([1]))
        return build.op("Slice", turned, build.weight([1]), last, build.weight([3]), build.weight([1]))

    build = Build()
    made = attention(build, other)
    model = build.model([1, "n", HEADS * WIDTH], made)
    looped = LoopedModel(model, SizeFamily((SizeRange("n", 2, MOST),)))
    assert "GatherElements" not in {node.op_type for node in looped.sized.view.model.graph}
