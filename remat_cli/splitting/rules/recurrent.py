"""Slicing rules of recurrent networks: by items of the batch, each of which has a state of its own."""

import onnx_ir as ir

from remat_cli.splitting.rules.matrix import element_type
from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced

BATCH = 1  # axis of the input and of states
LENGTHS = 4  # input
STATES = (5, 6)  # inputs


def recurrent(op: OpView, slab: Slab) -> Sliced | None:
    """RNN, GRU, LSTM: where the sequence of states, or the last ones, are all that is read."""
    all_states, last = op.outputs[0], [shape for shape in op.outputs[1:] if shape is not None]
    if (all_states is not None and last) or slab.axis != (2 if all_states is not None else 1):
        return None
    # matrices that the runtime packs beforehand: its products then add up each row in the same order
    is_packing = op.node.op_type in ("GRU", "LSTM") and element_type(op) == ir.DataType.FLOAT
    is_packed = is_packing and op.weights[1] and op.weights[2]
    if op.integer("layout", 0) or not (is_packed or op.may_reassociate):
        return None
    batch = slab._replace(axis=BATCH)
    needs: list[Slab | None] = [batch, *[None] * (len(op.inputs) - 1)]
    if op.has_input(LENGTHS):
        needs[LENGTHS] = slab._replace(axis=0)
    for place in STATES:
        if op.has_input(place):
            needs[place] = batch
    return Sliced(tuple(needs), slab)
