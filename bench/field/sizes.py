"""Sizes that a program uses: what its feeds show of a model's open dimensions, as a user would type it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx

Shapes: TypeAlias = Mapping[str, Sequence[int]]
"""Sizes by input."""


def dimensions(model: Path, seen: Sequence[Shapes]) -> dict[str, str]:
    """What to say with --dim of each dimension that has a name: the one size that was seen, or a range in steps."""
    sizes: dict[str, set[int]] = defaultdict(set)
    for name, axes in _declared(model).items():
        for at, axis in enumerate(axes):
            if isinstance(axis, str):
                sizes[axis] |= {shapes[name][at] for shapes in seen}
    return {axis: _typed(found) for axis, found in sizes.items() if axis}


def feeds_of(model: Path, shapes: Shapes) -> dict[str, Any]:
    """Feeds of these sizes, made here, as what a process takes shall be known of models too that remat refuses."""
    choose = np.random.default_rng(0)
    inputs = {each.name: each for each in onnx.load(model, load_external_data=False).graph.input}
    dtypes = {name: onnx.helper.tensor_dtype_to_np_dtype(inputs[name].type.tensor_type.elem_type) for name in shapes}
    return {name: (choose.random(shape) + 0.5).astype(dtypes[name]) for name, shape in shapes.items()}


def _typed(sizes: set[int]) -> str:
    least, most = min(sizes), max(sizes)
    if least == most:
        return str(least)
    step = math.gcd(*(size - least for size in sizes))
    return f"{least}..{most}" + (f":{step}" if step > 1 else "")


def _declared(model: Path) -> dict[str, list[str | int]]:
    """Axes by input, each a name, empty where it has none, or a size."""
    graph = onnx.load(model, load_external_data=False).graph
    weights = {each.name for each in graph.initializer}
    return {
        each.name: [
            axis.dim_value if axis.HasField("dim_value") else axis.dim_param for axis in each.type.tensor_type.shape.dim
        ]
        for each in graph.input
        if each.name not in weights
    }
