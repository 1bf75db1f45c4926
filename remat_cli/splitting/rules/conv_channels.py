"""Slicing rules of convolutions by output channels: weights are cut, the input is read whole unless groups part it.

A slab keeps the spatial extent and so a workspace of as many positions, but what normalises each channel by itself can
follow it: the raw result of a convolution need never exist whole.
"""

from collections.abc import Mapping
from math import prod

import onnx_ir as ir

from remat_cli.splitting.rules.matrix import is_same_product
from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced, Value

ITEMS, CHANNELS = 0, 1  # axes
SPATIAL = 2  # axes before this one are batch and channels, where channels do not come last
SUM_INPUT = 3  # of optimised forms: added to the result
IMAGE_RANK = 4


def channels_of_convolution(op: OpView, slab: Slab) -> Sliced | None:
    """Conv of lines or volumes: weights and bias of the slab; of the input the channels of its groups, if whole ones.

    Not of images with constant weights: the runtime's optimiser lays some of their slabs out in blocks though not the
    whole, or the other way round, and then their bits are others.
    """
    weights = op.input_shape(1)
    if len(op.output_shape) == IMAGE_RANK and op.weights[1]:
        return None
    group, inputs = op.integer("group", 1), None
    attributes: dict[str, Value] = {}
    if group > 1:  # what a slab of whole groups reads of the input's channels
        each_out, each_in = weights[0] // group, op.input_shape(0)[CHANNELS] // group
        if slab.start % each_out or slab.stop % each_out:
            return None
        first, last = slab.start // each_out, slab.stop // each_out
        inputs, attributes = Slab(CHANNELS, first * each_in, last * each_in), {"group": last - first}
    positions = prod(op.output_shape[SPATIAL:])
    is_same = is_same_product(op, 1, prod(weights[1:]), (positions, positions))
    is_same = is_same and (group > 1 or min(weights[0], slab.extent) > 1)
    is_same = is_same or _is_same_groups(op, attributes)
    if not (op.may_reassociate or is_same):
        return None
    needs: list[Slab | None] = [inputs, Slab(0, *slab[1:])]
    if len(op.inputs) > 2:
        needs.append(Slab(0, *slab[1:]) if op.has_input(2) else None)
    if len(op.inputs) > SUM_INPUT:
        needs.append(slab if op.has_input(SUM_INPUT) else None)
    return Sliced(tuple(needs), slab, attributes)


def _is_same_groups(op: OpView, attributes: Mapping[str, Value]) -> bool:
    """Whether each group is computed in the same way in the slab, however long its sums are.

    Measured with ONNX Runtime 1.32.0 (1 to 4 threads; 3 to 8 images as groups, sums of up to 4,096 terms): threads take
    whole groups where there are several, and share one out only where it is alone.
    """
    value = op.node.inputs[1]
    part = attributes.get("group", 1)
    is_float = value is not None and value.dtype == ir.DataType.FLOAT
    return is_float and isinstance(part, int) and part > 1 and op.integer("group", 1) > 1


def channels_of_transposed(op: OpView, slab: Slab) -> Sliced | None:
    """ConvTranspose in one group: weights and bias of the slab, and with them its share of the workspace."""
    weights = op.input_shape(1)
    if op.integer("group", 1) != 1:
        return None
    kernel, positions = prod(weights[SPATIAL:]), prod(op.input_shape(0)[SPATIAL:])
    is_product = min(weights[1], slab.extent) * kernel > 1
    is_same = is_product and is_same_product(op, 1, weights[0], (positions, positions))
    if not (is_same or op.may_reassociate):
        return None
    bias = [Slab(0, *slab[1:]) if op.has_input(2) else None] * (len(op.inputs) - 2)
    return Sliced((None, Slab(1, *slab[1:]), *bias), slab)
