"""Dropout taken apart into its mask, drawn whole from as many places, and what it does to each place by itself.

The kernel draws one number a place, in their order, whatever stands there: the same seed gives the same mask of any
tensor of that size. What it keeps it multiplies by 1, what it drops by 0, and divides by what is kept on average.
Measured with ONNX Runtime 1.32.0, shares of 10 to 90 %, runs in a row, infinities and zeros of either sign: same bits.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from remat_cli.core.schedule.graph import TensorType
from remat_cli.onnx_io.read.interface import fixed_value
from remat_cli.onnx_io.read.op_facts import ONNX
from remat_cli.onnx_io.write.assemble import Draft
from remat_cli.splitting.recast.recast import Recast, Rewrite, taken_apart
from remat_cli.splitting.tiles.view import ModelView

DROPOUT, FLOAT, MASK = (ONNX, "Dropout"), "float", "bool"
RATIO, IS_TRAINING = 1, 2  # inputs
SINCE = 13  # opset: the share and whether to drop at all are inputs


def dropouts_apart(cast: Recast, forbidden: frozenset[str]) -> Recast:
    """The model with every Dropout that drops taken apart, but none forbidden."""
    ops, source = cast.view.graph.ops, number_of(cast.view)
    if source is None:
        return cast
    taken = {op for op in cast.order if ops[op].name not in forbidden and can_be_apart(cast.view, op)}
    return taken_apart(cast, {op: op for op in taken}, lambda rewrite, op: parts_of(rewrite, op, source))


def can_be_apart(view: ModelView, op: int) -> bool:
    """Whether an op is a Dropout of floats that drops a known share, with a seed of its own and its mask as a result.

    Without a seed each of two kernels would draw from wherever the generator of all stands.
    """
    spec = view.ops[op]
    if spec.key != DROPOUT or view.model.graph.opset_imports.get(ONNX, 1) < SINCE or len(view.makes[op]) != 2:
        return False
    made = view.tensors.get(view.makes[op][0])
    if made is None or made.dtype != FLOAT or not made.shape or not all(view.makes[op]):
        return False
    ratio, is_training = (_known(view, op, place) for place in (RATIO, IS_TRAINING))
    return "seed" in spec.node.attributes and ratio is not None and is_training is not None and bool(is_training.all())


def _known(view: ModelView, op: int, place: int) -> npt.NDArray[Any] | None:
    """The constant that an op reads at a place; None where there is none."""
    given = view.nodes[op].inputs
    constant = fixed_value(given[place]) if place < len(given) else None
    return None if constant is None else constant.numpy()


def number_of(view: ModelView) -> str | None:
    """The smallest input of numbers that is one or a list: where masks may be drawn from; None where there is none."""
    names = (value.name or "" for value in view.model.graph.inputs)
    inputs = (view.tensors[name] for name in names if name in view.tensors)
    fits = [each for each in inputs if each.dtype == FLOAT and len(each.shape) <= 1 and 0 not in each.shape]
    return min(fits, key=lambda each: each.size_bytes).name if fits else None


def parts_of(rewrite: Rewrite, op: int, source: str) -> Iterator[Draft]:
    """Drafts of the ops that do the same: places of any content, the mask of these, and what it lets through.

    The places are made of an input of the model, since the runtime would keep what it can compute of constants.
    """
    view, own = rewrite.view, rewrite.view.graph.ops[op].name
    result, mask = view.makes[op]
    shape = view.tensors[result].shape

    def named(what: str, kind: str = FLOAT, of: tuple[int, ...] = shape) -> str:
        name = rewrite.name(f"{result}/{what}")
        rewrite.types[name] = TensorType(kind, of)
        return name

    def draft(op_type: str, reads: tuple[str, ...], makes: tuple[str, ...], *changed: ir.Attr) -> Draft:
        name = rewrite.name(f"{own}/{op_type}")
        rewrite.count(name, op, 0)
        return Draft(name, op_type, reads, makes, changed=changed)

    if view.tensors[source].shape not in ((), (1,)):
        first = named("number", of=(1,))
        yield draft("Gather", (source, rewrite.constant(np.zeros(1, np.int64), f"{result}/first")), (first,))
        source = first
    places, unused, kept = named("places"), named("unused"), named("kept")
    size = rewrite.constant(np.array(shape, np.int64), f"{result}/size")
    yield draft("Expand", (source, size), (places,))
    rewrite.count(own, op, rewrite.cast.costs[op].time_ns)
    drawn = (places, *view.reads[op][1:])
    yield Draft(own, "Dropout", drawn, (unused, mask), changed=(view.nodes[op].attributes["seed"],))
    numbers = named("mask")
    yield draft("Cast", (mask,), (numbers,), ir.AttrInt64("to", ir.DataType.FLOAT))
    yield draft("Mul", (numbers, view.reads[op][0]), (kept,))
    ratio = _known(view, op, RATIO)
    assert ratio is not None
    share = rewrite.constant(np.float32(1) - ratio.astype(np.float32).reshape(()), f"{result}/share")
    yield draft("Div", (kept, share), (result,))
