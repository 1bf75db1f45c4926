"""Encoders, recurrent networks and tables as older exporters write them."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from bench.drawn.drawn import WORDS
from bench.drawn.old_pictures import dense
from bench.drawn.sketch import Sketch

LONGEST = 512
HEADS = 2


def encoder(s: Sketch, mask: str | None) -> str:
    """Words and positions, layers, and the mean, the first word, or all."""
    width = s.pick(32, 64)
    x = s.op("Gather", s.weight(WORDS, width), "ids", axis=0)
    x = s.op("Add", x, positions(s, width))
    bias = None if mask is None else shown(s, mask)
    for _ in range(s.pick(2, 3)):
        x = norm(s, s.op("Add", x, attention(s, x, width, bias)), width)
        x = norm(s, s.op("Add", x, dense_rows(s, gelu(s, dense_rows(s, x, width, 4 * width)), 4 * width, width)), width)
    head = s.pick("mean", "first", "all")
    s.mark(head)
    if head == "mean":
        return dense(s, s.squeeze(s.mean(x, 1), 1), width, 12)
    if head == "first":
        return s.op("Tanh", dense(s, s.squeeze(s.slice(x, 0, 1, 1), 1), width, 12))
    return dense_rows(s, x, width, 12)


def positions(s: Sketch, width: int) -> str:
    """A row of a table for each place: a part of it, or looked up by numbers that are counted."""
    table = s.weight(LONGEST, width)
    length = s.sizes((s.shape("ids"), 1))
    if s.opset >= 10 and s.chance(0.4):
        return s.unsqueeze(s.op("Slice", table, s.ints(0), length, s.ints(0)), 0)
    if s.opset >= 11 and s.chance():
        count = s.op("Range", s.constant(0, np.int64), s.squeeze(length, 0), s.constant(1, np.int64))
        return s.unsqueeze(s.op("Gather", table, count), 0)
    if s.opset >= 9:  # how torch counted before there was Range
        ones = s.op("ConstantOfShape", length)
        count = s.op("NonZero", s.op("Add", ones, s.constant(1.0)))
        return s.op("Gather", table, s.unsqueeze(s.squeeze(s.op("Transpose", count, perm=[1, 0]), 1), 0))
    ids = s.op("Cast", "ids", to=TensorProto.FLOAT)  # before there was anything to count with
    return s.op("Mul", s.op("Tanh", s.unsqueeze(ids, 2)), s.weight(1, 1, width))


def shown(s: Sketch, mask: str) -> str:
    """Minus a lot where a word is hidden."""
    wide = s.op("Cast", s.unsqueeze(mask, 1, 2), to=TensorProto.FLOAT)
    return s.op("Mul", s.op("Sub", s.constant(1.0), wide), s.constant(-10000.0))


def dense_rows(s: Sketch, x: str, before: int, after: int) -> str:
    """A linear layer on the last of three axes: a product of matrices, or of rows between reshapes."""
    if s.chance(0.7):
        y = s.op("MatMul", x, s.weight(before, after, scale=before**-0.5))
        return s.op("Add", y, s.weight(after, scale=0.1))
    shape = s.shape(x)
    y = dense(s, s.reshape(x, -1, before), before, after)
    return s.reshape(y, (shape, 0), (shape, 1), after)


def attention(s: Sketch, x: str, width: int, bias: str | None) -> str:
    """Heads by computed shapes."""
    size = width // HEADS
    shape = s.shape(x)

    def heads(perm: list[int]) -> str:
        y = dense_rows(s, x, width, width)
        y = s.reshape(y, (shape, 0), (shape, 1), HEADS, size) if s.chance() else s.reshape(y, 0, -1, HEADS, size)
        return s.op("Transpose", y, perm=perm)

    q, k, v = heads([0, 2, 1, 3]), heads([0, 2, 3, 1]), heads([0, 2, 1, 3])
    scores = s.op("Mul", s.op("MatMul", q, k), s.constant(size**-0.5))
    if s.chance():
        scores = s.op("Div", s.op("MatMul", q, k), s.constant(size**0.5))
    if bias is not None:
        scores = s.op("Add", scores, bias)
    shares = s.op("Softmax", scores, axis=3)
    y = s.op("Transpose", s.op("MatMul", shares, v), perm=[0, 2, 1, 3])
    y = s.reshape(y, (shape, 0), (shape, 1), width) if s.chance() else s.reshape(y, 0, -1, width)
    return dense_rows(s, y, width, width)


def norm(s: Sketch, x: str, width: int) -> str:
    """A layer norm taken apart, in one of the orders that there are."""
    centred = s.op("Sub", x, s.mean(x, -1))
    form = s.pick("pow", "mul", "rsqrt")
    squared = s.op("Pow", centred, s.constant(2.0)) if form == "pow" else s.op("Mul", centred, centred)
    root = s.op("Sqrt", s.op("Add", s.mean(squared, -1), s.constant(1e-5)))
    scale, shift = s.positive(width), s.weight(width, scale=0.1)
    if form == "rsqrt":  # TensorFlow: x * (rsqrt * gamma) + (beta - mean * rsqrt * gamma)
        slope = s.op("Mul", s.op("Reciprocal", root), scale)
        rest = s.op("Sub", shift, s.op("Mul", s.mean(x, -1), slope))
        return s.op("Add", s.op("Mul", x, slope), rest)
    return s.op("Add", s.op("Mul", s.op("Div", centred, root), scale), shift)


def gelu(s: Sketch, x: str) -> str:
    """By Erf where there is one, by Tanh, or Relu."""
    form = s.pick("erf", "tanh", "relu")
    if form == "erf" and s.opset >= 9:
        shares = s.op("Add", s.op("Erf", s.op("Div", x, s.constant(2**0.5))), s.constant(1.0))
        return s.op("Mul", s.op("Mul", x, shares), s.constant(0.5))
    if form == "tanh":
        cubed = s.op("Mul", s.op("Pow", x, s.constant(3.0)), s.constant(0.044715))
        inner = s.op("Tanh", s.op("Mul", s.op("Add", x, cubed), s.constant(0.7978846)))
        return s.op("Mul", x, s.op("Mul", s.op("Add", inner, s.constant(1.0)), s.constant(0.5)))
    return s.op("Relu", x)


def recurrent(s: Sketch) -> str:
    """Convolutions along time, one or two recurrent layers, and the last state or all of them."""
    width = 32
    x = s.op("Transpose", "x", perm=[0, 2, 1])
    for before, after in ((16, 64), (64, 48)):
        x = s.op("Conv", x, s.scaled(after, before, 5), s.weight(after, scale=0.1), kernel_shape=[5], pads=[2, 2])
        x = s.op("Relu", x)
    x = s.op("Transpose", x, perm=[2, 0, 1])
    inner = 48
    for _ in range(s.pick(1, 2)):
        ways = s.pick(1, 2)
        kind, gates = s.pick(("LSTM", 4), ("GRU", 3), ("RNN", 1))
        s.mark(kind)
        inputs = [x, s.weight(ways, gates * width, inner, scale=0.15), s.weight(ways, gates * width, width, scale=0.15)]
        inputs.append(s.weight(ways, 2 * gates * width, scale=0.1))
        if s.opset >= 9 and s.chance():  # states that are zeros of a computed shape
            state = s.op("ConstantOfShape", s.sizes(ways, (s.shape(x), 1), width))
            inputs += ["", state, *([state] if kind == "LSTM" else [])]
        how = {"linear_before_reset": 1} if kind == "GRU" and s.chance() else {}
        y = s.op(kind, *inputs, hidden_size=width, direction="bidirectional" if ways == 2 else "forward", **how)
        if ways == 1:
            x, inner = s.squeeze(y, 1), width
        else:
            x, inner = s.reshape(s.op("Transpose", y, perm=[0, 2, 1, 3]), 0, 0, -1), 2 * width
    x = s.op("Transpose", x, perm=[1, 0, 2])
    if s.chance():
        return dense(s, s.squeeze(s.slice(x, -1, 2**31 - 1, 1), 1), inner, 8)
    return dense_rows(s, x, inner, 8)


def rows(s: Sketch) -> str:
    """Numbers scaled, wide layers or trees, and a score."""
    x, wide = "x", 64
    if s.chance():
        x = s.op("Scaler", x, domain="ai.onnx.ml", offset=[0.1] * 8, scale=[1.5] * 8)
    elif s.chance():
        x = s.op("Div", s.op("Sub", x, s.weight(8)), s.positive(8))
    if s.chance(0.3):
        x = s.op("Normalizer", x, domain="ai.onnx.ml", norm="L2")
    inner = 8
    for _ in range(s.pick(1, 2, 3)):
        x, inner = s.op(s.pick("Relu", "Tanh", "Sigmoid"), dense(s, x, inner, wide)), wide
    if s.chance(0.4):
        s.mark("trees")
        x = trees(s, x, inner)
        return s.op("Reshape", x, s.ints(-1, 1)) if s.chance() else x
    if s.chance(0.4):
        far = s.op("Sub", s.unsqueeze(x, 1), s.weight(1, 6, inner))
        x, inner = s.op("Exp", s.op("Neg", s.sum(s.op("Mul", far, far), 2))), 6
        s.mark("kernel")
    y = dense(s, x, inner, 3)
    return s.op("Softmax", y, axis=1)


def trees(s: Sketch, x: str, features: int) -> str:
    """A few trees of one question each."""
    count = 12
    each = range(count)
    return s.op(
        "TreeEnsembleRegressor",
        x,
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=[tree for tree in each for _ in range(3)],
        nodes_nodeids=[0, 1, 2] * count,
        nodes_featureids=[at for _ in each for at in (int(s.dice.integers(features)), 0, 0)],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"] * count,
        nodes_values=[value for _ in each for value in (float(s.dice.normal()), 0.0, 0.0)],
        nodes_truenodeids=[1, 0, 0] * count,
        nodes_falsenodeids=[2, 0, 0] * count,
        nodes_missing_value_tracks_true=[0] * (3 * count),
        nodes_hitrates=[1.0] * (3 * count),
        target_treeids=[tree for tree in each for _ in range(2)],
        target_nodeids=[1, 2] * count,
        target_ids=[0] * (2 * count),
        target_weights=[float(s.dice.normal()) for _ in range(2 * count)],
    )
