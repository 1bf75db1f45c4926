"""Networks of several resolutions inside a network: pictures in, pictures out."""

from __future__ import annotations

from collections.abc import Callable

from tests.torch_like.drawing import Drawing, Tensor
from tests.torch_like.layers import activation, conv, conv_norm, conv_transpose, pool, relu, resize


def down(d: Drawing, x: Tensor, width: int) -> Tensor:
    """Half the size."""
    return conv_norm(d, x, width, stride=2) if d.chance() else conv_norm(d, pool(d, x), width)


def up(d: Drawing, x: Tensor, like: Tensor) -> Tensor:
    """The size of another picture, which is about twice as large."""
    if d.chance(0.4) and like.shape[2:] == tuple(2 * size for size in x.shape[2:]):
        return conv_transpose(d, x, like.shape[1], d.pick(2, 4))
    y = resize(d, x, like.shape[2:])
    return y if y.shape[1] == like.shape[1] else conv(d, y, like.shape[1], 1)


def unet(d: Drawing, x: Tensor) -> Tensor:
    """A U of two or three levels, joined by concatenation or by addition."""
    skips = [x]
    for _ in range(int(d.dice.integers(2, 4))):
        skips.append(conv_norm(d, down(d, skips[-1], min(64, 2 * skips[-1].shape[1])), min(64, 2 * x.shape[1])))
    y = skips.pop()
    while skips:
        skip = skips.pop()
        bigger = up(d, y, skip)
        both = d.op("Concat", skip, bigger, axis=1) if d.chance(0.7) else d.op("Add", skip, bigger)
        y = conv_norm(d, both, skip.shape[1])
    return y


def feature_pyramid(d: Drawing, x: Tensor) -> Tensor:
    """Features of three sizes, each helped by the next smaller one; then back up the other way."""
    sizes = [x]
    for _ in range(2):
        sizes.append(down(d, sizes[-1], x.shape[1]))
    lateral = [conv(d, size, 24, 1) for size in sizes]
    for at in (1, 0):
        lateral[at] = d.op("Add", lateral[at], resize(d, lateral[at + 1], lateral[at].shape[2:]))
    smooth = [conv_norm(d, one, 24) for one in lateral]
    d.outputs.extend(conv(d, one, 4, 1) for one in smooth[1:] if d.chance(0.4))
    y = smooth[-1]
    for one in reversed(smooth[:-1]):
        y = conv_norm(d, d.op("Concat", one, resize(d, y, one.shape[2:]), axis=1), 24)
    return conv_norm(d, y, x.shape[1], 1)


def exchange(d: Drawing, x: Tensor) -> Tensor:
    """HRNet: branches of two or three resolutions that exchange their sums."""
    branches = [conv_norm(d, x, 16)]
    for _ in range(int(d.dice.integers(1, 3))):
        branches.append(conv_norm(d, branches[-1], 16, stride=2))
    for _ in range(int(d.dice.integers(1, 3))):
        branches = [conv_norm(d, branch, 16) for branch in branches]
        branches = [_met(d, branches, at) for at in range(len(branches))]
    sizes = [branches[0], *(resize(d, branch, x.shape[2:]) for branch in branches[1:])]
    return conv_norm(d, d.op("Concat", *sizes, axis=1), x.shape[1], 1)


def _met(d: Drawing, branches: list[Tensor], at: int) -> Tensor:
    """The sum of all branches in the size of one."""
    here = branches[at]
    for other, branch in enumerate(branches):
        if other > at:
            here = d.op("Add", here, resize(d, conv(d, branch, 16, 1), here.shape[2:]))
        elif other < at:
            y = branch
            for _ in range(at - other):
                y = conv(d, y, 16, stride=2)
            here = d.op("Add", here, y)
    return relu(d, here)


def nested(d: Drawing, x: Tensor) -> Tensor:
    """U2-Net: Us inside a U, with a side output."""
    inside = _small_u(d, x)
    deep = _small_u(d, down(d, inside, x.shape[1]))
    y = _small_u(d, conv_norm(d, d.op("Concat", up(d, deep, inside), inside, axis=1), x.shape[1]))
    if d.chance():
        side = resize(d, conv(d, deep, 1), x.shape[2:])
        d.outputs.append(d.op("Sigmoid", side))
    return y


def _small_u(d: Drawing, x: Tensor) -> Tensor:
    """RSU block: a narrow U with a dilated bottom, added to what went in."""
    entry = conv_norm(d, x, x.shape[1], 1)
    first = conv_norm(d, entry, 12)
    second = conv_norm(d, pool(d, first), 12)
    bottom = conv_norm(d, second, 12, dilation=2)
    y = conv_norm(d, d.op("Concat", bottom, second, axis=1), 12)
    y = conv_norm(d, d.op("Concat", resize(d, y, first.shape[2:]), first, axis=1), x.shape[1], act=False)
    return d.op("Add", activation(d, y), entry)


PYRAMIDS: dict[str, Callable[[Drawing, Tensor], Tensor]] = {
    block.__name__: block for block in (unet, feature_pyramid, exchange, nested)
}
