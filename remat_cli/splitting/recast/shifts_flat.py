"""Rows seen as rows of another length, as scores by distance are that are shifted row by row: by way of one long row.

Attention by relative positions puts a column before the scores, sees them with other rows and drops the first. Few
parts of such a tensor are whole rows before and after. As one long row in between, any rows are a part of it, and that
a part of the rows before, of which the ends are cut off. Elements are moved, none is computed.
"""

from collections.abc import Generator
from math import lcm, prod

import numpy as np

from remat_cli.core.schedule.graph import TensorType
from remat_cli.onnx_io.read.op_facts import ONNX
from remat_cli.onnx_io.write.assemble import Draft
from remat_cli.splitting.recast.recast import Recast, Rewrite, taken_apart
from remat_cli.splitting.tiles.view import ModelView

RESHAPE = (ONNX, "Reshape")
ROWS = 2  # axes of them: how many and how long
FEW_PARTS = 8  # into which a tensor is cut as it is


def rows_apart(cast: Recast, least_bytes: int, forbidden: frozenset[str]) -> Recast:
    """The model in which tensors of so many bytes get rows of another length by way of one long row."""
    view = cast.view
    taken = {op for op in cast.order if view.graph.ops[op].name not in forbidden and has_few_parts(view, op)}
    large = (op for op in taken if view.tensors[view.makes[op][0]].size_bytes >= least_bytes)
    return taken_apart(cast, {op: op for op in large}, _parts)


def has_few_parts(view: ModelView, op: int) -> bool:
    """Whether an op makes rows of another length, of which hardly any begin where one did before."""
    spec = view.ops[op]
    if spec.key != RESHAPE or op in view.of_value_lengths or view.reads[op][0] not in view.tensors:
        return False
    before, after = spec.input_shape(0), spec.output_shape
    if min(len(before), len(after)) < ROWS or before[:-ROWS] != after[:-ROWS] or 0 in after:
        return False
    whole = prod(after[-ROWS:])
    is_same_rows = before[-1] == after[-1] or 1 in (*before[-ROWS:], *after[-ROWS:])
    return not is_same_rows and lcm(before[-1], after[-1]) * FEW_PARTS > whole


def _parts(rewrite: Rewrite, op: int) -> Generator[Draft]:
    """Drafts of the long row and of the rows that are asked for."""
    view = rewrite.view
    own, made, source = view.graph.ops[op].name, view.makes[op][0], view.reads[op][0]
    shape = rewrite.types[made].shape
    steps = ((f"{made}/row", (*shape[:-ROWS], prod(shape[-ROWS:]))), (made, shape))
    for at, (wanted, each) in enumerate(steps):
        result = made if at else rewrite.name(wanted)
        rewrite.types[result] = TensorType(rewrite.types[made].dtype, each)
        name = own if at else rewrite.name(f"{own}/row")
        rewrite.count(name, op, rewrite.cast.costs[op].time_ns // len(steps))
        said = rewrite.constant(np.array(each, np.int64), f"{result}/shape")
        yield Draft(name, "Reshape", (source, said), (result,))
        source = result
