"""Build the small sample models: seeded random weights, no download, the same bytes on every run.

Channels are few and images large, so that activations rather than weights decide the peak.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sample_models.assemble import NEAREST, Array, checked_model
from sample_models.papers import paper_names, write_papers

HERE = Path(__file__).parent
ZOO = HERE.parent / "build" / "zoo"
IMAGE = (1, 3, 256, 256)


class Builder:
    """Appends nodes to a graph; every method returns the name of the tensor that it makes."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        """Start a graph with one float input `x`; the name seeds the weights."""
        self.name = name
        self.input = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}
        self.channels = {"x": shape[1]}
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))

    def op(self, op_type: str, *inputs: str, channels: int | None = None, **attributes: Any) -> str:
        """Append a node; its output has `channels`, by default those of the first input."""
        name = f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], name, **attributes))
        self.channels[name] = self.channels.get(inputs[0], 0) if channels is None else channels
        return name

    def constant(self, name: str, values: Array) -> str:
        """Add an initialiser, once per name."""
        self.weights.setdefault(name, numpy_helper.from_array(values, name))
        return name

    def random(self, role: str, shape: tuple[int, ...], scale: float, mean: float = 0.0) -> str:
        """Add a normally distributed initialiser that belongs to the next node."""
        values = mean + scale * self.rng.standard_normal(shape)
        return self.constant(f"{role}_{len(self.nodes)}", values.astype(np.float32))

    def conv(self, x: str, width: int, kernel: int = 3, stride: int = 1) -> str:
        """A convolution with He weights, a bias and padding that keeps the size at stride 1."""
        fan_in = self.channels[x] * kernel * kernel
        weight = self.random("weight", (width, self.channels[x], kernel, kernel), (2 / fan_in) ** 0.5)
        bias = self.random("bias", (width,), 0.05)
        window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        return self.op("Conv", x, weight, bias, channels=width, **window)

    def relu(self, x: str) -> str:
        """Relu."""
        return self.op("Relu", x)

    def conv_relu(self, x: str, width: int, kernel: int = 3, stride: int = 1) -> str:
        """A convolution and its Relu."""
        return self.relu(self.conv(x, width, kernel, stride))

    def merge(self, x: str, skip: str) -> str:
        """Convolve `x`, add the skip of the same width, Relu: the runtime does all three in one buffer."""
        return self.relu(self.add(self.conv(x, self.channels[skip]), skip))

    def norm(self, x: str) -> str:
        """Batch normalization in inference form."""
        width = (self.channels[x],)
        variance = np.abs(1 + 0.1 * self.rng.standard_normal(width)).astype(np.float32)
        return self.op(
            "BatchNormalization",
            x,
            self.random("scale", width, 0.1, 1.0),
            self.random("shift", width, 0.1),
            self.random("mean", width, 0.1),
            self.constant(f"variance_{len(self.nodes)}", variance),
        )

    def add(self, *tensors: str) -> str:
        """Add the tensors, from left to right."""
        total, *rest = tensors
        for tensor in rest:
            total = self.op("Add", total, tensor)
        return total

    def concat(self, *tensors: str) -> str:
        """Concatenate along the channels."""
        return self.op("Concat", *tensors, channels=sum(self.channels[t] for t in tensors), axis=1)

    def pool(self, x: str, kernel: int = 2, stride: int = 2) -> str:
        """Max pooling; an odd kernel is padded."""
        pads = [kernel // 2 * (kernel % 2)] * 4
        return self.op("MaxPool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)

    def upsample(self, x: str) -> str:
        """Nearest-neighbour upsampling by two."""
        scales = self.constant("two", np.array([1, 1, 2, 2], np.float32))
        return self.op("Resize", x, "", scales, **NEAREST)

    def linear(self, x: str, width: int, inner: int) -> str:
        """MatMul and Add on the last axis, which has `inner` elements."""
        weight = self.random("weight", (inner, width), inner**-0.5)
        product = self.op("MatMul", x, weight)
        return self.op("Add", product, self.random("bias", (width,), 0.05))

    def build(self, **outputs: str) -> onnx.ModelProto:
        """Name the outputs, infer all shapes and check the model."""
        names = {tensor: name for name, tensor in outputs.items()}
        for node in self.nodes:
            node.input[:] = [names.get(i, i) for i in node.input]
            node.output[:] = [names.get(o, o) for o in node.output]
        return checked_model(self.name, self.nodes, [self.input], outputs, self.weights.values())


def unet() -> onnx.ModelProto:
    """Encoder and decoder of four levels with two long skips per level."""
    b, skips, x = Builder("unet", IMAGE), [], "x"
    for width in (16, 48, 48):
        thin = b.conv_relu(x, width, kernel=1)
        full = b.conv_relu(thin, width)
        skips.append((thin, full))
        x = b.pool(full)
    x = b.conv_relu(b.conv_relu(x, 48), 48)
    for thin, full in reversed(skips):
        width = b.channels[full]
        up = b.upsample(b.conv(x, width, kernel=1))
        top = b.merge(up, full) if full == skips[0][1] else b.conv_relu(b.concat(up, full), width)
        x = b.merge(top, thin)
    return b.build(mask=b.op("Sigmoid", b.conv(x, 2, kernel=1)))


def attention_gate(b: Builder, signal: str, skip: str) -> str:
    """Weight the skip by an attention map computed from it and from the signal of the decoder."""
    inner = b.channels[skip] // 2
    both = b.relu(b.add(b.conv(signal, inner, kernel=1), b.conv(skip, inner, kernel=1)))
    return b.op("Mul", skip, b.op("Sigmoid", b.conv(both, 1, kernel=1)))


def attention_unet() -> onnx.ModelProto:
    """Encoder and decoder of four levels whose long skips pass through attention gates."""
    b, skips, x = Builder("attention_unet", IMAGE), [], "x"
    for width in (16, 32, 48):
        thin = b.conv_relu(x, width, kernel=1)
        full = b.conv_relu(thin, width)
        skips.append((thin, full))
        x = b.pool(full)
    x = b.conv_relu(x, 64)
    for thin, full in reversed(skips):
        width = b.channels[full]
        up = b.upsample(b.conv_relu(x, width, kernel=1))
        gated = attention_gate(b, up, full)
        top = b.merge(up, gated) if full == skips[0][1] else b.conv_relu(b.concat(up, gated), width)
        x = b.merge(top, thin)
    return b.build(mask=b.op("Sigmoid", b.conv(x, 2, kernel=1)))


def dense_block(b: Builder, x: str, layers: int, growth: int) -> str:
    """Each layer reads the concatenation of all outputs before it."""
    features, joined = [x], x
    for _ in range(layers):
        squeezed = b.conv_relu(b.relu(b.norm(joined)), 2 * growth, kernel=1)
        features.append(b.conv(squeezed, growth))
        joined = b.concat(*features)
    return joined


def densenet() -> onnx.ModelProto:
    """Dense blocks with transitions between them; a dense prediction reads the early features again."""
    b, skips, x = Builder("densenet", IMAGE), [], "x"
    thin = b.conv_relu(x, 16, kernel=1)
    full = b.conv_relu(thin, 16)
    x = b.pool(full)
    for layers in (4, 4):
        block = dense_block(b, x, layers, growth=16)
        skips.append(b.conv(b.relu(b.norm(block)), 32, kernel=1))
        x = b.pool(skips[-1])
    x = b.conv_relu(dense_block(b, x, 4, growth=16), 32, kernel=1)
    for skip in reversed(skips):
        x = b.merge(b.upsample(x), skip)
    x = b.merge(b.merge(b.upsample(b.conv(x, 16, kernel=1)), full), thin)
    return b.build(logits=b.conv(x, 4, kernel=1))


def inception_block(b: Builder, x: str) -> str:
    """Four parallel branches, concatenated, projected and added to the input."""
    width = b.channels[x] // 4
    single = b.conv_relu(x, width, kernel=1)
    double = b.conv_relu(b.conv_relu(x, width, kernel=1), width)
    triple = b.conv_relu(b.conv_relu(b.conv_relu(x, width, kernel=1), width), width)
    pooled = b.conv_relu(b.pool(x, kernel=3, stride=1), width, kernel=1)
    joined = b.conv(b.concat(single, double, triple, pooled), b.channels[x], kernel=1)
    return b.relu(b.add(joined, x))


def inception() -> onnx.ModelProto:
    """Residual inception blocks at two scales; the map is predicted from both and from early features."""
    b = Builder("inception", IMAGE)
    stem = b.conv_relu("x", 32, stride=2)
    early = [b.conv_relu(stem, 64, kernel=1) for _ in range(2)]
    fine = inception_block(b, inception_block(b, b.conv_relu(b.add(*early), 64, kernel=1)))
    x = b.upsample(inception_block(b, inception_block(b, b.pool(fine))))
    for skip in (fine, *early):
        x = b.merge(b.conv_relu(x, 16, kernel=1), skip)
    return b.build(heatmap=b.op("Sigmoid", b.conv(x, 4, kernel=1)))


def residual_block(b: Builder, x: str, width: int, stride: int) -> str:
    """Two convolutions with batch normalization around a shortcut."""
    inner = b.relu(b.norm(b.conv(x, width, stride=stride)))
    outer = b.norm(b.conv(inner, width))
    shortcut = x if stride == 1 else b.norm(b.conv(x, width, kernel=1, stride=stride))
    return b.relu(b.add(outer, shortcut))


def resnet() -> onnx.ModelProto:
    """A residual classifier of three stages."""
    b = Builder("resnet", IMAGE)
    x = b.conv_relu("x", 16)
    for width, stride in ((16, 1), (16, 1), (32, 2), (32, 1), (64, 2), (64, 1)):
        x = residual_block(b, x, width, stride)
    x = b.op("Flatten", b.op("GlobalAveragePool", x), axis=1)
    return b.build(logits=b.linear(x, 10, inner=64))


def encoder_layer(b: Builder, x: str, shape: tuple[int, int, int], heads: int) -> str:
    """Self-attention and a feed-forward layer, spelt out as exporters do."""
    batch, length, width = shape
    split = b.constant("split_shape", np.array([batch, length, heads, width // heads], np.int64))
    flat = b.constant("joined_shape", np.array(shape, np.int64))
    query, key, value = (b.op("Reshape", b.linear(x, width, width), split) for _ in range(3))
    query, value = (b.op("Transpose", t, perm=[0, 2, 1, 3]) for t in (query, value))
    key = b.op("Transpose", key, perm=[0, 2, 3, 1])
    root = b.constant("root_of_head_width", np.array((width / heads) ** 0.5, np.float32))
    scores = b.op("Softmax", b.op("Div", b.op("MatMul", query, key), root), axis=-1)
    context = b.op("Transpose", b.op("MatMul", scores, value), perm=[0, 2, 1, 3])
    x = layer_norm(b, b.op("Add", b.linear(b.op("Reshape", context, flat), width, width), x), width)
    hidden = gelu(b, b.linear(x, 4 * width, width))
    return layer_norm(b, b.op("Add", b.linear(hidden, width, 4 * width), x), width)


def layer_norm(b: Builder, x: str, width: int) -> str:
    """Layer normalization of the last axis."""
    scale, shift = b.random("scale", (width,), 0.1, 1.0), b.random("shift", (width,), 0.1)
    return b.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-5)


def gelu(b: Builder, x: str) -> str:
    """The exact Gelu in basic operators."""
    root, one, half = (
        b.constant(name, np.array(value, np.float32))
        for name, value in (("root_of_two", 2**0.5), ("one", 1.0), ("half", 0.5))
    )
    spread = b.op("Add", b.op("Erf", b.op("Div", x, root)), one)
    return b.op("Mul", b.op("Mul", x, spread), half)


def transformer() -> onnx.ModelProto:
    """Three layers of a transformer encoder over embedded tokens."""
    shape = (4, 256, 64)
    b, x = Builder("transformer", shape), "x"
    for _ in range(3):
        x = encoder_layer(b, x, shape, heads=8)
    return b.build(hidden_states=x)


def head(b: Builder, x: str, width: int) -> str:
    """Predict `width` maps from a level of the pyramid."""
    return b.conv(b.conv_relu(x, 16), width, kernel=1)


def detector() -> onnx.ModelProto:
    """Backbone, feature pyramid, and boxes and classes at three scales; one feature map is an output too."""
    b = Builder("detector", (1, 3, 512, 512))
    x, levels = b.conv_relu("x", 16, stride=2), []
    for width in (16, 32, 64):
        thin = b.conv_relu(x, 16, kernel=1)
        full = b.conv_relu(thin, width)
        levels.append((thin, full))
        x = b.pool(full)
    pyramid = b.conv(x, 16, kernel=1)
    outputs = {}
    for scale in (2, 1, 0):
        thin, full = levels[scale]
        lateral = b.conv(full, 16, kernel=1)
        pyramid = b.merge(b.merge(b.upsample(pyramid), lateral), thin)
        if scale == 1:
            outputs["features"] = pyramid
        outputs[f"boxes_{scale}"] = head(b, pyramid, 4)
        outputs[f"classes_{scale}"] = b.op("Sigmoid", head(b, pyramid, 4))
    return b.build(**outputs)


def chain() -> onnx.ModelProto:
    """A plain chain of equal convolutions: its peak is the working set of one of them."""
    b, x = Builder("chain", IMAGE), "x"
    for _ in range(8):
        x = b.conv_relu(x, 16)
    return b.build(y=b.conv(x, 4, kernel=1))


RECIPES = (unet, attention_unet, densenet, inception, resnet, transformer, detector, chain)
MODELS: dict[str, Callable[[], onnx.ModelProto]] = {recipe.__name__: recipe for recipe in RECIPES}


def write_models(folder: Path) -> list[Path]:
    """Write all models to the folder and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.onnx" for name in MODELS]
    for path in paths:
        path.write_bytes(MODELS[path.stem]().SerializeToString(deterministic=True))
    return paths


