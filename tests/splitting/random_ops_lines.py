"""Random ops on lines and matrices: products of any labels, norms, positions, recurrent ones, transforms."""

from __future__ import annotations

import numpy as np

from tests.splitting.dice import Dice
from tests.splitting.sliced_op import Array, OneOp

CONTRIB = "com.microsoft"
MOST_LINES, MOST_SUMMED = 300, 600
KINDS = {"RNN": 1, "GRU": 3, "LSTM": 4}


def product(dice: Dice) -> OneOp:
    """An Einsum of two tensors with labels of every kind, in any order."""
    labels = [str(label) for label in dice.generator.permutation(list("abcdefgh"))]
    counts = [dice.integer(0, 2), dice.integer(0, 2), dice.integer(0, 2), dice.integer(1, 2)]
    counts[1] = max(counts[1], 1)
    ends = np.cumsum(counts)
    batch, left, right, summed = (labels[end - count : end] for count, end in zip(counts, ends, strict=True))
    sizes = {label: dice.pick(1, 2, 3, 5) for label in batch}
    _draw_sizes(dice, sizes, left, MOST_LINES)
    _draw_sizes(dice, sizes, right, MOST_LINES)
    _draw_sizes(dice, sizes, summed, MOST_SUMMED)
    first, second, made = (
        "".join(dice.generator.permutation(group))
        for group in (batch + left + summed, batch + right + summed, batch + left + right)
    )
    inputs = tuple(dice.real(*(sizes[label] for label in group)) for group in (first, second))
    return OneOp("Einsum", inputs, {"equation": f"{first},{second}->{made}"}, (1,) if dice.coin(0.3) else (), opset=12)


