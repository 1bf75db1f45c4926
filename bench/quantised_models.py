"""Models of the kinds that ship to small devices, with random weights: made of the ops that exporters write."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.transformers.float16 import convert_float_to_float16

from bench.reported_models import save_conformer
from tests.splitting.quantised_models import attended, fed_forward, linear, normalised
from tests.splitting.random_models import Sample, Sketch

CONTRIB = "com.microsoft"
BLOCK = 32  # weights that share a scale
TOO_STEEP = 0.2  # weights above lead scores of many queries to one key


def half(sample: Sample) -> Sample:
    """The same in half precision, as the runtime's own tool writes it, with inputs and outputs as they were."""
    return Sample(convert_float_to_float16(sample.model, keep_io_types=True), sample.feeds)


def convolved(sketch: Sketch, value: str, made: int, kernel: int = 3, stride: int = 1, dilation: int = 1) -> str:
    """A convolution and what cuts off below zero, for pictures of any number of axes."""
    items, read, *size = sketch.shapes[value]
    size = [-(-length // stride) for length in size]
    count, beside = len(size), kernel // 2 * dilation
    weights = sketch.weight(made, read, *[kernel] * count, scale=(2 / (read * kernel**count)) ** 0.5)
    shape = [items, made, *size]
    how = {"kernel_shape": [kernel] * count, "pads": [beside] * 2 * count, "strides": [stride] * count}
    value = sketch.add(
        "Conv", [value, weights, sketch.weight(made, scale=0.1)], shape, dilations=[dilation] * count, **how
    )
    return sketch.add("Relu", [value], shape)


def halved(sketch: Sketch, value: str) -> str:
    """The largest of each two by two."""
    items, channels, *size = sketch.shapes[value]
    shape = [items, channels, *(length // 2 for length in size)]
    return sketch.add("MaxPool", [value], shape, kernel_shape=[2, 2], strides=[2, 2])


def doubled(sketch: Sketch, value: str, mode: str) -> str:
    """Twice as high and wide."""
    items, channels, *size = sketch.shapes[value]
    how = {"linear": {"coordinate_transformation_mode": "half_pixel"}, "nearest": {"nearest_mode": "floor"}}[mode]
    scales = sketch.constant(np.array([1, 1, 2, 2], np.float32))
    shape = [items, channels, *(2 * length for length in size)]
    how |= {} if mode == "linear" else {"coordinate_transformation_mode": "asymmetric"}
    return sketch.add("Resize", [value, "", scales], shape, mode=mode, **how)


def joined(sketch: Sketch, *values: str) -> str:
    """Channels of several behind each other."""
    items, _, *size = sketch.shapes[values[0]]
    channels = sum(sketch.shapes[value][1] for value in values)
    return sketch.add("Concat", list(values), [items, channels, *size], axis=1)


def unet(size: int, channels: int, levels: int = 3) -> Sample:
    """Convolutions ever smaller and back, with skips."""
    sketch = Sketch(np.random.default_rng(size))
    value, skips = sketch.input("x", [1, 3, size, size]), []
    for level in range(levels):
        skips.append(convolved(sketch, convolved(sketch, value, channels << level), channels << level))
        value = halved(sketch, skips[-1])
    value = convolved(sketch, value, channels << levels)
    for level, skip in reversed(list(enumerate(skips))):
        value = convolved(sketch, joined(sketch, doubled(sketch, value, "nearest"), skip), channels << level)
    return sketch.sample([convolved(sketch, value, 2, kernel=1)])


def segmenter(size: int, inner: int, made: int) -> Sample:
    """As U2-Net: a small U-Net with a residual for each block, and results of several sizes brought together."""
    sketch = Sketch(np.random.default_rng(made))
    first = _nested(sketch, sketch.input("x", [1, 3, size, size]), inner, made, 4)
    second = _nested(sketch, halved(sketch, first), inner, made, 3)
    third = _nested(sketch, halved(sketch, second), inner, made, 2)
    second = _nested(sketch, joined(sketch, doubled(sketch, third, "linear"), second), inner, made, 3)
    first = _nested(sketch, joined(sketch, doubled(sketch, second, "linear"), first), inner, made, 4)
    sides = [convolved(sketch, first, 1), doubled(sketch, convolved(sketch, second, 1), "linear")]
    value = convolved(sketch, joined(sketch, *sides), 1, kernel=1)
    return sketch.sample([sketch.add("Sigmoid", [value], [1, 1, size, size])])


def _nested(sketch: Sketch, value: str, inner: int, made: int, levels: int) -> str:
    entry = convolved(sketch, value, made)
    skips = [convolved(sketch, entry, inner)]
    for _ in range(levels - 1):
        skips.append(convolved(sketch, halved(sketch, skips[-1]), inner))
    value = convolved(sketch, skips[-1], inner, dilation=2)
    value = convolved(sketch, joined(sketch, value, skips[-1]), inner)
    for at, skip in reversed(list(enumerate(skips[:-1]))):
        both = joined(sketch, doubled(sketch, value, "linear"), skip)
        value = convolved(sketch, both, made if at == 0 else inner)
    return sketch.add("Add", [value, entry], sketch.shapes[entry])


def detector(size: int, channels: int) -> Sample:
    """As YOLO: channels that split and go on in part, pools of several sizes, and heads of two sizes."""
    sketch = Sketch(np.random.default_rng(channels))
    value = convolved(sketch, sketch.input("x", [1, 3, size, size]), channels, stride=2)
    fine = _split_on(sketch, convolved(sketch, value, 2 * channels))
    coarse = _split_on(sketch, convolved(sketch, fine, 4 * channels, stride=2))
    pools = [coarse]
    for _ in range(3):
        how = {"kernel_shape": [5, 5], "pads": [2] * 4, "strides": [1, 1]}
        pools.append(sketch.add("MaxPool", [pools[-1]], sketch.shapes[coarse], **how))
    coarse = convolved(sketch, joined(sketch, *pools), 4 * channels, kernel=1)
    fine = _split_on(sketch, convolved(sketch, joined(sketch, doubled(sketch, coarse, "nearest"), fine), 2 * channels))
    return sketch.sample([convolved(sketch, each, 8, kernel=1) for each in (fine, coarse)])


def _split_on(sketch: Sketch, value: str) -> str:
    items, channels, *size = sketch.shapes[value]
    rest = convolved(sketch, value, channels, kernel=1)
    sizes = sketch.constant(np.array([channels // 2] * 2))
    parts = sketch.add_several("Split", [rest, sizes], [[items, channels // 2, *size]] * 2, axis=1)
    added = convolved(sketch, convolved(sketch, parts[1], channels // 2), channels // 2)
    added = sketch.add("Add", [added, parts[1]], sketch.shapes[added])
    return convolved(sketch, joined(sketch, *parts, added), channels, kernel=1)


def vision_transformer(size: int, patch: int, width: int, heads: int) -> Sample:
    """Patches of a picture as tokens of an encoder."""
    sketch = Sketch(np.random.default_rng(width))
    side = size // patch
    weights = sketch.weight(width, 3, patch, patch, scale=0.05)
    made = [1, width, side, side]
    value = sketch.input("x", [1, 3, size, size])
    value = sketch.add("Conv", [value, weights], made, kernel_shape=[patch] * 2, strides=[patch] * 2)
    value = sketch.add("Reshape", [value, sketch.constant(np.array([1, width, -1]))], [1, width, side * side])
    return _encoded(sketch, value, heads, blocks=2)


def _encoded(sketch: Sketch, value: str, heads: int, blocks: int) -> Sample:
    """Channels of each place as a token, and all of them through an encoder."""
    items, width, length = sketch.shapes[value]
    shape = [items, length, width]
    value = sketch.add("Transpose", [value], shape, perm=[0, 2, 1])
    value = sketch.add("Add", [value, sketch.weight(1, length, width)], shape)
    for _ in range(blocks):
        value = fed_forward(sketch, normalised(sketch, attended(sketch, value, heads, shape), shape), shape)
    return sketch.sample([linear(sketch, value, [*shape[:-1], 32])])


def speech_encoder(frames: int, width: int, heads: int) -> Sample:
    """As Whisper's: two convolutions along time, one of which leaves out every other frame, and an encoder."""
    sketch = Sketch(np.random.default_rng(frames))
    value = convolved(sketch, sketch.input("x", [1, 80, frames]), width)
    return _encoded(sketch, convolved(sketch, value, width, stride=2), heads, blocks=2)


def speech_decoder(tokens: int, frames: int, width: int, heads: int, words: int) -> Sample:
    """As Whisper's: each token with those before it, then with all that was heard; scores of what may come next."""
    sketch = Sketch(np.random.default_rng(tokens))
    shape, square = [1, tokens, width], [1, heads, tokens, tokens]
    value, heard = sketch.input("x", shape), sketch.input("heard", [1, frames, width])
    later = sketch.constant(np.triu(np.full((tokens, tokens), -1e4, np.float32), 1))
    for _ in range(2):
        value = attended(sketch, value, heads, shape, lambda scores, *_: sketch.add("Add", [scores, later], square))
        value = normalised(sketch, _looked_up(sketch, normalised(sketch, value, shape), heard, heads), shape)
        value = fed_forward(sketch, value, shape)
    return sketch.sample([linear(sketch, value, [1, tokens, words])])


def _looked_up(sketch: Sketch, value: str, source: str, heads: int) -> str:
    """Attention of one sequence to another, with what it reads added to it."""
    (_, length, width), (_, others, _) = (sketch.shapes[each] for each in (value, source))
    size = width // heads
    apart = sketch.constant(np.array([0, 0, heads, size]))
    parts = []
    for read, many, turn in (
        (value, length, (0, 2, 1, 3)),
        (source, others, (0, 2, 3, 1)),
        (source, others, (0, 2, 1, 3)),
    ):
        split = [1, many, heads, size]
        part = sketch.add("Reshape", [linear(sketch, read, [1, many, width]), apart], split)
        parts.append(sketch.add("Transpose", [part], [split[axis] for axis in turn], perm=turn))
    scores = sketch.add("MatMul", parts[:2], [1, heads, length, others])
    scores = sketch.add("Softmax", [scores], [1, heads, length, others], axis=-1)
    found = sketch.add("MatMul", [scores, parts[2]], [1, heads, length, size])
    found = sketch.add("Transpose", [found], [1, length, heads, size], perm=[0, 2, 1, 3])
    found = sketch.add("Reshape", [found, sketch.constant(np.array([0, 0, width]))], [1, length, width])
    return sketch.add("Add", [value, linear(sketch, found, [1, length, width])], [1, length, width])


def conformer(frames: int) -> Sample:
    """A speech recogniser at one length: an eighth of the frames, attention by distance, eight layers."""
    with tempfile.TemporaryDirectory() as folder:
        model = onnx.load(save_conformer(Path(folder) / "model.onnx"))
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = frames
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return Sample(model, {})


def disentangled(length: int, width: int, heads: int, reach: int) -> Sample:
    """As DeBERTa: scores of contents, and of contents with positions apart, picked by how far two tokens are."""
    sketch = Sketch(np.random.default_rng(length))
    shape, square = [1, length, width], [1, heads, length, length]
    far = np.clip(np.arange(length)[:, None] - np.arange(length) + reach, 0, 2 * reach - 1)
    all_heads = [sketch.constant(far[None, None]), sketch.constant(np.array(square))]
    places = sketch.add("Expand", all_heads, square)
    scored = [1, heads, length, 2 * reach]

    def more(scores: str, queries: str, keys: str) -> str:
        of_places = sketch.weight(heads, width // heads, 2 * reach, scale=TOO_STEEP)
        found = sketch.add("MatMul", [queries, of_places], scored)
        found = sketch.add("GatherElements", [found, places], square, axis=3)
        return sketch.add("Add", [scores, found], square)

    value = attended(sketch, sketch.input("x", shape), heads, shape, more)
    return sketch.sample([fed_forward(sketch, normalised(sketch, value, shape), shape)])


def joiner(frames: int, symbols: int, width: int, words: int) -> Sample:
    """As of a transducer: each frame with each symbol so far, and scores of what may come next."""
    sketch = Sketch(np.random.default_rng(words))
    parts = [sketch.input("heard", [1, frames, 1, width]), sketch.input("said", [1, 1, symbols, width])]
    parts = [linear(sketch, part, list(sketch.shapes[part])) for part in parts]
    shape = [1, frames, symbols, width]
    value = sketch.add("Tanh", [sketch.add("Add", parts, shape)], shape)
    return sketch.sample([linear(sketch, value, [*shape[:-1], words])])


def listener(items: int, frames: int, channels: int, width: int) -> Sample:
    """Convolutions over spectra, and a recurrent part in both directions behind them."""
    sketch = Sketch(np.random.default_rng(frames))
    value = convolved(sketch, sketch.input("x", [items, 1, frames, 64]), channels)
    value = halved(sketch, convolved(sketch, value, channels))
    frames, size = frames // 2, channels * 32
    value = sketch.add("Transpose", [value], [frames, items, channels, 32], perm=[2, 0, 1, 3])
    value = sketch.add("Reshape", [value, sketch.constant(np.array([0, 0, -1]))], [frames, items, size])
    weights = [sketch.weight(2, 4 * width, read, scale=0.05) for read in (size, width)]
    made = [frames, 2, items, width]
    value = sketch.add("LSTM", [value, *weights], made, hidden_size=width, direction="bidirectional")
    value = sketch.add("Transpose", [value], [frames, items, 2, width], perm=[0, 2, 1, 3])
    value = sketch.add("Reshape", [value, sketch.constant(np.array([0, 0, -1]))], [frames, items, 2 * width])
    return sketch.sample([linear(sketch, value, [frames, items, 64])])


def separator(bands: int, frames: int, width: int, heads: int) -> Sample:
    """As those that split spectra into bands: attention along time for each band, then across bands for each frame."""
    sketch = Sketch(np.random.default_rng(bands))
    value = sketch.input("x", [bands, frames, width])
    for shape in ([bands, frames, width], [frames, bands, width]):
        if tuple(shape) != sketch.shapes[value]:
            value = sketch.add("Transpose", [value], shape, perm=[1, 0, 2])
        value = fed_forward(sketch, normalised(sketch, attended(sketch, value, heads, shape), shape), shape)
    return sketch.sample([sketch.add("Sigmoid", [linear(sketch, value, shape)], shape)])
