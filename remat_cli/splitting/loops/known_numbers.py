"""Numbers that ops compute from shapes and that are the same for all sizes: written down.

torch before operator set 13 cuts halves of channels by numbers that it takes from the shape of what is cut. Ops that
compute them read that tensor, which a loop would not keep whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from remat_cli.base.present import present
from remat_cli.core.values.sizes import Dim
from remat_cli.onnx_io.read.interface import fixed_value
from remat_cli.onnx_io.write.weights import weight_in
from remat_cli.splitting.loops.expands import drop_unread

PREFIX = "remat/number/"
MOST_NUMBERS = 16
Numbers = npt.NDArray[np.object_]
KNOWN_BOUNDS, AXES = (2, 3, 4), 3
"""How many inputs a Slice has beside what it cuts: starts, ends, perhaps axes, perhaps steps."""
WHOLE = frozenset({ir.DataType.INT64, ir.DataType.INT32})


@dataclass(frozen=True)
class KnownNumbers:
    """A few integers with their type; each is None where it is not the same for all sizes."""

    numbers: Numbers
    kind: ir.DataType

    @property
    def array(self) -> npt.NDArray[Any]:
        """The integers, all of which are known."""
        return self.numbers.astype(self.kind.numpy())


def with_known_numbers(model: ir.Model, dims: Mapping[str, tuple[Dim, ...]]) -> ir.Model:
    """Has ops read constants in place of what is computed, and the same for all sizes; may return the model itself.

    `dims` are the dimensions of tensors for all sizes.
    """
    known = known_numbers(model.graph, dims)
    if not any(_read_of(node, known) for node in model.graph):
        return model
    plain = model.clone()
    for node in plain.graph:
        for at in _read_of(node, known):
            array = known[present(node.inputs[at], "what an op reads").name or ""].array
            name = f"{PREFIX}{array.dtype.str[1:]}/{array.ndim}/{'_'.join(map(str, array.ravel()))}"
            node.replace_input_with(at, weight_in(plain.graph, name, array))
    drop_unread(plain.graph, model.graph)
    return plain


def _read_of(node: ir.Node, known: Mapping[str, KnownNumbers]) -> list[int]:
    """Where an op that is not needed to compute known numbers reads some."""
    if all(value.name in known for value in node.outputs):
        return []
    return [at for at, value in enumerate(node.inputs) if value is not None and value.name in known]


def known_numbers(graph: ir.Graph, dims: Mapping[str, tuple[Dim, ...]]) -> dict[str, KnownNumbers]:
    """By name what ops compute that is the same for all sizes."""
    found: dict[str, KnownNumbers] = {}
    for node in graph:
        read = [_given(value, found) for value in node.inputs]
        made = None if node.domain else _made(node, [None if each is None else each.numbers for each in read], dims)
        if made is not None and len(node.outputs) == 1 and made.size <= MOST_NUMBERS:
            kind = ir.DataType.INT64 if node.op_type == "Shape" else present(read[0], "the first input").kind
            kind = ir.DataType(node.attributes["to"].as_int()) if node.op_type == "Cast" else kind
            found[node.outputs[0].name or ""] = KnownNumbers(made, kind)
    return {name: each for name, each in found.items() if None not in each.numbers.ravel().tolist()}


def _given(value: ir.Value | None, found: Mapping[str, KnownNumbers]) -> KnownNumbers | None:
    """What an op reads, where it is a few integers."""
    constant = fixed_value(value)
    if constant is None:
        return None if value is None else found.get(value.name or "")
    is_few = constant.dtype in WHOLE and constant.size <= MOST_NUMBERS
    return KnownNumbers(constant.numpy().astype(object), constant.dtype) if is_few else None


def _made(node: ir.Node, read: Sequence[Numbers | None], dims: Mapping[str, tuple[Dim, ...]]) -> Numbers | None:
    """What an op makes of numbers; None where that is not a few integers, or it reads something else too."""
    if node.op_type == "Shape":
        taken = asked_lengths(node, dims)
        return None if taken is None else np.array([None if dim.names else dim.at({}) for dim in taken], object)
    given = [numbers for numbers in read if numbers is not None]
    if len(given) < len(node.inputs) or not given:
        return None
    if node.op_type in BY_ELEMENT:
        compute = BY_ELEMENT[node.op_type]
        known = np.frompyfunc(lambda one, other: None if one is None or other is None else compute(one, other), 2, 1)
        return np.asarray(known(*given), object)
    move = MOVES.get(node.op_type)
    return None if move is None else move(node, given)


def asked_lengths(node: ir.Node, dims: Mapping[str, tuple[Dim, ...]]) -> tuple[Dim, ...] | None:
    """The lengths that a Shape tells, all or those between its bounds; None where they are not known."""
    source = node.inputs[0]
    shape = None if source is None else dims.get(source.name or "")
    start, end = (node.attributes.get(name) for name in ("start", "end"))
    bounds = slice(None if start is None else start.as_int(), None if end is None else end.as_int())
    return None if shape is None else shape[bounds]


def _gathered(node: ir.Node, read: Sequence[Numbers]) -> Numbers | None:
    axis = node.attributes.get("axis")
    is_list = read[0].ndim == 1 and (axis is None or axis.as_int() in (0, -1))
    if not is_list or None in read[1].ravel().tolist():
        return None
    return np.asarray(read[0][read[1].astype(np.int64)], object)


def _sliced(node: ir.Node, read: Sequence[Numbers]) -> Numbers | None:
    """A part of a list, where its bounds are known, and are no attributes as in older operator sets."""
    bounds = [numbers.ravel().tolist() for numbers in read[1:]]
    if len(bounds) not in KNOWN_BOUNDS or read[0].ndim != 1 or [None] in bounds:
        return None
    step = bounds[3][0] if len(bounds) > AXES else 1
    return np.asarray(read[0][bounds[0][0] : bounds[1][0] : step], object)


BY_ELEMENT: Mapping[str, Callable[[int, int], int | None]] = {
    "Add": lambda one, other: one + other,
    "Sub": lambda one, other: one - other,
    "Mul": lambda one, other: one * other,
    "Div": lambda one, other: int(np.trunc(one / other)) if other else None,
}
MOVES: Mapping[str, Callable[[ir.Node, Sequence[Numbers]], Numbers | None]] = {
    "Gather": _gathered,
    "Slice": _sliced,
    "Concat": lambda _node, read: np.concatenate(read) if all(numbers.ndim == 1 for numbers in read) else None,
    "Identity": lambda _node, read: read[0],
    "Cast": lambda node, read: read[0] if ir.DataType(node.attributes["to"].as_int()) in WHOLE else None,
    "Unsqueeze": lambda _node, read: read[0].reshape(1) if read[0].ndim == 0 else None,
    "Squeeze": lambda _node, read: read[0].reshape(()) if read[0].size == 1 else None,
}
