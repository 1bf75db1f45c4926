"""Functions of TensorFlow, Keras models, .tflite files, by tf2onnx and Keras; float16 by onnxconverter-common."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tensorflow as tf
import tf2onnx
from onnxconverter_common import float16

from bench.drawn.drawn import Feed, Range
from bench.exporters.recipe import Recipe, Write, export

K = tf.keras
L = tf.keras.layers
Net = Callable[[], Any]
PICTURE = {"x": Feed((1, "h", "w", 3))}
PICTURES = {"x": Feed(("batch", "h", "w", 3))}
WORDS = {"x": Feed(("batch", "seq"), "words", np.int32)}
SOUNDS = {"x": Feed(("batch", "frames", 16))}
SIDES = {"h": Range(32, 256, 16), "w": Range(32, 256, 16)}
BATCH = {"batch": Range(1, 6)}
SEQ = {"batch": Range(1, 6), "seq": Range(1, 96)}
FRAMES = {"batch": Range(1, 6), "frames": Range(8, 256)}
DTYPES: Mapping[Any, Any] = {np.float32: tf.float32, np.int32: tf.int32}


def unet(upsampling: str = "nearest", activation: str = "relu") -> Any:
    """Down and up again by a step, with a skip."""
    given = L.Input((None, None, 3), name="x")
    x = L.Conv2D(16, 3, strides=2, padding="same")(given)
    skip = x = L.Activation(activation)(L.BatchNormalization()(x))
    x = L.DepthwiseConv2D(3, padding="same", strides=2)(x)
    x = L.Activation(activation)(L.Conv2D(32, 1)(x))
    if upsampling == "transposed":
        x = L.Conv2DTranspose(16, 3, strides=2, padding="same")(x)
    elif upsampling == "nearest":
        x = L.UpSampling2D(2)(x)
    else:
        x = L.Lambda(lambda y: tf.image.resize(y, tf.shape(y)[1:3] * 2, upsampling))(x)
    x = L.Conv2D(24, 3, padding="same")(L.Concatenate()([x, skip]))
    return K.Model(given, L.Conv2D(2, 1, activation="sigmoid")(L.ReLU(6.0)(x)))


def effnet() -> Any:
    """Inverted bottlenecks with squeeze and excitation, padded by hand."""
    given = x = L.Input((None, None, 3), name="x")
    for width in (16, 24):
        x = L.ZeroPadding2D(((0, 1), (0, 1)))(x)
        x = L.ReLU(6.0)(L.BatchNormalization()(L.Conv2D(width, 3, strides=2)(x)))
        y = L.Activation("swish")(L.DepthwiseConv2D(3, padding="same")(L.Conv2D(2 * width, 1)(x)))
        z = L.Conv2D(8, 1, activation="relu")(L.GlobalAveragePooling2D(keepdims=True)(y))
        y = L.Multiply()([y, L.Conv2D(2 * width, 1, activation="sigmoid")(z)])
        x = L.Add()([x, L.Conv2D(width, 1)(y)])
    return K.Model(given, L.Dense(10, activation="softmax")(L.GlobalAveragePooling2D()(x)))


def plain_picture() -> Any:
    """Convolutions and pooling, as the oldest operator sets have them."""
    given = x = L.Input((None, None, 3), name="x")
    for width in (16, 24, 32):
        x = L.MaxPooling2D(2)(L.Conv2D(width, 3, padding="same", activation="relu")(x))
    return K.Model(given, L.Dense(10)(L.GlobalAveragePooling2D()(x)))


def attention() -> Any:
    """A layer of a transformer, and a mean over words."""
    given = L.Input((None,), dtype="int32", name="x")
    x = L.Embedding(50, 32)(given)
    x = L.LayerNormalization()(x + L.MultiHeadAttention(2, 16)(x, x))
    x = L.LayerNormalization()(x + L.Dense(32)(L.Dense(128, activation="swish")(x)))
    return K.Model(given, L.Dense(8)(L.GlobalAveragePooling1D()(x)))


def lstm() -> Any:
    """A convolution over time, then a recurrent layer of both directions."""
    given = L.Input((None, 16), name="x")
    x = L.Conv1D(64, 5, padding="same", activation="relu")(given)
    return K.Model(given, L.Dense(6)(L.Bidirectional(L.LSTM(24, return_sequences=True))(x)))


def gru() -> Any:
    """A causal convolution with gaps, then a recurrent layer."""
    given = L.Input((None, 16), name="x")
    x = L.Conv1D(64, 5, padding="causal", dilation_rate=2, activation="elu")(given)
    return K.Model(given, L.Dense(6)(L.GRU(24)(x)))


class Looped(tf.Module):  # type: ignore[misc]
    """Steps until a number of them is reached, and a branch by what is fed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(tf.random.normal((16, 16), seed=1) / 4)

    def __call__(self, x: Any) -> Any:
        y = tf.tile(x, (1, 1, 4))
        y = tf.nn.relu(y) + tf.sin(y)
        y = tf.reduce_sum(tf.reshape(y, (tf.shape(x)[0], tf.shape(x)[1], 4, 16)), 2)
        steps = tf.constant(0)
        _, y = tf.while_loop(lambda at, _: at < 3, lambda at, y: (at + 1, tf.tanh(y @ self.weight)), (steps, y))
        return tf.cond(tf.reduce_mean(x) > 0.0, lambda: tf.nn.softmax(y), lambda: y * 2.0)


