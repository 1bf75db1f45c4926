"""Inputs to run random models with."""

from __future__ import annotations

import numpy as np
import onnx


def random_inputs(model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    """Normal floats; for ids and masks zeros and ones, as remat feeds them too."""
    dice = np.random.default_rng(seed)
    feeds = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value or 1 for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        values = dice.standard_normal(shape) if dtype.kind == "f" else dice.integers(0, 2, shape)
        feeds[value.name] = values.astype(dtype)
    return feeds
