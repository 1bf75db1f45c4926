"""Scores by distance, turned so that each row counts from its own position: as a pick of columns, row by row.

Attention by relative positions computes the scores of all distances, from the farthest behind to the farthest before,
and then shifts each row by its position: a column is put before, the tensor is seen with rows as long as there were
rows, the first of these goes, and the rest is seen as it was. None of these ops has parts that are parts of a row of
the scores. That each row is the part of a row of distances which begins one earlier than the row before can be said by
the columns to pick, of which a few rows are like all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.values.sizes import Dim, SizeFamily, number
from remat_cli.onnx_io.read.interface import fixed_value
from remat_cli.onnx_io.read.normalise import names_in
from remat_cli.splitting.loops.expands import drop_unread
from remat_cli.splitting.loops.loop_values import SizeValues
from remat_cli.splitting.loops.open_shapes import Partable, of_sizes
from remat_cli.splitting.rules.record import REPEATED
from remat_cli.splitting.rules.shape import OPEN_SHAPES

PREFIX = "remat/shift/"
OLDEST_OPSET = 11  # GatherElements, and Range
ROWS, COLUMNS = -2, -1
Dims = Mapping[str, tuple[Dim, ...]]


def with_shifts_as_picks(
    model: ir.Model, dims: Dims, family: SizeFamily, most: Mapping[str, int], large: Collection[str]
) -> Partable:
    """The model with a GatherElements for each shift of large scores; `most` are the largest sizes.

    `dims` are the dimensions of tensors for all sizes.
    """
    is_old = model.graph.opset_imports.get("", 0) < OLDEST_OPSET
    if is_old or not any(_scores(node, dims, family, large) for node in model.graph):
        return Partable(model, {}, {})
    new = model.clone()
    writer = _Picks(new, dims, most)
    nodes = list(new.graph)
    for node in nodes:
        scores = _scores(node, dims, family, large)
        if scores is not None:
            writer.replace(node, scores)
    drop_unread(new.graph, model.graph)
    added = (node for node in new.graph if node not in nodes and node.name not in writer.types)
    size_dims, size_types = of_sizes(each for each in added if each.op_type != "GatherElements")
    new.graph.sort()
    return Partable(new, {**writer.made, **size_dims}, {**writer.types, **size_types})


def _scores(node: ir.Node, dims: Dims, family: SizeFamily, large: Collection[str]) -> ir.Value | None:
    """The large scores of which a Slice, the last op of a shift, makes a part; None where it is no such op."""
    names: list[str] = [node.outputs[0].name or ""]
    last: ir.Node | None = node
    for op_type, place in (("Slice", (COLUMNS, 0)), ("Reshape", None), ("Slice", (ROWS, 1)), ("Reshape", None)):
        if last is None or (last.domain, last.op_type) != ("", op_type) or last.inputs[0] is None:
            return None
        if place is not None and _beginning(last, len(dims.get(last.inputs[0].name or "", ()))) != place:
            return None
        names.append(last.inputs[0].name or "")
        last = last.inputs[0].producer()
    scores = None if last is None else _behind_a_column(last)
    if scores is None or scores.name not in large or any(name not in dims for name in (*names, scores.name)):
        return None
    kept, turned, dropped, longer, padded = (dims[name] for name in names)
    *outer, rows, columns = dims[scores.name or ""]
    is_shift = (
        kept == (*outer, rows, rows)
        and turned == (*outer, rows, columns)
        and dropped == (*outer, columns, rows)
        and longer == (*outer, padded[COLUMNS], rows)
        and padded[:COLUMNS] == (*outer, rows)
        and family.agree(columns.and_more(1), rows, 2)
        and family.agree(padded[COLUMNS], rows, 2)
    )
    return scores if is_shift else None


def _beginning(node: ir.Node, rank: int) -> tuple[int, int] | None:
    """Along which of so many axes, counted from the end, a Slice of step one takes a part, and where that begins."""
    known = [_number(each) for each in node.inputs[1:]]
    if len(known) < 3 or known[0] is None or known[2] is None or known[3:] not in ([], [1]):
        return None
    return known[2] - (rank if known[2] >= 0 else 0), known[0]


def _number(value: ir.Value | None) -> int | None:
    tensor = fixed_value(value)
    return int(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None


def _behind_a_column(node: ir.Node) -> ir.Value | None:
    """What a Pad, or a Concat, puts behind one more column of its own."""
    if (node.domain, node.op_type) == ("", "Concat"):
        return node.inputs[1] if len(node.inputs) == 2 else None  # along the columns, as its dimensions say
    mode = node.attributes.get("mode")
    pads = None if len(node.inputs) < 2 else fixed_value(node.inputs[1])
    is_pad = (node.domain, node.op_type) == ("", "Pad") and (mode is None or mode.as_string() == "constant")
    if not is_pad or pads is None or len(node.inputs) > 3:
        return None
    before, after = np.split(pads.numpy().ravel(), 2)
    return node.inputs[0] if before[COLUMNS] == 1 and not before[:COLUMNS].any() and not after.any() else None


class _Picks:
    """Writes picks into a model; `made` and `types` say dimensions and types of what it makes beside these."""

    def __init__(self, model: ir.Model, dims: Dims, most: Mapping[str, int]) -> None:
        self._graph = model.graph
        self._dims = dims
        self._most = most
        self._numbers = SizeValues(model.graph, dims, names_in(model), PREFIX)
        self.made: dict[str, tuple[Dim, ...]] = {}
        self.types: dict[str, tuple[TensorType, ...]] = {}

    def replace(self, last: ir.Node, scores: ir.Value) -> None:
        """Pick what a Slice takes of scores that were shifted."""
        *outer, rows, _ = self._dims[scores.name or ""]
        numbers, prefix, once = self._numbers, f"{PREFIX}{last.name}/", number(1)
        length, shape = numbers.length(rows), self._shape(prefix, outer)
        to_int32 = ir.AttrInt64("to", ir.DataType.INT32)
        nought, one = (numbers.weight(f"{PREFIX}int32/{each}", np.array(each, np.int32)) for each in (0, 1))
        short = self._op(f"{prefix}length", "Cast", [length], (once,), to_int32)
        count = self._op(f"{prefix}count", "Reshape", [short, numbers.constant([])], ())
        places = self._op(f"{prefix}places", "Range", [nought, count, one], (rows,))
        upright = self._op(f"{prefix}upright", "Reshape", [places, numbers.constant([-1, 1])], (rows, once))
        own = self._op(f"{prefix}rows", "Expand", [upright, shape], (*outer, rows, once))
        end = self._op(f"{prefix}end", "Sub", [count, one], ())
        columns = self._op(f"{prefix}columns", "Add", [places, end], (rows,))
        picked = self._op(f"{prefix}picked", "Sub", [columns, own], (*outer, rows, rows))
        old, axis = last.outputs[0], ir.AttrInt64("axis", COLUMNS)
        new = ir.Value(name=old.name, type=old.type, shape=old.shape)
        pick = ir.Node("", "GatherElements", [scores, picked], [axis], outputs=[new], name=last.name)
        self._graph.insert_after(last, pick)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name = f"{prefix}was"
        self._graph.remove(last, safe=True)

    def _shape(self, prefix: str, outer: list[Dim]) -> ir.Value:
        """What a column of rows is repeated to: as often as there are matrices, however many rows there are."""
        if not any(dim.terms for dim in outer):
            return self._numbers.constant([*(dim.offset for dim in outer), REPEATED, REPEATED])
        parts = [self._numbers.length(dim) for dim in outer] + [self._numbers.constant([REPEATED])] * 2
        name = f"{OPEN_SHAPES}{prefix}shape"
        return self._numbers.op(self._graph, name, "Concat", parts, ir.AttrInt64("axis", 0))

    def _op(self, name: str, op_type: str, reads: list[ir.Value], dims: tuple[Dim, ...], *more: ir.Attr) -> ir.Value:
        """An op of one result, whole numbers of 32 bits."""
        made = self._numbers.op(self._graph, name, op_type, reads, *more)
        made.type = ir.TensorType(ir.DataType.INT32)
        self.made[made.name or ""] = dims
        self.types[name] = (TensorType("int32", tuple(dim.at(self._most) for dim in dims)),)
        return made
