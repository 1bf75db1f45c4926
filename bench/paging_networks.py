"""Training steps of the networks that paging was judged on, op by op, with the roofline times of a V100.

Shilova 2021, ch. 3 and 4: images of 500 x 500, batch 16. Per op: time is the larger of arithmetic at peak rate and of
bytes moved at memory bandwidth; the backward of a convolution is two convolutions. Convolutions keep their input,
normalisations (with the activation behind them) their input and, for its sign, their output. Weights, their gradients
and the optimiser's state are apart: they cannot be paged here, and neither can the images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from remat_cli.core.schedule.problem import NO_BUDGET, Device, Memory, OpSpec, Problem, TensorSpec

FLOPS_PER_NS = 15_700.0
BYTES_PER_NS = 900.0
BYTES = 4
BATCH, SIDE, CLASSES = 16, 500, 1000


class Map(NamedTuple):
    """A tensor of feature maps: its number in the problem (-1: the images), channels, and height and width."""

    tensor: int
    channels: int
    side: int

    @property
    def size_bytes(self) -> int:
        """Of the whole batch."""
        return BYTES * BATCH * self.channels * self.side**2


class Backward(NamedTuple):
    """What is left to do for a forward op: what its backward reads besides the gradient of `made`, and whose it makes.

    All of `sources` get the same gradient where `is_shared`, each its own otherwise.
    """

    made: Map
    sources: tuple[Map, ...]
    kept: tuple[Map, ...]
    time_ns: float
    workspace_bytes: int = 0
    is_shared: bool = False


@dataclass
class StepBuilder:
    """A training step that grows; `problem` adds the backward sweep."""

    ops: list[OpSpec] = field(default_factory=list)
    tensors: list[TensorSpec] = field(default_factory=list)
    left: list[Backward] = field(default_factory=list)

    def images(self) -> Map:
        """What the step is fed."""
        return Map(-1, 3, SIDE)

    def conv(self, x: Map, channels: int, kernel: int = 1, stride: int = 1) -> Map:
        """A convolution; kernels may be of even size where they stand for two oblong ones."""
        made = self._make((x,), channels, -(-x.side // stride), 0)
        weight = BYTES * kernel * kernel * x.channels * channels
        flops = 2.0 * kernel * kernel * x.channels * channels * made.side**2 * BATCH
        once = max(flops / FLOPS_PER_NS, (x.size_bytes + made.size_bytes + weight) / BYTES_PER_NS)
        self._last_takes(once)
        self.left.append(Backward(made, (x,), (x,), 2 * once))
        return made

    def norm(self, x: Map, *, is_activated: bool = True) -> Map:
        """A normalisation over the batch, and a ReLU with it unless told otherwise."""
        made = self._make((x,), x.channels, x.side, 3 * x.size_bytes)
        kept = (x, made) if is_activated else (x,)
        self.left.append(Backward(made, (x,), kept, 5 * x.size_bytes / BYTES_PER_NS))
        return made

    def unit(self, x: Map, channels: int, kernel: int = 1, stride: int = 1) -> Map:
        """Convolution, normalisation, ReLU."""
        return self.norm(self.conv(x, channels, kernel, stride))

    def pool(self, x: Map, side: int, *, is_largest: bool = True) -> Map:
        """The largest of each window, or the mean, whose backward reads nothing."""
        made = self._make((x,), x.channels, side, x.size_bytes)
        kept = (x, made) if is_largest else ()
        self.left.append(Backward(made, (x,), kept, (2 * x.size_bytes + made.size_bytes) / BYTES_PER_NS))
        return made

    def add(self, x: Map, y: Map) -> Map:
        """A sum with a ReLU: both sources get one gradient."""
        made = self._make((x, y), x.channels, x.side, 2 * x.size_bytes)
        self.left.append(Backward(made, (x, y), (made,), 3 * x.size_bytes / BYTES_PER_NS, is_shared=True))
        return made

    def join(self, parts: Sequence[Map]) -> Map:
        """Channels behind each other."""
        channels = sum(part.channels for part in parts)
        made = self._make(parts, channels, parts[0].side, BYTES * BATCH * channels * parts[0].side ** 2)
        self.left.append(Backward(made, tuple(parts), (), 2 * made.size_bytes / BYTES_PER_NS))
        return made

    def problem(self, x: Map) -> Problem:
        """Mean over the map, classes and loss at the end, and everything backwards."""
        logits = self._make((x,), CLASSES, 1, x.size_bytes + BYTES * x.channels * CLASSES)
        gradients: dict[int, int] = {}
        time_ns = (2 * x.size_bytes + 2 * BYTES * x.channels * CLASSES) / BYTES_PER_NS
        self._differentiate(Backward(logits, (x,), (x, logits), time_ns), gradients)
        for backward in reversed(self.left):
            self._differentiate(backward, gradients)
        memory = Memory("gpu", NO_BUDGET, self.images().size_bytes)
        return Problem(tuple(self.ops), tuple(self.tensors), (memory,), (Device("gpu", 0),))

    def _make(self, sources: Sequence[Map], channels: int, side: int, read_bytes: int) -> Map:
        """A forward op that moves bytes alone, unless it is told otherwise later."""
        made = Map(len(self.tensors), channels, side)
        self.tensors.append(TensorSpec(made.size_bytes, len(self.ops)))
        inputs = tuple(dict.fromkeys(source.tensor for source in sources if source.tensor >= 0))
        time_ns = max(1, round((read_bytes + made.size_bytes) / BYTES_PER_NS))
        self.ops.append(OpSpec(inputs, (made.tensor,), (time_ns,), (0,), phase="forward"))
        return made

    def _last_takes(self, time_ns: float) -> None:
        op = self.ops[-1]
        self.ops[-1] = OpSpec(op.inputs, op.outputs, (max(1, round(time_ns)),), (0,), phase="forward")

    def _differentiate(self, backward: Backward, gradients: dict[int, int]) -> None:
        """One backward op, and sums where a source has a gradient already."""
        reads = [each.tensor for each in backward.kept if each.tensor >= 0]
        reads += [gradients.pop(backward.made.tensor)] if backward.made.tensor in gradients else []
        sources = [each for each in backward.sources if each.tensor >= 0]
        makes = sources[:1] if backward.is_shared else sources
        first = len(self.tensors)
        for each in makes:
            self.tensors.append(TensorSpec(each.size_bytes, len(self.ops)))
        if not makes:  # the first convolution: its weights' gradient alone, which is apart
            self.tensors.append(TensorSpec(0, len(self.ops), kept=True))
        outputs = tuple(range(first, len(self.tensors)))
        self._back(tuple(dict.fromkeys(reads)), outputs, backward.time_ns)
        for number, each in enumerate(sources):
            made = first if backward.is_shared else first + number
            gradients[each.tensor] = self._summed(each, gradients.get(each.tensor), made)

    def _summed(self, of: Map, before: int | None, made: int) -> int:
        if before is None:
            return made
        total = len(self.tensors)
        self.tensors.append(TensorSpec(of.size_bytes, len(self.ops)))
        self._back((before, made), (total,), 3 * of.size_bytes / BYTES_PER_NS, ((before, total), (made, total)))
        return total

    def _back(
        self,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        time_ns: float,
        in_place: tuple[tuple[int, int], ...] = (),
    ) -> None:
        spec = OpSpec(inputs, outputs, (max(1, round(time_ns)),), (0,), in_place=in_place, phase="backward")
        self.ops.append(spec)


def resnet(depths: tuple[int, int, int, int], *, is_bottleneck: bool = True) -> Problem:
    """ResNet (He et al. 2016), of bottlenecks or of two 3 x 3 convolutions."""
    step = StepBuilder()
    x = step.pool(step.unit(step.images(), 64, 7, 2), 125)
    for stage, depth in enumerate(depths):
        width = 64 << stage
        out = 4 * width if is_bottleneck else width
        for block in range(depth):
            stride = 2 if stage and not block else 1
            y = _bottleneck(step, x, width, stride) if is_bottleneck else step.unit(x, width, 3, stride)
            y = step.norm(step.conv(y, out, 1 if is_bottleneck else 3), is_activated=False)
            around = x
            if x.channels != out or stride > 1:
                around = step.norm(step.conv(x, out, 1, stride), is_activated=False)
            x = step.add(y, around)
    return step.problem(x)


def _bottleneck(step: StepBuilder, x: Map, width: int, stride: int) -> Map:
    return step.unit(step.unit(x, width), width, 3, stride)


def densenet(depths: tuple[int, int, int, int] = (6, 12, 24, 16), growth: int = 32) -> Problem:
    """DenseNet-121 (Huang et al. 2017), every concatenation a tensor of its own, as plain frameworks have it."""
    step = StepBuilder()
    x = step.pool(step.unit(step.images(), 64, 7, 2), 125)
    for stage, depth in enumerate(depths):
        for _ in range(depth):
            inner = step.norm(step.conv(step.norm(x), 4 * growth))
            x = step.join((x, step.conv(inner, growth, 3)))
        if stage < len(depths) - 1:
            half = step.conv(step.norm(x), x.channels // 2)
            x = step.pool(half, half.side // 2, is_largest=False)
    return step.problem(step.norm(x))


Branch = tuple[tuple[int, int], ...]
"""Kernels and channels, one after the other; 7 x 1 and 1 x 7 count as a kernel of 4: about as many products."""


def inception() -> Problem:
    """Inception-v3 (Szegedy et al. 2016), modules by their branches."""
    step = StepBuilder()
    x = step.unit(step.unit(step.unit(step.images(), 32, 3, 2), 32, 3), 64, 3)
    x = step.unit(step.unit(step.pool(x, 124), 80), 192, 3)
    x = step.pool(x, 61)
    for width in (32, 64, 64):
        x = _module(step, x, (((1, 64),), ((1, 48), (5, 64)), ((1, 64), (3, 96), (3, 96))), pooled=width)
    x = _module(step, x, (((3, 384),), ((1, 64), (3, 96), (3, 96))), stride=2)
    for inner in (128, 160, 160, 192):
        branches = (((1, 192),), ((1, inner), (4, 192)), ((1, inner), (4, inner), (4, 192)))
        x = _module(step, x, branches, pooled=192)
    x = _module(step, x, (((1, 192), (3, 320)), ((1, 192), (4, 192), (3, 192))), stride=2)
    for _ in range(2):
        x = _module(step, x, (((1, 320),), ((1, 384), (2, 768)), ((1, 448), (3, 384), (2, 768))), pooled=192)
    return step.problem(x)


def _module(step: StepBuilder, x: Map, branches: Sequence[Branch], *, pooled: int = 0, stride: int = 1) -> Map:
    """Branches and a pooled one, whose channels a convolution makes where `pooled` says so."""
    parts = []
    for branch in branches:
        y = x
        for at, (kernel, channels) in enumerate(branch):
            y = step.unit(y, channels, kernel, stride if at == len(branch) - 1 else 1)
        parts.append(y)
    around = step.pool(x, -(-x.side // stride), is_largest=stride > 1)
    parts.append(step.unit(around, pooled) if pooled else around)
    return step.join(parts)


NETWORKS: Mapping[str, Callable[[], Problem]] = {
    "ResNet-18": lambda: resnet((2, 2, 2, 2), is_bottleneck=False),
    "ResNet-50": lambda: resnet((3, 4, 6, 3)),
    "ResNet-101": lambda: resnet((3, 4, 23, 3)),
    "DenseNet-121": densenet,
    "Inception-v3": inception,
}
