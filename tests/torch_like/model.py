"""A random network: an entry, blocks of one kind after another with ways between the kinds, and heads."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir

from tests.torch_like.drawing import INT64, Drawing, Tensor
from tests.torch_like.layers import activation, conv, global_mean, linear, mean, reshape, resize, token_norm, transpose
from tests.torch_like.narrow import half_picture, half_tokens, quantised
from tests.torch_like.pictures import PICTURE_BLOCKS
from tests.torch_like.pyramids import PYRAMIDS
from tests.torch_like.sounds import SOUND_BLOCKS
from tests.torch_like.tokens import TOKEN_BLOCKS, sides_of, to_picture, to_tokens

OLDEST, NEWEST = 13, 20
MOST_NODES = 130
MOST_TOKENS = 256
BATCH = "batch"

BLOCKS = {
    "picture": {**PICTURE_BLOCKS, **PYRAMIDS, "half_picture": half_picture, "quantised": quantised},
    "tokens": {**TOKEN_BLOCKS, "half_tokens": half_tokens},
    "sound": SOUND_BLOCKS,
}
FAMILIES = tuple(name for blocks in BLOCKS.values() for name in blocks)


def torch_like_model(seed: int) -> ir.Model:
    """The model of a seed; its metadata says which families of blocks are in it."""
    return ir.from_proto(torch_like_proto(seed))


def torch_like_proto(seed: int) -> onnx.ModelProto:
    """The same as protobuf."""
    dice = np.random.default_rng(seed)
    d = Drawing(
        dice,
        opset=int(dice.integers(OLDEST, NEWEST + 1)),
        has_constant_nodes=bool(dice.random() < 0.3),
        has_shape_chains=bool(dice.random() < 0.3),
    )
    kind = d.pick("picture", "picture", "picture", "tokens", "tokens", "sound")
    x = _entry(d, kind)
    wanted = int(dice.integers(2, 7))
    for number in range(wanted):
        if len(d.nodes) > MOST_NODES:
            break
        d.scope = f"/layer{number}"
        if d.chance(0.15):
            kind, x = _crossed(d, kind, x)
        name = d.pick(*BLOCKS[kind])
        d.mark(name)
        x = BLOCKS[kind][name](d, x)
        if d.chance(0.1):
            d.scope = f"/aux{number}"
            d.outputs.append(_head(d, kind, x))
    d.scope = "/head"
    d.outputs.append(_head(d, kind, x))
    proto = d.proto(f"torch_like_{seed}")
    rows = {tensor.shape[0] for tensor in d.inputs}
    if rows == {1} and d.chance(0.2):
        _free_the_batch(proto)
        d.mark("free_batch")
    onnx.helper.set_model_props(proto, {"families": ",".join(d.families)})
    return proto


def families_of(model: ir.Model) -> list[str]:
    """The families of blocks in a model."""
    return model.metadata_props["families"].split(",")


def _free_the_batch(proto: onnx.ModelProto) -> None:
    """The first dimension of every input, which is 1, is named, as in exports with dynamic axes."""
    for value in proto.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = BATCH


def _entry(d: Drawing, kind: str) -> Tensor:
    """The first layer, from an input."""
    d.scope = "/stem"
    if kind == "picture":
        side, other = (int(8 * d.dice.integers(5, 13)) for _ in range(2))
        x = d.input("pixel_values", (d.pick(1, 1, 1, 2), 3, side, other))
        return activation(d, conv(d, x, d.pick(16, 24, 32), 3))
    if kind == "sound":
        x = d.input("waveform", (1, d.pick(1, 2), d.pick(4096, 8192, 16384)))
        return activation(d, conv(d, x, d.pick(16, 24, 32), 8, stride=2, pad=3))
    tokens, width = d.pick(64, 144, 256), d.pick(64, 96, 128)
    if d.chance():
        return _embedded(d, tokens, width)
    x = d.input("pixel_values", (d.pick(1, 1, 2), 3, *(8 * side for side in sides_of(tokens))))
    return token_norm(d, to_tokens(d, conv(d, x, width, 8, stride=8, pad=0)))


def _embedded(d: Drawing, tokens: int, width: int) -> Tensor:
    """Tokens from a table by their ids, with positions and perhaps a second table."""
    d.mark("embedding")
    rows = d.pick(1, 1, 2)
    ids = d.input("input_ids", (rows, tokens), INT64)
    x = d.op("Gather", d.weight(50, width), ids, axis=0)
    x = d.op("Add", x, d.weight(1, tokens, width, scale=0.5))
    if d.chance(0.3):
        kinds = d.input("token_type_ids", (rows, tokens), INT64)
        x = d.op("Add", x, d.op("Gather", d.weight(2, width), kinds, axis=0))
    return token_norm(d, x)


def _crossed(d: Drawing, kind: str, x: Tensor) -> tuple[str, Tensor]:
    """The way to another kind: pictures and sounds to tokens, tokens to pictures."""
    d.mark(f"leaving_{kind}")
    if kind == "tokens":
        rows, columns = sides_of(x.shape[1])
        if rows < 8:
            return kind, x
        x = resize(d, to_picture(d, x, rows, columns), (2 * rows, 2 * columns))
        return "picture", conv(d, x, 32, 1)
    if kind == "sound":
        step = 2 ** math.ceil(math.log2(max(2, x.shape[2] / MOST_TOKENS)))
        return "tokens", transpose(d, conv(d, x, 64, step, stride=step, pad=0), 0, 2, 1)
    step = next(step for step in (1, 2, 4, 8, 16) if math.prod(x.shape[2:]) <= MOST_TOKENS * step * step)
    return "tokens", to_tokens(d, conv(d, x, 64, step, stride=step, pad=0))


def _head(d: Drawing, kind: str, x: Tensor) -> Tensor:
    """What the network says: a picture of classes, class scores, or the tokens."""
    if kind == "tokens":
        x = token_norm(d, x)
        form = d.pick("tokens", "mean", "words")
        if form == "mean":
            return linear(d, reshape(d, mean(d, x, [1]), (x.shape[0], x.shape[2])), 10)
        return linear(d, x, 50) if form == "words" else x
    if d.chance(0.3):
        flat = d.op("Flatten", global_mean(d, x), axis=1)
        return linear(d, flat, 10)
    y = conv(d, x, 5, 1)
    if kind == "sound":
        return d.op("Tanh", y) if d.chance() else y
    if d.chance(0.3) and max(x.shape[2:]) <= 48:
        y = resize(d, y, [2 * side for side in x.shape[2:]])
    return d.op(d.pick("Sigmoid", "Tanh"), y) if d.chance() else d.op("Softmax", y, axis=1) if d.chance(0.3) else y
