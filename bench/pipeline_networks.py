"""Training chains of the networks that MadPipe was judged on, by the roofline of a V100: image 1000, batch 8.

Per op: time is the larger of arithmetic at peak rate and of bytes moved at memory bandwidth; a backward of a
convolution is two convolutions. Kept for the backward: inputs of convolutions and of normalisations. Blocks (residual
blocks, Inception modules, pairs of dense layers) are the layers of the chain. Times in nanoseconds, 32-bit floats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from remat_cli.pipelines.plan.chain import PipelineChain

FLOPS_PER_NS = 15_700.0
BYTES_PER_NS = 900.0
BYTES = 4
COPIES = 3


@dataclass
class Chained:
    """A network that grows: blocks so far, and the tensor at its end."""

    batch: int
    side: int
    channels: int = 3
    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    _open: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])

    def __post_init__(self) -> None:
        """The input is a tensor too."""
        self.sizes.append(self.bytes(self.channels, self.side))

    def bytes(self, channels: int, side: int) -> int:
        """Of a map."""
        return BYTES * self.batch * channels * side * side

    def conv(self, channels: int, kernel: int = 1, stride: int = 1, *, source: tuple[int, int] | None = None) -> None:
        """Convolution, normalisation, activation; `source` are channels and side of an input off the main path."""
        inner, side = source or (self.channels, self.side)
        out = -(-side // stride)
        weight = BYTES * kernel * kernel * inner * channels
        reads, writes = self.bytes(inner, side), self.bytes(channels, out)
        flops = 2.0 * kernel * kernel * inner * channels * out * out * self.batch
        once = max(flops / FLOPS_PER_NS, (reads + writes + weight) / BYTES_PER_NS)
        norm = 5 * writes / BYTES_PER_NS
        self._add(once + norm, 2 * once + 8 * writes / BYTES_PER_NS, weight, reads + writes)
        self.channels, self.side = channels, out

    def move(self, channels: int, side: int, passes: int = 2) -> None:
        """An op that moves bytes only: pooling, sums, concatenations."""
        takes = passes * self.bytes(channels, side) / BYTES_PER_NS
        self._add(takes, takes, 0, 0)
        self.channels, self.side = channels, side

    def _add(self, forward: float, backward: float, weight: int, saved: int) -> None:
        for at, value in enumerate((forward, backward, weight, saved)):
            self._open[at] += value

    def end(self) -> None:
        """A block is over."""
        rows: list[list[float] | list[int]] = [self.forward, self.backward, self.weights, self.saved]
        for row, value in zip(rows, self._open, strict=True):
            row.append(value)  # type: ignore[arg-type]
        self._open = [0.0, 0.0, 0.0, 0.0]
        self.sizes.append(self.bytes(self.channels, self.side))

    def chain(self, link_bytes_per_ns: float) -> PipelineChain:
        """With links that move so much."""
        sizes = (*self.sizes[:-1], 0)
        return PipelineChain(
            forward=tuple(round(time) for time in self.forward),
            backward=tuple(round(time) for time in self.backward),
            weights=tuple(int(weight) for weight in self.weights),
            sizes=sizes,
            transfers=tuple(-int(-size // link_bytes_per_ns) for size in sizes[1:-1]),
            copies=COPIES,
            saved=tuple(int(saved) for saved in self.saved),
        )


def resnet(depths: tuple[int, int, int, int]) -> Chained:
    """ResNet of bottleneck blocks (He et al. 2016)."""
    net = Chained(8, 1000)
    net.conv(64, 7, 2)
    net.move(64, 250)
    net.end()
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for block in range(depth):
            stride = 2 if stage and not block else 1
            before = (net.channels, net.side)
            net.conv(width)
            net.conv(width, 3, stride)
            net.conv(4 * width)
            if not block:
                after = net.side
                net.conv(4 * width, 1, stride, source=before)
                net.side = after
            net.move(net.channels, net.side, 3)
            net.end()
    return _headed(net)


def densenet(depths: tuple[int, int, int, int] = (6, 12, 24, 16), growth: int = 32) -> Chained:
    """DenseNet-121 (Huang et al. 2017); two dense layers are a block, and the whole concatenation crosses a cut."""
    net = Chained(8, 1000)
    net.conv(64, 7, 2)
    net.move(64, 250)
    net.end()
    for stage, depth in enumerate(depths):
        for layer in range(depth):
            channels, side = net.channels, net.side
            net.conv(4 * growth, source=(channels, side))
            net.conv(growth, 3)
            net.move(channels + growth, side)
            if layer % 2:
                net.end()
        if stage < 3:
            net.conv(net.channels // 2)
            net.move(net.channels, net.side // 2)
            net.end()
    return _headed(net)


def inception() -> Chained:
    """Inception-v3 (Szegedy et al. 2016), modules by their branches."""
    net = Chained(8, 1000)
    for channels, kernel, stride in ((32, 3, 2), (32, 3, 1), (64, 3, 1)):
        net.conv(channels, kernel, stride)
    net.move(64, 248)
    net.end()
    net.conv(80)
    net.conv(192, 3)
    net.move(192, 122)
    net.end()
    for pool in (32, 64, 64):
        _module(net, (((1, 64),), ((1, 48), (5, 64)), ((1, 64), (3, 96), (3, 96)), ((1, pool),)))
    _module(net, (((3, 384),), ((1, 64), (3, 96), (3, 96))), stride=2)
    for inner in (128, 160, 160, 192):
        _module(net, (((1, 192),), ((1, inner), (4, 192)), ((1, inner), (4, inner), (4, 192)), ((1, 192),)))
    _module(net, (((1, 192), (3, 320)), ((1, 192), (4, 192), (3, 192))), stride=2)
    for _ in range(2):
        _module(net, (((1, 320),), ((1, 384), (2, 768)), ((1, 448), (3, 384), (2, 768)), ((1, 192),)))
    return _headed(net)


def _module(net: Chained, branches: tuple[tuple[tuple[int, int], ...], ...], stride: int = 1) -> None:
    """Branches of (kernel, channels), concatenated; 7 x 1 and 1 x 7 count as a kernel of 4: about as many products."""
    start = (net.channels, net.side)
    total = start[0] if stride == 2 else 0
    side = -(-start[1] // stride)
    for branch in branches:
        net.channels, net.side = start
        for at, (kernel, channels) in enumerate(branch):
            net.conv(channels, kernel, stride if at == len(branch) - 1 else 1)
        total += net.channels
    net.move(total, side)
    net.end()


def _headed(net: Chained) -> Chained:
    """Mean over the map, classes, loss."""
    weight = BYTES * net.channels * 1000
    takes = (net.bytes(net.channels, net.side) + weight) / BYTES_PER_NS
    net._add(takes, 2 * takes, weight, BYTES * net.batch * net.channels)
    net.channels, net.side = 1000, 1
    net.end()
    return net


NETWORKS: Mapping[str, Callable[[], Chained]] = {
    "ResNet-50": lambda: resnet((3, 4, 6, 3)),
    "ResNet-101": lambda: resnet((3, 4, 23, 3)),
    "Inception-v3": inception,
    "DenseNet-121": densenet,
}
