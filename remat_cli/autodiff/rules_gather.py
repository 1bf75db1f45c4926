"""Gradients of ops that read or write at indices."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import onnx_ir as ir

from remat_cli.autodiff.call import Call, Grads, Rule, only
from remat_cli.autodiff.moves import scatter_add, ungather, zeros
from remat_cli.autodiff.rules_shape import Found
from remat_cli.autodiff.shapes import positive, reshape
from remat_cli.autodiff.tape import Array, Tape
from remat_cli.base.errors import ModelError

FIRST = frozenset({0})


def _gather(tape: Tape, call: Call, grads: Grads) -> Found:
    shape = call.shape()
    axis = positive(call.integer("axis"), len(shape))
    count = prod(call.shape(1))
    grad = reshape(tape, only(grads), (*shape[:axis], count, *shape[axis + 1 :]))
    places = call.constant(1)
    if places is not None:
        return {0: ungather(tape, grad, axis, places.reshape(-1), shape[axis])}
    return {0: scatter_add(tape, grad, axis, reshape(tape, call.input(1), (count,)), shape[axis])}


def _gather_elements(tape: Tape, call: Call, grads: Grads) -> Found:
    grad = only(grads)
    indices = call.input(1)
    start = zeros(tape, call.shape(), grad)
    return {0: tape.op("ScatterElements", start, indices, grad, axis=call.integer("axis"), reduction="add")}


def _gather_nd(tape: Tape, call: Call, grads: Grads) -> Found:
    """As a gather of rows, those dimensions that are indexed made one."""
    shape, batch_dims = call.shape(), call.integer("batch_dims")
    indexed = shape[batch_dims : batch_dims + call.shape(1)[-1]]
    rows = prod(shape[:batch_dims]) * prod(indexed)
    grad = reshape(tape, only(grads), (prod(call.shape(1)[:-1]), prod(shape[batch_dims + len(indexed) :])))
    offsets = _batch_offsets(shape[:batch_dims], prod(indexed), len(call.shape(1)) - 1)
    strides = np.array([prod(indexed[place + 1 :]) for place in range(len(indexed))], np.int64)
    places = call.constant(1)
    if places is not None:
        found = (places % np.array(indexed) * strides).sum(-1) + offsets
        return {0: reshape(tape, ungather(tape, grad, 0, found.reshape(-1), rows), shape)}
    steps = tape.op("Mul", tape.op("Mod", call.input(1), tape.ints(*indexed)), tape.constant(strides))
    flat = tape.op("ReduceSum", steps, tape.ints(-1), keepdims=0)
    flat = tape.op("Add", flat, tape.constant(offsets)) if batch_dims else flat
    flat = reshape(tape, flat, (prod(call.shape(1)[:-1]),))
    return {0: reshape(tape, scatter_add(tape, grad, 0, flat, rows), shape)}


def _batch_offsets(batch: tuple[int, ...], size: int, rank: int) -> Array:
    """First row of each element of the batch, for indices of a rank."""
    return (np.arange(prod(batch)) * size).reshape(*batch, *[1] * (rank - len(batch)))


def _scatter_nd(tape: Tape, call: Call, grads: Grads) -> Found:
    return _scattered(tape, call, grads, "GatherND", {})


def _scatter_elements(tape: Tape, call: Call, grads: Grads) -> Found:
    return _scattered(tape, call, grads, "GatherElements", {"axis": call.integer("axis")})


def _scattered(tape: Tape, call: Call, grads: Grads, read: str, attributes: dict[str, int]) -> Found:
    """Updates read the gradient where they were written; data gets the rest, or all of it if they were added."""
    reduction = call.text("reduction", "none")
    if reduction not in ("none", "add"):
        raise ModelError(
            f"op '{call.name}' ({call.op_type}): no gradient is known for reduction '{reduction}' (only none and add)"
        )
    grad, indices = only(grads), call.input(1)
    found: dict[int, ir.Value] = {}
    if 2 in call.wanted:
        found[2] = tape.ops(read, (grad, indices), 1, dict(attributes))[0]
    if 0 in call.wanted and reduction == "add":
        found[0] = grad
    elif 0 in call.wanted:
        nothing = zeros(tape, call.shape(2), grad)
        found[0] = tape.ops(call.op_type, (grad, indices, nothing), 1, dict(attributes))[0]
    return found


RULES: Mapping[str, Rule] = {
    "Gather": Rule(_gather, needs=FIRST),
    "GatherElements": Rule(_gather_elements, needs=FIRST),
    "GatherND": Rule(_gather_nd, needs=FIRST),
    "ScatterND": Rule(_scatter_nd, needs=frozenset({0, 2})),
    "ScatterElements": Rule(_scatter_elements, needs=frozenset({0, 2})),
}
