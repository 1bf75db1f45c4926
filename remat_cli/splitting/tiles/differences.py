"""Where the tiles of a split model have other bits than the whole ops they stand for."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from remat_cli.onnx_io.read.interface import DATA_TYPES
from remat_cli.splitting.tiles.build import folded_shape
from remat_cli.splitting.tiles.op_view import SUMMED, Slab
from remat_cli.splitting.tiles.steps import Piece, RunStep, TiledRegion
from remat_cli.splitting.tiles.view import ModelView


def with_outputs(model: ir.Model, view: ModelView, names: Mapping[str, str]) -> ir.Model:
    """A copy of a model that also gives the values named; `names` maps each to the tensor whose type it has."""
    copy = model.clone()
    given = {value.name for value in copy.graph.outputs}
    for node in copy.graph:
        for value in node.outputs:
            name = value.name or ""
            if name in names and name not in given:
                tensor = view.tensors[names[name]]
                value.type = ir.TensorType(DATA_TYPES[tensor.dtype])
                copy.graph.outputs.append(value)
    return copy


def compared_pieces(regions: Iterable[TiledRegion]) -> tuple[tuple[RunStep, Piece], ...]:
    """Everything that ops make in tiles, in order; of sums only those of all tiles."""
    steps = (step for region in regions for step in region.steps if isinstance(step, RunStep))
    made = ((step, piece) for step in steps for piece in step.makes if piece is not None)
    return tuple((step, piece) for step, piece in made if step.turn is None or piece.name == piece.tensor)


def first_difference(
    view: ModelView,
    pieces: Sequence[tuple[RunStep, Piece]],
    whole: Mapping[str, Any],
    split: Mapping[str, Any],
    is_same: Callable[[Any, Any], bool],
) -> int | None:
    """The first op that makes, in some tile, what is not the same as in the whole model; None where none does.

    Only what was asked of a tile counts: beyond it, values may be wrong.
    """
    for step, piece in pieces:
        made, asked = step.work.sliced.makes, step.work.asked
        inner = Slab(asked.axis, asked.start - made.start, asked.stop - made.start)
        ours, theirs = split[piece.name], whole[piece.tensor]
        if asked.axis != SUMMED:
            ours, theirs = _cut(view, piece.tensor, ours, inner), _cut(view, piece.tensor, theirs, asked)
        if not is_same(theirs, ours):
            return step.work.op
    return None


def _cut(view: ModelView, tensor: str, array: Any, slab: Slab) -> Any:
    """A slab of an array, which may lie in blocks of channels."""
    if tensor not in view.blocked:
        return array[(slice(None),) * slab.axis + (slice(slab.start, slab.stop),)]
    shape, axis = folded_shape(array.shape, slab.axis, view.channel_block)
    return array.reshape(shape)[(slice(None),) * axis + (slice(slab.start, slab.stop),)]