def spectrum(x: Any) -> Any:
    """Frames of a signal, windowed, in decibels."""
    framed = tf.signal.frame(x, 64, 32, axis=1)
    power = tf.square(framed * tf.signal.hann_window(64)) + 1e-6
    level = tf.math.log(tf.reduce_sum(tf.reshape(power, (tf.shape(power)[0], tf.shape(power)[1], 16, 4)), -1))
    return level - tf.reduce_max(level, axis=(1, 2), keepdims=True)


def by_tf2onnx(made: Net, feeds: Mapping[str, Feed], opset: int, nchw: bool = False) -> Write:
    """Through a traced function."""

    def write(path: Path) -> object:
        tf.random.set_seed(0)
        net = made()
        call = (lambda x: net(x, training=False)) if isinstance(net, K.Model) else net
        shapes = {
            name: tuple(None if isinstance(size, str) else size for size in feed.shape) for name, feed in feeds.items()
        }
        signature = [tf.TensorSpec(shapes[name], DTYPES[feed.dtype], name=name) for name, feed in feeds.items()]
        function = tf.function(call, input_signature=signature)
        options: dict[str, Any] = {"inputs_as_nchw": [f"{name}:0" for name in feeds]} if nchw else {}
        return tf2onnx.convert.from_function(function, signature, opset=opset, output_path=str(path), **options)

    return write


def by_keras(made: Net, feeds: Mapping[str, Feed]) -> Write:
    """By the method of the model itself, which asks that it was called once."""

    def write(path: Path) -> object:
        tf.random.set_seed(0)
        net = made()
        sizes = dict.fromkeys(("batch", "h", "w", "seq", "frames"), 32)
        net(*(feed.drawn(sizes, np.random.default_rng(0)) for feed in feeds.values()))
        return net.export(str(path), format="onnx", verbose=False)

    return write


def from_lite(made: Net, quantised: bool = False) -> Write:
    """By way of a .tflite file."""

    def write(path: Path) -> object:
        tf.random.set_seed(0)
        converter = tf.lite.TFLiteConverter.from_keras_model(made())
        if quantised:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            dice = np.random.default_rng(0)
            converter.representative_dataset = lambda: (
                [dice.standard_normal((1, 64, 64, 3)).astype(np.float32)] for _ in range(4)
            )
        with tempfile.TemporaryDirectory() as folder:
            lite = Path(folder) / "model.tflite"
            lite.write_bytes(converter.convert())
            return tf2onnx.convert.from_tflite(str(lite), opset=13, output_path=str(path))

    return write


