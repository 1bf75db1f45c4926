"""Forms of the gradients of convolution layers on the CPU, each measured alone: `python -m bench.conv_gradients`.

Prints a Markdown table: the time of each form, in all and against the forward op, and what it holds in memory at most
beside its inputs (the gradient itself included). A star marks the form that the gradient rules choose. Words after
the command pick the layers whose names have one of them.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from remat_cli.autodiff import rules_conv
from remat_cli.autodiff.rules_conv_window import LEADING, ConvWindow, crop, fit, pairs, tiled
from remat_cli.autodiff.tape import IR_VERSION, OPSET, Tape, shape_of
from remat_cli.runtime.measure.profilers import ProfileRequest, measure
from remat_cli.runtime.sessions.session import SessionSettings, optimize, run_profiled

THREADS = 2
REQUEST = ProfileRequest(runs=5, intra_op_threads=THREADS)
MIB = 2**20


@dataclass(frozen=True)
class Layer:
    """A square convolution: batch, channels in and out, kernel, stride, padding, side of the image, groups."""

    batch: int
    channels: int
    results: int
    kernel: int
    stride: int
    pad: int
    side: int
    group: int = 1

    @property
    def window(self) -> ConvWindow:
        """As the gradient rules see it."""
        out = (self.side + 2 * self.pad - self.kernel) // self.stride + 1
        numbers = ((n, n) for n in (self.side, out, self.kernel, self.stride, 1, self.pad))
        return ConvWindow(*numbers)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the image, the gradient of the result and the weights."""
        return {
            "image": (self.batch, self.channels, self.side, self.side),
            "grad": (self.batch, self.results, *self.window.results),
            "weight": (self.results, self.channels // self.group, self.kernel, self.kernel),
        }


Form = Callable[[Tape, ConvWindow, ir.Value, ir.Value, int], ir.Value]
LAYERS: Mapping[str, Layer] = {
    "3-64 7x7/2 on 224": Layer(8, 3, 64, 7, 2, 3, 224),
    "64-64 3x3 on 56": Layer(8, 64, 64, 3, 1, 1, 56),
    "64-64 3x3 on 56, one image": Layer(1, 64, 64, 3, 1, 1, 56),
    "512-512 3x3 on 28": Layer(8, 512, 512, 3, 1, 1, 28),
    "512-512 3x3 on 7": Layer(8, 512, 512, 3, 1, 1, 7),
    "128-128 3x3/2 on 56": Layer(8, 128, 128, 3, 2, 1, 56),
    "128-128 3x3/2 on 56, one image": Layer(1, 128, 128, 3, 2, 1, 56),
    "256-512 1x1/2 on 56": Layer(8, 256, 512, 1, 2, 0, 56),
    "256-64 1x1 on 56": Layer(8, 256, 64, 1, 1, 0, 56),
    "512-2048 1x1 on 7": Layer(8, 512, 2048, 1, 1, 0, 7),
    "64-21 1x1 on 64": Layer(8, 64, 21, 1, 1, 0, 64),
    "depthwise 64 3x3 on 56": Layer(8, 64, 64, 3, 1, 1, 56, 64),
    "depthwise 64 3x3/2 on 56": Layer(8, 64, 64, 3, 2, 1, 56, 64),
    "64-64 3x3 in 8 groups on 28": Layer(8, 64, 64, 3, 1, 1, 28, 8),
}


def main() -> None:
    """Print the table."""
    rows = ["| layer | part | form | ms | x forward | MiB held | of it workspace | ops |", "| --- " * 8 + "|"]
    sys.stdout.write("\n".join(rows) + "\n")
    for name, layer in LAYERS.items():
        if len(sys.argv) == 1 or any(word in name for word in sys.argv[1:]):
            for row in _rows(name, layer):
                sys.stdout.write(row + "\n")
                sys.stdout.flush()


def _rows(name: str, layer: Layer) -> Iterator[str]:
    forward = _figures(layer, _forward, ("image", "weight"))
    yield _row(name, "forward", "Conv", forward, forward)
    for part, forms, chosen, inputs in (
        ("weights", WEIGHT_FORMS, rules_conv.weight_gradient, ("image", "grad")),
        ("image", IMAGE_FORMS, rules_conv.image_gradient, ("grad", "weight")),
    ):
        wanted = _ops(layer, chosen, inputs)
        for form, write in forms.items():
            if _suits(form, layer):
                star = " *" if _ops(layer, write, inputs) == wanted else ""
                yield _row(name, part, form + star, _figures(layer, write, inputs), forward)


def _suits(form: str, layer: Layer) -> bool:
    """Whether a form can be written for a layer."""
    return {
        "product of each image": layer.kernel == 1,
        "product of each tap": layer.kernel <= 3,
        "dilated gradient": layer.stride > 1,
    }.get(form, True)


def _row(name: str, part: str, form: str, figures: tuple[float, int, int, int], forward: tuple[float, ...]) -> str:
    ms, held, workspace, ops = figures
    cells = [f"{ms:.2f}", f"{ms / forward[0]:.2f}", f"{held / MIB:.1f}", f"{workspace / MIB:.1f}", str(ops)]
    return f"| {' | '.join([name, part, form, *cells])} |"


def _figures(layer: Layer, write: Form, inputs: tuple[str, str]) -> tuple[float, int, int, int]:
    """Milliseconds, most bytes held, most workspace, ops after the runtime's optimiser."""
    model = _model(layer, write, inputs)
    generator = np.random.default_rng(0)
    feeds = {name: generator.standard_normal(layer.shapes[name]).astype(np.float32) for name in inputs}
    with tempfile.TemporaryDirectory() as folder:
        path, optimised = Path(folder) / "form.onnx", Path(folder) / "optimised.onnx"
        ir.save(model, path)
        optimize(path, optimised, "extended", THREADS)
        names = [node.name or "" for node in ir.load(optimised).graph]
        measured = measure(optimised, feeds, names, REQUEST)
        live = run_profiled(optimised, feeds, SessionSettings(intra_op_threads=THREADS, profiling=True))
    workspace = {op.name: op.workspace_bytes for op in measured.ops}
    return measured.run_ns / 1e6, live.peak_with_workspace(workspace), max(workspace.values()), len(names)


def _ops(layer: Layer, write: Form, inputs: tuple[str, str]) -> list[str]:
    return [f"{node.op_type} {dict(node.attributes)}" for node in _model(layer, write, inputs).graph]


def _model(layer: Layer, write: Form, inputs: tuple[str, str]) -> ir.Model:
    tape = Tape(inputs)
    float32 = ir.TensorType(ir.DataType.FLOAT)
    first, second = (ir.Value(name=name, type=float32, shape=ir.Shape(layer.shapes[name])) for name in inputs)
    result = write(tape, layer.window, first, second, layer.group)
    constants = list(tape.constants.values())
    graph = ir.Graph(
        (first, second), (result,), nodes=tape.nodes, initializers=constants, opset_imports={"": OPSET}, name="form"
    )
    return ir.Model(graph, ir_version=IR_VERSION)


def _forward(tape: Tape, window: ConvWindow, image: ir.Value, weight: ir.Value, group: int) -> ir.Value:
    pads = [*window.lows, *(max(high, 0) for high in window.highs)]
    return tape.op("Conv", image, weight, strides=window.strides, pads=pads, group=group)


def _dilated(tape: Tape, window: ConvWindow, grad: ir.Value, weight: ir.Value, group: int) -> ir.Value:
    """Zeros between the elements of the gradient, then a convolution with every tap for every element."""
    batch, results, *places = shape_of(grad)
    dots = tape.op("Reshape", grad, tape.ints(batch, results, *pairs(places, [1] * window.rank)))
    grad = tiled(tape, dots, window.strides)
    sizes = shape_of(grad)[LEADING:]
    one = (1,) * window.rank
    lows = [taps - 1 - low for taps, low in zip(window.kernel, window.lows, strict=True)]
    highs = [size + low - now for size, low, now in zip(window.sizes, window.lows, sizes, strict=True)]
    grad, (before, after) = fit(tape, grad, lows, highs)
    plain = ConvWindow(window.sizes, sizes, window.kernel, one, one, window.lows)
    turned = rules_conv._by_phase(tape, plain, weight, [0] * window.rank, group)
    return tape.op("Conv", grad, turned, pads=[*before, *after], group=group)


def _tap_by_tap(tape: Tape, window: ConvWindow, image: ir.Value, grad: ir.Value, group: int) -> ir.Value:
    """A weight gradient of one tap for each, of the image shifted."""
    padded = tape.op("Pad", image, tape.ints(0, 0, *window.lows, 0, 0, *(max(high, 0) for high in window.highs)))
    parts = []
    for tap in np.ndindex(*window.kernel):
        reach = [(count - 1) * stride + 1 for count, stride in zip(window.results, window.strides, strict=True)]
        ends = [first + length for first, length in zip(tap, reach, strict=True)]
        parts.append(rules_conv.weight_by_product(tape, crop(tape, padded, tap, ends, window.strides), grad, group))
    joined = tape.op("Concat", *parts, axis=-1)
    return tape.op("Reshape", joined, tape.ints(*shape_of(joined)[:LEADING], *window.kernel))


def _product(tape: Tape, window: ConvWindow, image: ir.Value, grad: ir.Value, group: int) -> ir.Value:
    ends = [size + min(high, 0) for size, high in zip(window.sizes, window.highs, strict=True)]
    return rules_conv.weight_by_product(tape, crop(tape, image, [0] * window.rank, ends, window.strides), grad, group)


IMAGE_FORMS: Mapping[str, Form] = {
    "ConvTranspose": rules_conv.transposed_image,
    "turned weights by phase": rules_conv.gathered_image,
    "dilated gradient": _dilated,
}
WEIGHT_FORMS: Mapping[str, Form] = {
    "images as groups": rules_conv.weight_by_sample,
    "batch as channels": rules_conv.weight_over_batch,
    "channels as batch": rules_conv.weight_by_channels_as_batch,
    "product of each image": _product,
    "product of each tap": _tap_by_tap,
}


if __name__ == "__main__":
    main()
