"""Transposed convolutions that take much for themselves, as some of fewer channels each, joined.

They spread a product over places; all of it is there, for one item of a batch, however few of these a loop runs at a
time. Of fewer channels it is as much smaller. The sums are those of the whole op: see `channels_of_transposed`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from math import prod

import numpy as np
import onnx_ir as ir

from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.values.sizes import Dim
from remat_cli.onnx_io.write.assemble import Draft
from remat_cli.splitting.recast.recast import Rewrite
from remat_cli.splitting.rules.conv_channels import CHANNELS, SPATIAL
from remat_cli.splitting.rules.matrix import is_same_product
from remat_cli.splitting.tiles.view import ModelView

WEIGHTS, BIAS, IN, OUT = 1, 2, 0, 1  # inputs, and axes of the weights
MOST_PARTS = 8
PICTURES = 4  # axes


def comes_in_channels(
    view: ModelView, op: int, dims: Mapping[str, tuple[Dim, ...]], least: Mapping[str, int], workspace_bytes: int
) -> bool:
    """Whether an op is such a convolution, with the same bits by channels for all sizes from the `least` ones on.

    Not of pictures whose size varies: tiles of rows take less there.
    """
    spec, made = view.ops[op], view.makes[op][0]
    if spec.key != ("", "ConvTranspose") or spec.integer("group", 1) != 1 or op in view.of_value_lengths:
        return False
    given, read = (place for place in (WEIGHTS, BIAS) if spec.has_input(place)), dims.get(view.reads[op][0])
    if read is None or made not in dims or any(spec.constant(place) is None for place in given):
        return False
    if len(read) >= PICTURES and any(dim.terms for dim in read[SPATIAL:]):
        return False
    positions = prod(dim.at(least) for dim in read[SPATIAL:])
    weights = spec.input_shape(WEIGHTS)
    is_same = is_same_product(spec, WEIGHTS, weights[IN], (positions, positions))
    return is_same and prod(weights[SPATIAL:]) > 1 and parts_of_channels(view, op, workspace_bytes) > 1


def parts_of_channels(view: ModelView, op: int, workspace_bytes: int) -> int:
    """Into how many parts: so many that each takes no more than what joining them does; 1 where that is more anyhow."""
    source, made = (view.tensors[name].size_bytes for name in (view.reads[op][0], view.makes[op][0]))
    channels = view.ops[op].output_shape[CHANNELS]
    counts = [count for count in range(2, MOST_PARTS + 1) if channels % count == 0]
    if made >= source + workspace_bytes or not counts:
        return 1
    return next((count for count in counts if source + workspace_bytes // count <= made), counts[-1])


def in_channels(rewrite: Rewrite, op: int) -> Generator[Draft]:
    """The op for some channels after others, and what all make, joined."""
    view, cost = rewrite.view, rewrite.cast.costs[op]
    own, made = view.graph.ops[op].name, view.makes[op][0]
    count = parts_of_channels(view, op, cost.workspace_bytes)
    items, channels, *places = rewrite.types[made].shape
    joined = [rewrite.name(f"{made}/channels_{at}") for at in range(count)]
    for at, result in enumerate(joined):
        rewrite.types[result] = TensorType("float", (items, channels // count, *places))
        rewrite.alike[result] = made
        name = rewrite.name(f"{own}/channels_{at}")
        rewrite.count(name, op, cost.time_ns // count, cost.workspace_bytes // count)
        reads = _reads(rewrite, op, slice(at * channels // count, (at + 1) * channels // count))
        yield Draft(name, "ConvTranspose", tuple(reads), (result,), source=view.nodes[op])
    rewrite.count(own, op, 0)
    yield Draft(own, "Concat", tuple(joined), (made,), changed=(ir.AttrInt64("axis", CHANNELS),))


def _reads(rewrite: Rewrite, op: int, own: slice) -> Sequence[str]:
    """What a part reads: the whole input, and weights of its channels."""
    spec, reads = rewrite.view.ops[op], list(rewrite.view.reads[op])
    for place in (place for place in (WEIGHTS, BIAS) if spec.has_input(place)):
        whole = spec.constant(place)
        assert whole is not None
        part = whole[:, own] if place == WEIGHTS else whole[own]
        reads[place] = rewrite.constant(np.ascontiguousarray(part), f"{reads[place]}/{own.start}")
    return reads
