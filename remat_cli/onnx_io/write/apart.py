"""A model without the weights that another one has: what is kept of a model that was made of that one."""

from __future__ import annotations

import zlib

import numpy as np
import onnx
import onnx_ir as ir

MOST_OWN_BYTES = 2**23
"""Of weights of its own: a model with more is not worth keeping."""
NOTHING = np.zeros(0, np.uint8)
"""Stands for a weight of the whole model; no tile makes a constant of no bytes."""


def packed_apart(model: ir.Model, whole: ir.Model) -> bytes | None:
    """The model as bytes, with its own weights but not those of the whole one; None where its own are many."""
    copy = model.clone()
    theirs = whole.graph.initializers
    own_bytes = 0
    for name, value in copy.graph.initializers.items():
        weight = value.const_value
        if weight is None:
            return None
        if name in theirs and theirs[name].const_value is weight:
            value.const_value = ir.tensor(NOTHING, name=name)
        else:
            own_bytes += weight.nbytes
    if own_bytes > MOST_OWN_BYTES:
        return None
    return zlib.compress(ir.to_proto(copy).SerializeToString(deterministic=True))


def unpacked(packed: bytes, whole: ir.Model) -> ir.Model | None:
    """The model again, with the whole one's weights; None where that lacks one of them."""
    model: ir.Model = ir.from_proto(onnx.ModelProto.FromString(zlib.decompress(packed)))
    theirs = whole.graph.initializers
    for name, value in model.graph.initializers.items():
        if (
            value.const_value is not None
            and value.const_value.nbytes == 0
            and value.const_value.dtype == ir.DataType.UINT8
        ):
            if name not in theirs:
                return None
            value.const_value = theirs[name].const_value
    return model
