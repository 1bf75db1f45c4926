"""Random ops that move a window over lines, images and volumes, and norms over them."""

from __future__ import annotations

import numpy as np

from tests.splitting.dice import Dice
from tests.splitting.sliced_op import OneOp

MOST_ELEMENTS, MOST_WORK = 20_000, 3e7


def extents(dice: Dice, rank: int) -> list[int]:
    """Sizes of lines, images or volumes."""
    few, many = (3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 33), (5, 16, 33, 100, 400, 1000, 2100)
    found = [dice.pick(*(few if rank > 1 else many)) for _ in range(rank)]
    while np.prod(found) > MOST_ELEMENTS:
        found[dice.integer(0, rank - 1)] = dice.integer(3, 8)
    return found


def convolution(dice: Dice) -> OneOp:
    """Plain, grouped and depthwise, with strides, dilations and pads of all kinds."""
    while True:
        rank = dice.pick(1, 2, 2, 3)
        image = extents(dice, rank)
        groups, inside, outside = dice.pick(*GROUPS)(dice)
        kernel = [min(dice.pick(1, 2, 3, 3, 5), size) for size in image]
        dilations = [
            dice.pick(1, 1, 2) if 2 * (each - 1) < size else 1 for each, size in zip(kernel, image, strict=True)
        ]
        if inside / groups * np.prod(kernel) * outside * np.prod(image) <= MOST_WORK:
            break
    attributes = {
        "strides": [dice.pick(1, 1, 2) for _ in kernel],
        "dilations": dilations,
        "pads": [dice.integer(0, each // 2 + 1) for each in kernel * 2],
        "group": groups,
    }
    inputs = (dice.real(dice.integer(1, 2), inside, *image), dice.real(outside, inside // groups, *kernel))
    inputs += (dice.real(outside),) if dice.coin() else ()
    return OneOp("Conv", inputs, attributes, (1, 2))


def _plain(dice: Dice) -> tuple[int, int, int]:
    return 1, dice.pick(1, 2, 3, 4, 8, 16, 32), dice.pick(1, 2, 4, 8, 16, 32)


def _grouped(dice: Dice) -> tuple[int, int, int]:
    return 2, 2 * dice.pick(1, 2, 8, 16), 2 * dice.pick(1, 2, 8, 16)


def _depthwise(dice: Dice) -> tuple[int, int, int]:
    channels = dice.pick(1, 3, 8, 16, 33)
    return channels, channels, channels * dice.pick(1, 1, 2)


GROUPS = (_plain, _plain, _grouped, _depthwise)
"""How many groups, and channels before and after."""


def transposed(dice: Dice) -> OneOp:
    """The reverse of a convolution, whose windows overlap or leave gaps."""
    rank, groups = dice.pick(1, 2, 2), dice.pick(1, 1, 2)
    image = [min(size, 300) for size in extents(dice, rank)]
    inside, outside = groups * dice.pick(1, 4, 16), dice.pick(1, 4, 8)
    kernel = [dice.pick(1, 2, 2, 3, 4) for _ in image]
    strides = [dice.pick(each, 1, 2) for each in kernel]
    attributes = {
        "strides": strides,
        "pads": [dice.integer(0, 1) for _ in kernel * 2],
        "output_padding": [dice.pick(0, 0, 1) if stride > 1 else 0 for stride in strides],
        "group": groups,
    }
    inputs = (dice.real(dice.integer(1, 2), inside, *image), dice.real(inside, outside, *kernel))
    inputs += (dice.real(outside * groups),) if dice.coin() else ()
    return OneOp("ConvTranspose", inputs, attributes, (1, 2))


def pool(dice: Dice) -> OneOp:
    """Largest, mean and norm of windows; zeros of both signs among the values."""
    kind = dice.pick("MaxPool", "AveragePool", "LpPool")
    image = extents(dice, dice.pick(1, 2, 2, 3))
    kernel = [min(dice.integer(1, 4), size) for size in image]
    attributes = {
        "kernel_shape": kernel,
        "strides": [dice.pick(1, 2, 3) for _ in kernel],
        "pads": [dice.integer(0, each - 1) for each in kernel * 2],
        "ceil_mode": dice.integer(0, 1),
    }
    if dice.coin(0.4):
        attributes["dilations"] = [dice.pick(1, 1, 2) for _ in kernel]
    extra = {"AveragePool": ("count_include_pad", dice.integer(0, 1)), "LpPool": ("p", dice.integer(1, 3))}
    attributes |= dict([extra[kind]]) if kind in extra else {}
    data = dice.real(dice.integer(1, 2), dice.pick(1, 3, 16), *image)
    if dice.coin(0.3):
        data = np.where(dice.generator.random(data.shape) < 0.4, np.float32(-0.0), np.maximum(data, 0))
    return OneOp(kind, (data,), attributes, opset=22)


def norm(dice: Dice) -> OneOp:
    """Norms with one mean per channel, given or taken."""
    channels, image = dice.integer(1, 24), extents(dice, dice.integer(1, 3))
    data = dice.real(dice.integer(1, 3), channels, *image)
    scale, bias = dice.real(channels), dice.real(channels)
    if dice.coin():
        return OneOp("InstanceNormalization", (data, scale, bias), {"epsilon": 1e-5}, (1, 2))
    inputs = (data, scale, bias, dice.real(channels), abs(dice.real(channels)) + np.float32(0.1))
    return OneOp("BatchNormalization", inputs, {}, (1, 2, 3, 4), opset=15)


def whole_image(dice: Dice) -> OneOp:
    """One number of each channel."""
    kind = dice.pick("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
    attributes = {"p": dice.integer(1, 3)} if kind == "GlobalLpPool" else {}
    data = dice.real(dice.integer(1, 3), dice.integer(1, 40), *extents(dice, dice.integer(1, 3)))
    return OneOp(kind, (data,), attributes)


FAMILIES = (convolution, transposed, pool, norm, whole_image)
