"""Quantisation by the range of a whole tensor, taken apart into that range, by rows or positions, and the rest.

The least and the greatest number are the same in any order. What the runtime makes of both it makes of a tensor of
lines' ends too: DynamicQuantizeLinear of those gives scale and zero point, and QuantizeLinear all parts. Measured with
ONNX Runtime 1.32.0 on 1,650 tensors, 1, 2 and 4 threads (constants, zeros of either sign, infinities, denormals, huge
numbers among them): scale, zero point and every quantised number are the same. Only what is no number differs (4 of 150
tensors with a NaN): where the runtime itself looks for the ends in packets, a NaN hides those met before it.
"""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from remat_cli.core.schedule.graph import TensorType
from remat_cli.onnx_io.read.default_order import captured_values
from remat_cli.onnx_io.read.op_facts import CONTRIB, ONNX
from remat_cli.onnx_io.write.assemble import Draft
from remat_cli.splitting.recast.recast import Recast, Rewrite, taken_apart
from remat_cli.splitting.rules.conv_channels import CHANNELS, SPATIAL
from remat_cli.splitting.tiles.view import ModelView

QUANTISE, PRODUCT = (ONNX, "DynamicQuantizeLinear"), (CONTRIB, "DynamicQuantizeMatMul")
MATRIX, SCALE, ZERO_POINT, BIAS = 1, 2, 3, 4  # inputs of the product
SINCE = 11  # opset: DynamicQuantizeLinear
AXES_INPUT_SINCE = 18  # before this opset reductions had their axes as an attribute
PASSES = 3  # over the input: for the least, for the greatest number, for quantising
MUCH_LONGER = 2  # than high: a picture that goes by columns
PASS_TERMS = 16  # a product takes as long for so many columns as one pass
FLOAT, BYTES = "float", "uint8"
Drafts = Generator[Draft]


def ranges_apart(cast: Recast, least_bytes: int, forbidden: frozenset[str]) -> Recast:
    """The model with every quantisation of a tensor of at least so many bytes taken apart, but none forbidden."""
    names = cast.view.graph.ops
    taken = {op for op in cast.order if names[op].name not in forbidden and has_range(cast.view, op, least_bytes)}
    return taken_apart(cast, {op: op for op in taken}, parts_of)


def has_range(view: ModelView, op: int, least_bytes: int = 0) -> bool:
    """Whether an op quantises by the range of a tensor of so many bytes, and can be taken apart."""
    spec = view.ops[op]
    if spec.key not in (QUANTISE, PRODUCT) or captured_values(view.nodes[op]) or op in view.of_value_lengths:
        return False
    read = view.tensors.get(view.reads[op][0])
    if read is None or read.dtype != FLOAT or read.size_bytes < least_bytes or not read.shape or 0 in read.shape:
        return False
    return view.model.graph.opset_imports.get(ONNX, 1) >= SINCE and all(view.makes[op])


def parts_of(rewrite: Rewrite, op: int) -> Drafts:
    """Drafts of the ops that do the same: the ends of all lines, scale and zero point, and what is made with them."""
    view = rewrite.view
    steps = _Steps(rewrite, op)
    source = view.reads[op][0]
    if view.ops[op].key == QUANTISE:
        yield from steps.quantised(source, view.makes[op])
        return
    names = tuple(rewrite.name(f"{view.makes[op][0]}/{what}") for what in ("quantised", "scale", "zero_point"))
    yield from steps.quantised(source, names)
    given = (*view.reads[op], *("",) * BIAS)
    reads = [names[0], given[MATRIX], names[1], given[SCALE], names[2], given[ZERO_POINT], given[BIAS]]
    while not reads[-1]:
        reads.pop()
    rewrite.count(steps.own, op, rewrite.cast.costs[op].time_ns)
    yield Draft(steps.own, "MatMulIntegerToFloat", tuple(reads), view.makes[op], CONTRIB)