def _draw_sizes(dice: Dice, sizes: dict[str, int], labels: list[str], most: int) -> None:
    """Sizes of some labels, whose product is not too large."""
    for label in labels:
        fitting = [size for size in (1, 2, 3, 7, 8, 16, 17, 32, 33, 64, 65, 130, 256) if size <= most]
        sizes[label] = dice.pick(*fitting)
        most = max(1, most // sizes[label])


def layer_norm(dice: Dice) -> OneOp:
    """Norms of lines from any axis on, in three precisions, with and without their mean."""
    rank = dice.integer(1, 4)
    shape = [dice.pick(1, 2, 3, 5, 16, 33, 64) for _ in range(rank)]
    axis = dice.integer(-rank, rank - 1)
    dtype = dice.pick(np.float32, np.float32, np.float16, np.float64)
    data, scale = dice.real(*shape, dtype=dtype), dice.real(*shape[axis % rank :], dtype=dtype)
    if dice.coin():
        outputs = dice.pick((True, True, True), (True, True), (True, False, True))
        inputs = (data, scale, scale + dtype(1))
        return OneOp("LayerNormalization", inputs, {"axis": axis}, (1, 2), opset=17, outputs=outputs)
    return OneOp("SimplifiedLayerNormalization", (data, scale), {"axis": axis}, (1,), opset=1, outputs=(True, True))


def skip_norm(dice: Dice) -> OneOp:
    """Norms of a sum, whose second part may be one for all of the batch."""
    batch, length, width = dice.integer(1, 4), dice.pick(1, 2, 7, 33), dice.pick(8, 16, 33, 64)
    dtype = dice.pick(np.float32, np.float32, np.float16)
    kind = dice.pick("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
    shape = dice.pick((batch, length, width), (1, length, width), (length, width))
    lines = 2 if kind == "SkipLayerNormalization" else 1
    inputs = (dice.real(batch, length, width, dtype=dtype), dice.real(*shape, dtype=dtype))
    inputs += tuple(dice.real(width, dtype=dtype) for _ in range(lines + dice.coin(0.3)))
    outputs = dice.pick((True, True, True, True), (True,))
    return OneOp(kind, inputs, {}, tuple(range(2, len(inputs))), CONTRIB, 1, outputs)


def gelu(dice: Dice) -> OneOp:
    """An activation of a sum with a line."""
    shape = [dice.pick(1, 2, 3, 5, 16, 33, 100) for _ in range(dice.integer(1, 3))]
    dtype = dice.pick(np.float32, np.float16)
    inputs = (dice.real(*shape, dtype=dtype), dice.real(shape[-1], dtype=dtype))
    return OneOp(dice.pick("FastGelu", "BiasGelu"), inputs, {}, (1,), CONTRIB, 1)


def rotation(dice: Dice) -> OneOp:
    """Positions turned into angles, of whole heads or their first elements, by table or given."""
    batch, heads, width = dice.integer(1, 3), dice.pick(1, 2, 3), dice.pick(8, 16, 40)
    length = dice.pick(1, 2, 5, 17, 33)
    is_apart = dice.coin(0.6)
    data = dice.real(batch, heads, length, width) if is_apart else dice.real(batch, length, heads * width)
    attributes = {} if is_apart else {"num_heads": heads}
    if dice.coin(0.4):
        attributes["interleaved"] = 1
    turned = width
    if dice.coin(0.3) and width >= 16:
        turned = attributes["rotary_embedding_dim"] = 8
    if dice.coin():
        most = length + dice.integer(0, 20)
        inputs: tuple[Array, ...] = (*_angles(dice, most, turned // 2), dice.whole(0, most, batch, length))
    else:
        inputs = _angles(dice, batch, length, turned // 2)
    return OneOp("RotaryEmbedding", (data, *inputs), attributes, (1, 2), "", 23)


def _angles(dice: Dice, *shape: int) -> tuple[Array, Array]:
    return dice.real(*shape), dice.real(*shape)


def recurrent(dice: Dice) -> OneOp:
    """Recurrent ops of each kind, in each direction, with lengths and a state or without."""
    kind, direction = dice.pick(*KINDS), dice.pick("forward", "reverse", "bidirectional")
    length, batch, width = dice.pick(1, 2, 7), dice.pick(1, 2, 3, 5, 8, 17), dice.pick(1, 3, 16, 40)
    hidden, ways, gates = dice.pick(1, 4, 15, 33), 2 if direction == "bidirectional" else 1, KINDS[kind]
    inputs = [
        dice.real(length, batch, width),
        dice.real(ways, gates * hidden, width),
        dice.real(ways, gates * hidden, hidden),
    ]
    bias = dice.real(ways, 2 * gates * hidden) if dice.coin(0.7) else None
    lengths = dice.whole(1, length + 1, batch, dtype=np.int32) if dice.coin(0.3) else None
    state = dice.real(ways, batch, hidden) if dice.coin(0.4) else None
    attributes = {"hidden_size": hidden, "direction": direction}
    if kind == "GRU" and dice.coin():
        attributes["linear_before_reset"] = 1
    weights = (1, 2, 3) if dice.coin(0.7) else ()
    return OneOp(kind, _present([*inputs, bias, lengths, state]), attributes, weights, "", 14)


def _present(inputs: list[Array | None]) -> tuple[Array | None, ...]:
    """Without those left out at the end."""
    while inputs[-1] is None:
        inputs.pop()
    return tuple(inputs)


def fourier(dice: Dice) -> OneOp:
    """Transforms along any axis, both ways, of real and complex lines."""
    rank, parts = dice.integer(2, 3), dice.pick(1, 2)
    shape = [dice.pick(1, 2, 3, 4, 7, 8, 16, 30) for _ in range(rank)]
    axis, inverse = dice.integer(1, rank - 1), dice.integer(0, 1) if parts == 2 else 0
    one_sided = 0 if parts == 2 else dice.integer(0, 1)
    attributes = {"axis": axis, "inverse": inverse, "onesided": one_sided}
    return OneOp("DFT", (dice.real(*shape, parts),), attributes, (1,), opset=17)


FAMILIES = (product, layer_norm, skip_norm, gelu, rotation, recurrent, fourier)