def resolution(text: str) -> tuple[int, int]:
    """Height and width from `224` or `416x608`."""
    height, _, width = text.partition("x")
    return int(height), int(width or height)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder to write to (default: this one; for --zoo, build/zoo)")
    parser.add_argument(
        "--zoo", action="store_true", help="build the networks of the papers instead: up to 0.6 GB each"
    )
    parser.add_argument("--only", default="", help=f"some of the zoo: {','.join(paper_names())}")
    parser.add_argument("--batch", type=int, help="fixed batch size; without it the dimension `batch` stays open")
    parser.add_argument("--resolution", type=resolution, help="of images: 224 or 416x608")
    parser.add_argument("--length", type=int, help="of texts, in tokens")
    parser.add_argument(
        "--training", action="store_true", help="also training steps (cross-entropy, SGD) and their first states"
    )
    parser.add_argument("--width", type=float, help="channels or heads, as a multiple of the paper's")
    options = parser.parse_args(arguments)
    options.only = [name for name in options.only.split(",") if name]
    if unknown := set(options.only) - set(paper_names()):
        parser.error(f"--only: no {', '.join(sorted(unknown))}; there are {', '.join(paper_names())}")
    return options


def with_training_steps(models: Iterator[Path], batch: int) -> Iterator[Path]:
    """Each model, and the training step that remat makes of it."""
    from remat_cli.base.progress import silent
    from remat_cli.commands.train import train_model
    from remat_cli.settings.settings import load_settings

    config = load_settings({"train": {"loss": "cross-entropy", "batch": batch}, "force": True})
    for path in models:
        yield path
        report = train_model(path, config, silent())
        yield from (Path(report.step), Path(report.state))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write what the command line asks for, and say what was written."""
    options = parsed(arguments)
    sizes = {name: getattr(options, name) for name in ("batch", "resolution", "length", "width")}
    folder = options.out or (ZOO if options.zoo else HERE)
    written = write_papers(folder, options.only, sizes) if options.zoo else iter(write_models(folder))
    if options.training:
        written = with_training_steps(written, options.batch or 1)
    for path in written:
        sys.stdout.write(f"{path}  {path.stat().st_size / 1024:.0f} KiB\n")


if __name__ == "__main__":
    main()
