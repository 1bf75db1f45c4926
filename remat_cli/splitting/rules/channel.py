"""Slicing rules of ops that treat each channel of each image by itself: normalisations and global pooling.

Measured with ONNX Runtime 1.31.1 (1 to 8 threads; channels of 1 to 20,000 elements): a channel gets the same bits
whatever other channels there are. InstanceNormalization adds up four at a time from the first place in memory that
divides by 16 bytes, so that its channels must begin alike.
"""

from math import gcd, prod

from remat_cli.splitting.rules.lines import ALIGNED, lines_begin_alike
from remat_cli.splitting.rules.pointwise import first_input
from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced, of_first

CHANNELS = 1  # their axis


def channel_normalisation(op: OpView, slab: Slab) -> Sliced | None:
    """InstanceNormalization: items of the batch, and channels with their scale and bias; some more that come before."""
    shape = op.input_shape(0)
    if slab.axis > CHANNELS:
        return None
    inner = prod(shape[slab.axis + 1 :])
    together = 1 if op.may_reassociate else ALIGNED // gcd(ALIGNED, inner)  # begin alike again after so many
    makes = slab._replace(start=slab.start // together * together)
    if not (op.may_reassociate or lines_begin_alike(shape, makes, prod(shape[CHANNELS + 1 :]))):
        return None
    return of_first(op, makes, makes) if slab.axis == 0 else _with_statistics(op, makes)


def batch_normalisation(op: OpView, slab: Slab) -> Sliced | None:
    """BatchNormalization with given statistics: any axis, that of the channels with what is given of each channel."""
    in_training = op.integer("training_mode", 0) or sum(shape is not None for shape in op.outputs) > 1
    if in_training or not op.integer("spatial", 1):
        return None
    return _with_statistics(op, slab) if slab.axis == CHANNELS else first_input(op, slab)


def global_pooling(op: OpView, slab: Slab) -> Sliced | None:
    """Global pooling: items of the batch, and channels."""
    return of_first(op, slab, slab) if slab.axis <= CHANNELS else None


def _with_statistics(op: OpView, slab: Slab) -> Sliced:
    """A slab of channels, and the same of every other input: one number for each channel."""
    return Sliced((slab, *[Slab(0, slab.start, slab.stop)] * (len(op.inputs) - 1)), slab)


def mean_variance(op: OpView, slab: Slab) -> Sliced | None:
    """MeanVarianceNormalization: axes that stay."""
    rank = len(op.output_shape)
    axes = {axis % rank for axis in op.integers("axes") or (0, 2, 3)}
    if slab.axis in axes:
        return None
    shape = op.input_shape(0)
    stays = [axis for axis in range(rank) if axis not in axes]
    line = prod(shape[axis] for axis in axes)
    shape_of_lines = (*(shape[axis] for axis in stays), line)
    is_same = lines_begin_alike(shape_of_lines, slab._replace(axis=stays.index(slab.axis)), line)
    return of_first(op, slab, slab) if is_same or op.may_reassociate else None