@dataclass(frozen=True)
class _Steps:
    """Drafts of one op each."""

    rewrite: Rewrite
    op: int

    @property
    def own(self) -> str:
        """Name of the op that is taken apart."""
        return self.rewrite.view.graph.ops[self.op].name

    def quantised(self, source: str, made: tuple[str, ...]) -> Drafts:
        """A tensor in bytes, its scale and its zero point."""
        shape = self.rewrite.types[source].shape
        inside = _axis_inside(self.rewrite.view, self.op)
        ends = (*shape[:inside], 1, *shape[inside + 1 :])
        lines = []
        for op_type, what in (("ReduceMin", "least"), ("ReduceMax", "greatest")):
            if self.rewrite.view.model.graph.opset_imports.get(ONNX, 1) < AXES_INPUT_SINCE:
                reads: tuple[str, ...] = (source,)
                changed: tuple[ir.Attr, ...] = (ir.AttrInt64s("axes", (inside,)),)
            else:
                reads = (source, self.rewrite.constant(np.array([inside], np.int64), f"{source}/axes"))
                changed = ()
            lines.append(self._named(what, FLOAT, ends))
            yield self._draft(op_type, reads, (lines[-1],), changed, self._pass_ns)
        both = self._named("ends", FLOAT, (*shape[:inside], 2, *shape[inside + 1 :]))
        yield self._draft("Concat", tuple(lines), (both,), (ir.AttrInt64("axis", inside),))
        bytes_of_ends = self._named("ends_in_bytes", BYTES, self.rewrite.types[both].shape)
        quantised, scale, zero_point = made
        self.rewrite.types |= {
            quantised: TensorType(BYTES, shape),
            scale: TensorType(FLOAT, ()),
            zero_point: TensorType(BYTES, ()),
        }
        self.rewrite.alike |= dict.fromkeys((*lines, both, bytes_of_ends, quantised), source)
        yield self._draft("DynamicQuantizeLinear", (both,), (bytes_of_ends, scale, zero_point))
        yield self._draft("QuantizeLinear", (source, scale, zero_point), (quantised,), (), self._pass_ns)

    @property
    def _pass_ns(self) -> int:
        """How long going over the input once takes."""
        view, time_ns = self.rewrite.view, self.rewrite.cast.costs[self.op].time_ns
        if view.ops[self.op].key == QUANTISE:
            return time_ns // PASSES
        return time_ns // (PASSES + view.ops[self.op].output_shape[-1] // PASS_TERMS)

    def _named(self, what: str, kind: str, shape: tuple[int, ...]) -> str:
        name = self.rewrite.name(f"{self.rewrite.view.makes[self.op][0]}/{what}")
        self.rewrite.types[name] = TensorType(kind, shape)
        return name

    def _draft(
        self,
        op_type: str,
        reads: tuple[str, ...],
        makes: tuple[str, ...],
        changed: tuple[ir.Attr, ...] = (),
        time_ns: int = 0,
    ) -> Draft:
        name = self.rewrite.name(f"{self.own}/{op_type}")
        self.rewrite.count(name, self.op, time_ns)
        return Draft(name, op_type, reads, makes, changed=changed)


def _axis_inside(view: ModelView, op: int) -> int:
    """The axis over which ends are found at once: tensors of who reads the result are cut along others.

    Products read theirs by rows, of all columns; convolutions of pictures by rows as well, those of spectra, which are
    much longer than high, by columns, and those of sounds by positions of all channels. Along the last axis that takes
    0.05 to 0.2 ns for each number, along the one before it as much, over channels 0.3 to 5 (1.32.0, one thread).
    """
    shape = view.ops[op].input_shape(0)
    readers = (reader for name in view.makes[op] for reader in view.readers.get(name, ()))
    last = len(shape) - 1
    if last < SPATIAL or all(view.graph.ops[reader].op_type != "ConvInteger" for reader in readers):
        return last
    if last == SPATIAL:
        return CHANNELS
    return last - 1 if shape[last] > MUCH_LONGER * shape[last - 1] else last
