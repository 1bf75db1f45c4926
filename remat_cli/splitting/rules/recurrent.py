"""Slicing rules of recurrent networks: by items of the batch, each of which has a state of its own, or along time.

Along time parts run one after the other, and each begins with the states that the one before it ended with. Measured
with ONNX Runtime 1.31.1 and 1.32.0 (1, 2 and 4 threads; 1, 2 and 4 items of a batch; up to 1,000 steps in parts of 1 to
100): what the input adds to the gates is one product of matrices for all steps, of which a part has the bits of the
whole as rows of a product have, always against matrices that are packed beforehand; all else is done step by step. A
state that is not given is one of zeros.
"""

from dataclasses import dataclass

import onnx_ir as ir

from remat_cli.splitting.rules.matrix import Product, element_type, has_same_bits
from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced

TIME = 0  # axis of the input and of all states
BATCH = 1  # axis of the input and of states
LENGTHS = 4  # input
STATES = (5, 6)  # inputs


@dataclass(frozen=True)
class HandedOn:
    """States that parts hand on along time: by position where each is read, and where the last one is made.

    `is_backwards`: the last part runs first.
    """

    states: tuple[tuple[int, int], ...]
    is_backwards: bool


def recurrent(op: OpView, slab: Slab) -> Sliced | None:
    """RNN, GRU, LSTM: where the sequence of states, or the last ones, are all that is read."""
    all_states, last = op.outputs[0], [shape for shape in op.outputs[1:] if shape is not None]
    if (all_states is not None and last) or slab.axis != (2 if all_states is not None else 1):
        return None
    if op.integer("layout", 0) or not (is_packed(op) or op.may_reassociate):
        return None
    batch = slab._replace(axis=BATCH)
    needs: list[Slab | None] = [batch, *[None] * (len(op.inputs) - 1)]
    if op.has_input(LENGTHS):
        needs[LENGTHS] = slab._replace(axis=0)
    for place in STATES:
        if op.has_input(place):
            needs[place] = batch
    return Sliced(tuple(needs), slab)


def is_packed(op: OpView) -> bool:
    """Whether the runtime packs the matrices beforehand: its products then add up each row in the same order."""
    is_packing = op.node.op_type in ("GRU", "LSTM") and element_type(op) == ir.DataType.FLOAT
    return is_packing and op.is_fixed(1) and op.is_fixed(2)


def handed_on(op: OpView) -> HandedOn | None:
    """What parts of an op hand on along time; None where it is not cut so, as both directions at once never are."""
    direction = op.text("direction", "forward")
    is_known = element_type(op) == ir.DataType.FLOAT and not op.integer("layout", 0) and not op.has_input(LENGTHS)
    if direction == "bidirectional" or not is_known or op.outputs[0] is None:
        return None
    states = STATES if op.node.op_type == "LSTM" else STATES[:1]
    return HandedOn(tuple((place, at + 1) for at, place in enumerate(states)), direction == "reverse")


def along_time(op: OpView, slab: Slab) -> Sliced | None:
    """Some steps, with the states that those before them ended with."""
    if handed_on(op) is None or slab.axis != TIME:
        return None
    if not (is_packed(op) or op.may_reassociate):
        # the product of all steps must have the bits of the whole in some of them
        steps, items, depth = op.input_shape(0)
        whole = Product(steps * items, op.input_shape(1)[1], depth, 1, is_turned=False, is_scaled=False)
        if not has_same_bits(whole, whole._replace(rows=slab.extent * items), 0, op.threads):
            return None
    return Sliced((slab, *[None] * (len(op.inputs) - 1)), slab)
