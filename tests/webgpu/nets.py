"""Small networks that are run on WebGPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from tests.runtime.models import save_model, value, weight

SHAPE = [1, 4, 16, 16]


def write_skips(path: Path) -> Path:
    """Convolutions and pointwise ops with a skip over all of them, of 4 KiB each."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for number in range(4):
        weights.append(weight(f"w{number}", rng.standard_normal((4, 4, 3, 3)).astype(np.float32) / 6))
        nodes.append(helper.make_node("Conv", [last, f"w{number}"], [f"c{number}"], f"c{number}", pads=[1, 1, 1, 1]))
        last = f"s{number}"
        nodes.append(helper.make_node("Sigmoid", [f"c{number}"], [last], last))
    nodes.append(helper.make_node("Add", [last, "s0"], ["y"], name="add"))
    ends = [value("x", TensorProto.FLOAT, SHAPE)], [value("y", TensorProto.FLOAT, SHAPE)]
    return save_model(path, nodes, *ends, weights)


def write_across(path: Path) -> Path:
    """A model whose ops take buffers of their own: across an axis that is not the last, of many inputs, by channel.

    Half of what Split gives is read by nobody.
    """
    shape = [2, 8, 30]
    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("Softmax", ["n"], ["s"], axis=1),
        helper.make_node("Abs", ["s"], ["s2"]),
        helper.make_node("Max", ["x", "n", "s", "s2"], ["m"]),
        helper.make_node("InstanceNormalization", ["m", "scale", "shift"], ["i"]),
        helper.make_node("Split", ["i"], ["half", "other"], axis=1, num_outputs=2),
        helper.make_node("Concat", ["half", "half"], ["c"], axis=1),
        helper.make_node("Tanh", ["c"], ["y"]),
    ]
    weights = [weight(name, np.linspace(1, 2, 8, dtype=np.float32)) for name in ("scale", "shift")]
    return save_model(
        path, nodes, [value("x", TensorProto.FLOAT, shape)], [value("y", TensorProto.FLOAT, shape)], weights
    )


LADDER_SHAPE = [1, 4, 32, 32]


def write_ladder(path: Path, rungs: int = 6) -> Path:
    """Convolutions and sigmoids down, and up again with a sum of what was made on the way: 16 KiB each."""
    rng = np.random.default_rng(1)
    nodes, weights, last = [], [], "x"

    def conv(name: str, source: str) -> str:
        weights.append(weight(f"w_{name}", rng.standard_normal((4, 4, 3, 3)).astype(np.float32) / 6))
        nodes.append(helper.make_node("Conv", [source, f"w_{name}"], [name], name, pads=[1, 1, 1, 1]))
        return name

    made = []
    for number in range(rungs):
        nodes.append(helper.make_node("Sigmoid", [conv(f"c{number}", last)], [f"s{number}"], f"s{number}"))
        last = f"s{number}"
        made.append(last)
    for number in reversed(range(rungs - 1)):
        name = f"u{number}" if number else "y"
        nodes.append(helper.make_node("Add", [conv(f"d{number}", last), made[number]], [name], name))
        last = name
    ends = [value("x", TensorProto.FLOAT, LADDER_SHAPE)], [value("y", TensorProto.FLOAT, LADDER_SHAPE)]
    return save_model(path, nodes, *ends, weights)
