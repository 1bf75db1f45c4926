"""Graphs as older exporters write them, drawn with dice: channels last and computed shapes, old ops, odd files."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from bench.drawn.drawn import Drawn, Feed, Range
from bench.drawn.old_pictures import ACTS, BLOCKS, choosing, conv, dense, grow, layer, shrink
from bench.drawn.old_words import encoder, recurrent, rows
from bench.drawn.sketch import Flow, Sketch, Style


def style_of(dice: np.random.Generator) -> Style:
    """One of the exporters, with one of the operator sets that it wrote."""
    name = ("tf", "keras", "paddle", "mxnet", "torch", "sklearn")[
        int(dice.choice(6, p=[0.2, 0.2, 0.2, 0.15, 0.15, 0.1]))
    ]
    least, most = {
        "tf": (8, 13),
        "keras": (7, 12),
        "paddle": (9, 13),
        "mxnet": (7, 12),
        "torch": (7, 12),
        "sklearn": (9, 13),
    }[name]
    opset = int(dice.integers(least, most + 1))
    return Style(
        name,
        opset,
        is_last=name in ("tf", "keras"),
        pads_alone=name == "keras" or (name == "tf" and dice.random() < 0.4),
        has_int32=name == "tf",
        has_constant_nodes=name in ("paddle", "torch") and dice.random() < 0.8,
        has_weights_as_inputs=name in ("mxnet", "torch", "keras") and dice.random() < 0.6,
        ir_version=3 if opset < 9 else int(dice.integers(4, 8)),
        act=ACTS[int(dice.integers(len(ACTS)))],
    )


def draw_old(seed: int) -> Drawn:
    """The graph of a seed."""
    dice = np.random.default_rng((41, seed))
    s = Sketch(dice, style_of(dice))
    s.families += [s.style.name, f"opset {s.opset}"]
    kind: Callable[[Sketch], tuple[Mapping[str, Feed], Mapping[str, Range], str]] = pictures
    if s.style.name == "sklearn":
        kind = tables
    elif s.chance(0.4):
        kind = s.pick(words, sequences) if s.style.name != "mxnet" else sequences
    feeds, ranges, result = kind(s)
    s.mark(kind.__name__)
    return Drawn(written(s, feeds, result), *nameless(s, feeds, ranges), tuple(s.families))


def pictures(s: Sketch) -> tuple[Mapping[str, Feed], Mapping[str, Range], str]:
    """Down, perhaps up again, and classes, a map, or boxes of several scales."""
    step = s.pick(8, 16, 32)
    ranges = {"batch": Range(1, s.pick(2, 4)), "height": Range(step, 32 * s.pick(4, 5), step)}
    ranges["width"] = ranges["height"]
    for name in s.pick(("batch",), ("width",), ("height", "width"), ()):
        del ranges[name]
    sides = [name if name in ranges else {"batch": 1}.get(name, 128) for name in ("batch", "height", "width")]
    shape = (sides[0], *sides[1:], 3) if s.style.is_last else (sides[0], 3, *sides[1:])
    width = s.pick(16, 24)
    x = layer(s, Flow("x", 3, s.style.is_last), width)
    before = []
    for at in range(s.pick(2, 3)):
        for _ in range(s.pick(1, 2)):
            x = s.pick(*BLOCKS, *([choosing] if at == 0 else []))(s, x)
        before.append(x)
        x = shrink(s, x, min(48, width * 2 ** ((at + 1) // 2)))
    head = s.pick("classes", "map", "map", "boxes")
    s.mark(head)
    if head == "classes":
        return {"x": Feed(shape)}, ranges, classes(s, x)
    scales = [x]
    for fine in reversed(before):
        x = grow(s, x, fine)
        scales.append(x)
    if head == "map":
        y = s.second(conv(s, x, 2, 1))
        return {"x": Feed(shape)}, ranges, s.op("Sigmoid", y.name)
    return {"x": Feed(shape)}, ranges, boxes(s, scales[-3:])


def classes(s: Sketch, x: Flow) -> str:
    """Scores of classes of the mean of a picture."""
    if x.is_last and s.chance():
        flat = s.squeeze(s.mean(x.name, 1, 2), 1, 2)
    else:
        y = s.op("GlobalAveragePool", s.second(x).name)
        flat = s.op("Flatten", y, axis=1) if s.chance() else s.op("Reshape", y, s.ints(0, -1))
    return s.op("Softmax", dense(s, flat, x.channels, 10), axis=1)


def boxes(s: Sketch, scales: list[Flow]) -> str:
    """Four numbers for each place of each scale."""
    flat = []
    for scale in scales:
        y = s.last(conv(s, scale, 8, 1))
        shape = s.shape(y.name)
        flat.append(s.reshape(y.name, (shape, 0), -1, 4) if s.chance() else s.reshape(y.name, 0, -1, 4))
    return s.op("Sigmoid", s.op("Concat", *flat, axis=1))


def words(s: Sketch) -> tuple[Mapping[str, Feed], Mapping[str, Range], str]:
    """Batches and lengths of words."""
    ranges = {"batch": Range(1, s.pick(2, 4)), "seq": Range(1, s.pick(128, 256, 320))}
    if s.chance(0.3):
        del ranges["batch"]
    shape = ("batch" if "batch" in ranges else 1, "seq")
    kind = s.pick(np.int32, np.int64)
    feeds = {"ids": Feed(shape, "words", kind)}
    if masked := s.chance():
        feeds["mask"] = Feed(shape, "mask", kind)
    return feeds, ranges, encoder(s, "mask" if masked else None)


def sequences(s: Sketch) -> tuple[Mapping[str, Feed], Mapping[str, Range], str]:
    """Batches of features over time."""
    ranges = {"batch": Range(1, s.pick(4, 8)), "time": Range(2, s.pick(512, 1024), 2)}
    if s.chance(0.3):
        del ranges["batch"]
    return {"x": Feed(("batch" if "batch" in ranges else 1, "time", 16))}, ranges, recurrent(s)


def tables(s: Sketch) -> tuple[Mapping[str, Feed], Mapping[str, Range], str]:
    """Rows of numbers."""
    return {"x": Feed(("batch", 8))}, {"batch": Range(1, s.pick(1000, 4000))}, rows(s)


def nameless(
    s: Sketch, feeds: Mapping[str, Feed], ranges: Mapping[str, Range]
) -> tuple[Mapping[str, Feed], Mapping[str, Range]]:
    """Sizes that have no name in the file are told by input and axis; only where one input has each."""
    if s.style.name != "paddle" or len(feeds) > 1:
        return feeds, ranges
    ((name, feed),) = feeds.items()
    renamed = {each: f"{name}_dim_{axis}" for axis, each in enumerate(feed.shape) if isinstance(each, str)}
    shape = tuple(renamed.get(each, each) if isinstance(each, str) else each for each in feed.shape)
    return {name: Feed(shape, feed.kind, feed.dtype)}, {renamed[each]: range_ for each, range_ in ranges.items()}


def written(s: Sketch, feeds: Mapping[str, Feed], result: str) -> onnx.ModelProto:
    """The file, with what its exporter is known for."""
    hides = s.style.name == "paddle" and len(feeds) == 1
    unknown = s.pick("?", "", None) if hides else None
    inputs = []
    for name, feed in feeds.items():
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(feed.dtype))
        shape = [unknown if hides and isinstance(each, str) else each for each in feed.shape]
        inputs.append(helper.make_tensor_value_info(name, kind, shape))
    if s.style.has_weights_as_inputs or s.style.ir_version < 4:
        s.mark("weights as inputs")
        inputs += [helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in s.weights]
    output = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
    nodes = unsorted(s) if s.chance(0.15) else s.nodes
    domains = [helper.make_opsetid("ai.onnx" if s.chance(0.1) else "", s.opset)]
    if s.style.name == "sklearn":
        domains.append(helper.make_opsetid("ai.onnx.ml", 1))
    if s.chance(0.2):
        domains.append(helper.make_opsetid("com.microsoft", 1))
    graph = helper.make_graph(nodes, s.style.name, inputs, [output], s.weights)
    return helper.make_model(graph, opset_imports=domains, ir_version=s.style.ir_version, producer_name=s.style.name)


def unsorted(s: Sketch) -> list[onnx.NodeProto]:
    """Nodes out of order: some that need little come last, as converters append them."""
    s.mark("unsorted")
    late = {at for at in range(len(s.nodes)) if s.chance(0.1)}
    return [*(n for at, n in enumerate(s.nodes) if at not in late), *(n for at, n in enumerate(s.nodes) if at in late)]