def halved(write: Write) -> Write:
    """In float16 inside, with inputs and outputs as they were."""

    def both(path: Path) -> object:
        write(path)
        return onnx.save(float16.convert_float_to_float16(onnx.load(str(path)), keep_io_types=True), str(path))

    return both


def recipes() -> list[Recipe]:
    """What this environment writes."""
    tf2, keras, common = "tf2onnx", "keras", "onnxconverter-common"
    transposed, bilinear = (lambda: unet("transposed", "swish")), (lambda: unet("bilinear", "elu"))
    unet13 = by_tf2onnx(unet, PICTURE, 13)
    return [
        Recipe("tf_unet_13", tf2, "U-net, nearest", PICTURE, SIDES, unet13),
        Recipe("tf_unet_t_11", tf2, "U-net, Conv2DTranspose", PICTURE, SIDES, by_tf2onnx(transposed, PICTURE, 11)),
        Recipe("tf_unet_b_15", tf2, "U-net, bilinear", PICTURE, SIDES, by_tf2onnx(bilinear, PICTURE, 15)),
        Recipe(
            "tf_unet_nchw_13",
            tf2,
            "U-net, --inputs-as-nchw",
            {"x": Feed((1, 3, "h", "w"))},
            SIDES,
            by_tf2onnx(unet, PICTURE, 13, nchw=True),
        ),
        Recipe(
            "tf_effnet_12",
            tf2,
            "squeeze and excitation",
            PICTURES,
            {**BATCH, **SIDES},
            by_tf2onnx(effnet, PICTURES, 12),
        ),
        Recipe(
            "tf_picture_8",
            tf2,
            "convolutions, pooling",
            PICTURES,
            {**BATCH, **SIDES},
            by_tf2onnx(plain_picture, PICTURES, 8),
        ),
        Recipe("tf_attn_14", tf2, "attention", WORDS, SEQ, by_tf2onnx(attention, WORDS, 14)),
        Recipe("tf_lstm_13", tf2, "LSTM of both directions", SOUNDS, FRAMES, by_tf2onnx(lstm, SOUNDS, 13)),
        Recipe("tf_gru_10", tf2, "causal convolution, GRU", SOUNDS, FRAMES, by_tf2onnx(gru, SOUNDS, 10)),
        Recipe("tf_loop_15", tf2, "while_loop, cond", SOUNDS, FRAMES, by_tf2onnx(Looped, SOUNDS, 15)),
        Recipe(
            "tf_spectrum_17",
            tf2,
            "frames of a signal",
            {"x": Feed(("batch", "samples"))},
            {**BATCH, "samples": Range(128, 8192, 32)},
            by_tf2onnx(lambda: spectrum, {"x": Feed(("batch", "samples"))}, 17),
        ),
        Recipe("lite_picture_13", tf2, "from .tflite", PICTURES, {**BATCH, **SIDES}, from_lite(plain_picture)),
        Recipe(
            "lite_quantised_13",
            tf2,
            "from .tflite, int8",
            PICTURES,
            {**BATCH, **SIDES},
            from_lite(plain_picture, quantised=True),
        ),
        Recipe(
            "keras_unet", keras, "U-net, Conv2DTranspose", PICTURES, {**BATCH, **SIDES}, by_keras(transposed, PICTURES)
        ),
        Recipe("keras_attn", keras, "attention", WORDS, SEQ, by_keras(attention, WORDS)),
        Recipe("keras_lstm", keras, "LSTM of both directions", SOUNDS, FRAMES, by_keras(lstm, SOUNDS)),
        Recipe("f16_unet_13", common, "U-net in float16", PICTURE, SIDES, halved(unet13)),
        Recipe("f16_lstm_13", common, "LSTM in float16", SOUNDS, FRAMES, halved(by_tf2onnx(lstm, SOUNDS, 13))),
    ]


if __name__ == "__main__":
    export(recipes())
