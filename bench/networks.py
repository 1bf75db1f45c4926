"""Inference graphs of real network families at real sizes: nested U-Net, HRNet-like, BiFPN-like.

Large convolutions, concatenations and long skips: single recomputes hardly ever help there, chains of them do. Costs
are millions of floating-point operations of each op, sizes the bytes of its 32-bit output. Activations that a runtime
fuses into the convolution before them are not ops here; normalisations that cannot be fused are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.draft import Draft

BYTES = 4
MFLOP = 10**6


@dataclass(frozen=True)
class Value:
    """The output of an op: its id, channels, and the side of its square map."""

    op: int
    channels: int
    side: int


class Network:
    """Appends layers; every method returns what it makes. The input image is nobody's op and takes no budget."""

    def __init__(self, name: str, source: str, side: int) -> None:
        """Start a network on a three-channel image of `side` x `side`."""
        self.draft = Draft(name, source, "millions of floating-point operations")
        self.image = Value(-1, 3, side)

    def _add(self, kind: str, shape: tuple[int, int], flops: int, inputs: Sequence[Value]) -> Value:
        channels, side = shape
        op = len(self.draft.nodes)
        size = -(-flops // MFLOP), BYTES * channels * side * side
        self.draft.add(f"{kind}_{op}", size, [value.op for value in inputs if value.op >= 0])
        return Value(op, channels, side)

    def conv(self, x: Value, channels: int, kernel: int = 3, stride: int = 1) -> Value:
        """A convolution with its activation."""
        side = x.side // stride
        self.draft.fixed_memory_bytes += BYTES * kernel * kernel * x.channels * channels
        return self._add("conv", (channels, side), 2 * kernel * kernel * x.channels * channels * side * side, [x])

    def depthwise(self, x: Value, kernel: int = 3, stride: int = 1) -> Value:
        """A convolution of each channel on its own."""
        side = x.side // stride
        self.draft.fixed_memory_bytes += BYTES * kernel * kernel * x.channels
        return self._add("depthwise", (x.channels, side), 2 * kernel * kernel * x.channels * side * side, [x])

    def norm(self, x: Value) -> Value:
        """A normalisation over the map, with its activation."""
        return self._light("norm", x.channels, x.side, [x], 8)

    def add(self, first: Value, *others: Value) -> Value:
        """The sum of equal shapes, two at a time as exporters write it."""
        for other in others:
            first = self._light("add", first.channels, first.side, [first, other], 1)
        return first

    def concat(self, *values: Value) -> Value:
        """All channels one after the other."""
        return self._light("concat", sum(value.channels for value in values), values[0].side, values, 1)

    def upsample(self, x: Value, factor: int = 2) -> Value:
        """A map `factor` times as large, interpolated."""
        return self._light("upsample", x.channels, x.side * factor, [x], 4)

    def pool(self, x: Value, factor: int = 2) -> Value:
        """A map `factor` times as small."""
        return self._light("pool", x.channels, x.side // factor, [x], factor * factor)

    def sigmoid(self, x: Value) -> Value:
        """The last activation."""
        return self._light("sigmoid", x.channels, x.side, [x], 4)

    def _light(self, kind: str, channels: int, side: int, inputs: Sequence[Value], flops: int) -> Value:
        """An op with a few operations per element of its output."""
        return self._add(kind, (channels, side), flops * channels * side * side, inputs)


def nested_unet(side: int = 512) -> Draft:
    """U-Net++ (Zhou et al. 2018): five levels, dense skips in one concatenation, deep supervision."""
    net = Network("nested_unet_infer", f"nested U-Net (U-Net++), five levels, deep supervision, {side} x {side}", side)
    return _nested(net, lambda skips, up: net.concat(*skips, up))


def fused_unet(side: int = 512) -> Draft:
    """The same with skips that are fused one after the other, each by a concatenation and a small convolution."""
    net = Network("fused_unet_infer", f"nested U-Net with skips fused one by one, five levels, {side} x {side}", side)

    def join(skips: Sequence[Value], up: Value) -> Value:
        fused = skips[0]
        for skip in skips[1:]:
            fused = net.conv(net.concat(fused, skip), skip.channels, kernel=1)
        return net.concat(fused, up)

    return _nested(net, join)


def _nested(net: Network, join: Callable[[Sequence[Value], Value], Value]) -> Draft:
    """The backbone, then column after column of the grid, from the largest map to the smallest."""
    widths = (16, 64, 128, 256, 512)
    grid: dict[tuple[int, int], Value] = {}
    for row, width in enumerate(widths):
        grid[row, 0] = _unet_block(net, net.pool(grid[row - 1, 0]) if row else net.image, width)
    for column in range(1, len(widths)):
        for row in range(len(widths) - column):
            up = net.upsample(net.conv(grid[row + 1, column - 1], widths[row], kernel=1))
            joined = join([grid[row, before] for before in range(column)], up)
            grid[row, column] = _unet_block(net, joined, widths[row])
    heads = [net.conv(grid[0, column], 4, kernel=1) for column in range(1, len(widths))]
    net.sigmoid(net.add(*heads))
    return net.draft


def _unet_block(net: Network, x: Value, width: int) -> Value:
    """Two convolutions, each with a normalisation."""
    return net.norm(net.conv(net.norm(net.conv(x, width)), width))


def hrnet(side: int = 512) -> Draft:
    """High-resolution network (Sun et al. 2019) for poses: parallel branches at four scales that inform each other."""
    net = Network("hrnet_infer", f"HRNet-like, up to four parallel scales, {side} x {side}", side)
    widths = (48, 96, 192, 384)
    x = net.conv(net.conv(net.image, 32, stride=2), 64, stride=2)
    for _ in range(3):
        x = _basic_block(net, x)
    branches = [net.conv(x, widths[0])]
    for scale in range(1, len(widths)):
        source = branches[-1] if scale > 1 else x
        branches.append(net.conv(source, widths[scale], stride=2))
        branches = [_basic_block(net, _basic_block(net, branch)) for branch in branches]
        branches = [_fuse(net, branches, target) for target in range(len(branches))]
    net.sigmoid(net.conv(branches[0], 17, kernel=1))
    return net.draft


def _basic_block(net: Network, x: Value) -> Value:
    """Two convolutions around a shortcut."""
    return net.add(net.conv(net.conv(x, x.channels), x.channels), x)


def _fuse(net: Network, branches: Sequence[Value], target: int) -> Value:
    """The sum of all scales at one of them: larger maps strided down step by step, smaller ones interpolated."""
    goal = branches[target]
    parts = []
    for branch in branches:
        part = branch
        while part.side > goal.side:
            part = net.conv(part, goal.channels if part.side // 2 == goal.side else part.channels, stride=2)
        if part.side < goal.side:
            part = net.upsample(net.conv(part, goal.channels, kernel=1), goal.side // part.side)
        parts.append(part)
    return net.add(*parts)


def bifpn(side: int = 512) -> Draft:
    """A detector with a bidirectional feature pyramid (Tan et al. 2020) on a backbone of inverted residuals."""
    net = Network("bifpn_infer", f"BiFPN-like detector, five scales, two fusion rounds, {side} x {side}", side)
    x = net.conv(net.image, 32, stride=2)
    taps = []
    x = net.conv(net.depthwise(x), 16, kernel=1)
    for width in (24, 40, 80, 160):
        x = _inverted_residual(net, x, width, 2)
        x = _inverted_residual(net, x, width, 1)
        taps.append(net.conv(x, 64, kernel=1))
    levels = [net.upsample(taps[0]), *taps]
    for _ in range(2):
        levels = _pyramid_round(net, levels)
    for level in levels:
        net.conv(_separable(net, level), 9 * 4, kernel=1)
    return net.draft


def _inverted_residual(net: Network, x: Value, width: int, stride: int) -> Value:
    """Expansion, a convolution per channel, projection; a shortcut where shapes allow one."""
    inner = net.depthwise(net.conv(x, 6 * x.channels, kernel=1), stride=stride)
    out = net.conv(inner, width, kernel=1)
    return net.add(out, x) if stride == 1 and x.channels == width else out


def _separable(net: Network, x: Value) -> Value:
    """A convolution per channel, then one across channels."""
    return net.conv(net.depthwise(x), x.channels, kernel=1)


def _pyramid_round(net: Network, levels: Sequence[Value]) -> list[Value]:
    """Top-down, then bottom-up; every sum is followed by a separable convolution."""
    down = [levels[-1]]
    for level in reversed(levels[:-1]):
        down.append(_separable(net, net.add(level, net.upsample(down[-1]))))
    down.reverse()
    out = [down[0]]
    for level, middle in zip(levels[1:], down[1:], strict=True):
        inputs = (level, middle) if middle is not level else (level,)
        out.append(_separable(net, net.add(*inputs, net.pool(out[-1]))))
    return out


NETWORKS: Mapping[str, Callable[[], Draft]] = {
    "nested_unet": nested_unet,
    "fused_unet": fused_unet,
    "hrnet": hrnet,
    "bifpn": bifpn,
}
