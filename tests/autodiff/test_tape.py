"""Ops as they are written: their types at once, and nothing spread out that a reader can broadcast."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from remat_cli.autodiff.tape import Tape, shape_of


def real(name: str, *shape: int) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))


@pytest.mark.parametrize(
    ("narrow", "wide", "other", "reads_narrow"),
    [
        ((2, 1), (2, 3), (2, 3), True),
        ((), (2, 3), (3,), False),
        ((1, 3), (2, 3), (2, 1), True),
        ((2, 1), (2, 3), (), False),
    ],
)
@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div"])
def test_the_source_of_an_expand_is_read_where_the_result_stays_the_same(
    op_type: str, narrow: Any, wide: Any, other: Any, reads_narrow: bool
) -> None:
    tape, source = Tape(), real("x", *narrow)
    spread = tape.op("Expand", source, tape.ints(*wide))
    for operands in ((spread, real("y", *other)), (real("y", *other), spread)):
        result = tape.op(op_type, *operands)
        node = result.producer()
        assert node is not None
        assert shape_of(result) == wide
        assert (source in node.inputs) == reads_narrow
        assert (spread in node.inputs) != reads_narrow


def test_one_of_two_expands_stays() -> None:
    tape = Tape()
    first, second = (tape.op("Expand", real(name, 1, 1), tape.ints(2, 3)) for name in "ab")
    assert shape_of(tape.op("Mul", first, second)) == (2, 3)


def test_scalars_have_the_type_of_their_neighbour() -> None:
    tape = Tape()
    half = ir.Value(name="h", type=ir.TensorType(ir.DataType.FLOAT16), shape=ir.Shape(()))
    assert tape.scalar(0.5, half).dtype == ir.DataType.FLOAT16
    assert tape.constant(np.zeros(2)) is tape.constant(np.zeros(2))
    assert tape.constant(np.zeros(2)) is not tape.constant(np.zeros(2, np.float32))
