"""Random ops that pick, place or move elements by index."""

from __future__ import annotations

import numpy as np

from tests.splitting.dice import Dice
from tests.splitting.sliced_op import Array, OneOp

CONTRIB = "com.microsoft"
REDUCTIONS = ("none", "none", "add", "mul", "max", "min")


def sizes(dice: Dice, count: int) -> list[int]:
    """A small shape."""
    return [dice.pick(1, 2, 3, 5, 8, 17) for _ in range(count)]


def gather_nd(dice: Dice) -> OneOp:
    """Elements and lines by index, batched or not, counted from either end."""
    rank = dice.integer(2, 5)
    shape = sizes(dice, rank)
    batch = dice.integer(0, rank - 2)
    picked = shape[batch : batch + dice.integer(1, rank - batch)]
    places = [*shape[:batch], *sizes(dice, dice.integer(0, 2))]
    index = np.stack([dice.whole(-size, size, *places) for size in picked], -1)
    data = np.arange(np.prod(shape)).reshape(shape).astype(dice.pick(np.float32, np.int64))
    return OneOp("GatherND", (data, index), {"batch_dims": batch}, (1,) if dice.coin() else (), opset=13)


def scatter_nd(dice: Dice) -> OneOp:
    """Lines put at places; several at one only where they are joined."""
    shape = sizes(dice, dice.integer(1, 4))
    depth = dice.integer(1, len(shape))
    total = int(np.prod(shape[:depth]))
    places = sizes(dice, dice.integer(0, 2))
    reduction = dice.pick(*REDUCTIONS)
    if reduction == "none" and np.prod(places, dtype=int) > total:
        places = [total]
    count = int(np.prod(places, dtype=int))
    flat = dice.generator.permutation(total)[:count] if reduction == "none" else dice.whole(0, total, count)
    index = np.stack(np.unravel_index(flat, shape[:depth]), -1).reshape(*places, depth).astype(np.int64)
    attributes = {} if reduction == "none" else {"reduction": reduction}
    inputs = (dice.real(*shape), index, dice.real(*places, *shape[depth:]))
    return OneOp("ScatterND", inputs, attributes, (1,) if dice.coin() else (), opset=18)


def scatter_elements(dice: Dice) -> OneOp:
    """Elements put along an axis, some lines left as they are."""
    rank = dice.integer(1, 4)
    shape, axis = sizes(dice, rank), dice.integer(0, rank - 1)
    made = [dice.integer(1, size) if at != axis and dice.coin(0.2) else size for at, size in enumerate(shape)]
    reduction = dice.pick(*REDUCTIONS)
    made[axis] = dice.integer(1, shape[axis] * (1 if reduction == "none" else 2))
    if reduction == "none":
        order = np.argsort(dice.generator.random([*made[:axis], shape[axis], *made[axis + 1 :]]), axis=axis)
        index = np.take(order, range(made[axis]), axis=axis).astype(np.int64)
    else:
        index = dice.whole(-shape[axis], shape[axis], *made)
    attributes = {"axis": axis - dice.pick(0, rank)} | ({} if reduction == "none" else {"reduction": reduction})
    return OneOp("ScatterElements", (dice.real(*shape), index, dice.real(*made)), attributes, opset=18)


def one_hot(dice: Dice) -> OneOp:
    """Indices as lines, on any axis."""
    shape, depth = sizes(dice, dice.integer(1, 3)), dice.integer(1, 9)
    axis = dice.integer(-len(shape) - 1, len(shape))
    inputs = (dice.whole(-depth, depth, *shape), np.array([depth]), np.array([2, 5], np.float32))
    return OneOp("OneHot", inputs, {"axis": axis}, (1, 2), opset=11)


def triangle(dice: Dice) -> OneOp:
    """Either half of matrices, by a diagonal near or far."""
    domain, diagonal = dice.pick("", CONTRIB), dice.pick(None, dice.integer(-20, 20), dice.integer(-3, 3))
    inputs: tuple[Array, ...] = (dice.real(*sizes(dice, dice.integer(2, 4))),)
    inputs += () if diagonal is None else (np.array(diagonal),)
    return OneOp("Trilu", inputs, {"upper": dice.integer(0, 1)}, (1,), domain, 1 if domain else 14)


def reverse(dice: Dice) -> OneOp:
    """Sequences of different lengths turned round."""
    shape, time = sizes(dice, dice.integer(2, 4)), dice.integer(0, 1)
    lengths = dice.whole(1, shape[time] + 1, shape[1 - time])
    attributes = {"time_axis": time, "batch_axis": 1 - time}
    return OneOp("ReverseSequence", (dice.real(*shape), lengths), attributes, opset=10)


def grid_sample(dice: Dice) -> OneOp:
    """Images read at places between their points, and beyond their edges."""
    is_solid = dice.coin(0.3)
    image = [dice.integer(1, 12) for _ in range(3 if is_solid else 2)]
    made = [dice.integer(1, 12) for _ in image]
    opset = dice.pick(20, 22) if is_solid else dice.pick(16, 20, 22)
    linear, cubic = ("bilinear", "bicubic") if opset == 16 else ("linear", "cubic")
    mode = dice.pick(linear, "nearest", linear if is_solid else cubic)
    count, channels = dice.integer(1, 3), dice.integer(1, 5)
    attributes = {
        "mode": mode,
        "padding_mode": dice.pick("zeros", "border", "reflection"),
        "align_corners": dice.integer(0, 1),
    }
    inputs = (dice.real(count, channels, *image), dice.between(-1.6, 1.6, count, *made, len(image)))
    return OneOp("GridSample", inputs, attributes, (), "", opset)


def regions(dice: Dice) -> OneOp:
    """Pieces of images, averaged or their largest."""
    count, boxes = dice.integer(1, 3), dice.integer(1, 9)
    corner = dice.between(0, 15, boxes, 2)
    rois = np.concatenate([corner, corner + dice.between(0.5, 9, boxes, 2)], 1)
    image = dice.real(count, dice.integer(1, 5), dice.integer(4, 20), dice.integer(4, 20))
    attributes = {
        "output_height": dice.integer(1, 6),
        "output_width": dice.integer(1, 6),
        "sampling_ratio": dice.integer(0, 3),
        "mode": dice.pick("avg", "max"),
        "spatial_scale": 0.7,
    }
    return OneOp("RoiAlign", (image, rois, dice.whole(0, count, boxes)), attributes, opset=dice.pick(10, 16, 22))


FAMILIES = (gather_nd, scatter_nd, scatter_elements, one_hot, triangle, reverse, grid_sample, regions)
