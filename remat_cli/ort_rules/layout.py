"""Predicts what loading makes of convolutions: the layout in blocks, and the sums and activations that move into them.

A default session turns convolutions and what stands beside them into ops on blocks of channels, 16 with AVX-512 and 8
on other x86-64 processors, and reorders tensors where others read them. Where there are no blocks (ARM, browsers) it
moves sums and activations into convolutions alone. Which of that happens to an op decides the last bits of its results.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from remat_cli.ort_rules.order import Wiring, depth_first_order

NCHWC: Final = "com.microsoft.nchwc"
CONTRIB: Final = "com.microsoft"
BLOCKS: Final = (16, 8, 1)
"""Channels per block, by family of processors: AVX-512, other x86-64, none."""
ALIGNED: Final = 4  # channels, that tensors can be reordered
RANK: Final = 4
PLACES_OF_SUM: Final = 4  # inputs of a convolution with a sum
CONV: Final = "Conv"
MOVING: Final = frozenset({"Relu", "Sigmoid", "Tanh"})
"""Activations that blocks know, and that move into convolutions there."""
MOVING_PLAIN: Final = MOVING | {"LeakyRelu", "Clip", "HardSigmoid"}
"""Activations that move into convolutions without blocks, behind a sum."""
WINDOWS: Final = frozenset({"MaxPool", "AveragePool"})
GLOBAL_POOLS: Final = frozenset({"GlobalMaxPool", "GlobalAveragePool"})
LINEAR_BY: Final = frozenset({"asymmetric", "align_corners", "half_pixel"})

IN_BLOCKS: Final = "/in_blocks"
REORDERED: Final = "/reordered"
BACK: Final = "/reorder_output"
REORDER_INPUT: Final = "/reorder_input"
"""Behind names of values: of ones in blocks, of ones put into them; and of ops that take them out, and put them in."""
Shape = tuple[int | str | None, ...]


@dataclass(frozen=True)
class LayoutOp:
    """An op as the layout step sees it; `covers` names the ops of the file that it computes, first its own."""

    name: str
    op_type: str
    domain: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    covers: tuple[str, ...] = ()

    @property
    def is_blocked(self) -> bool:
        """Whether it is an op of the layout itself."""
        return self.domain == NCHWC

    @property
    def has_sum(self) -> bool:
        """Whether it is a convolution that adds another tensor to its result."""
        return self.is_conv and len(self.reads) == PLACES_OF_SUM and bool(self.reads[3])

    @property
    def is_conv(self) -> bool:
        """Whether it is a convolution, in blocks or not, with an activation or not."""
        return self.op_type in (CONV, "FusedConv")

    def is_standard(self, *op_types: str) -> bool:
        """Whether it is one of these ops of the ONNX domain."""
        return not self.domain and self.op_type in op_types


@dataclass(frozen=True)
class LayoutScene:
    """A graph as it is before the layout step.

    `ops` stand in the order of the file; `shapes` are what the runtime knows of values. `weights` are shapes of float
    constants, `numbers` the contents of small ones. `outputs` are those of the model.
    """

    ops: tuple[LayoutOp, ...]
    shapes: Mapping[str, Shape]
    weights: Mapping[str, tuple[int, ...]]
    numbers: Mapping[str, tuple[float, ...]]
    outputs: frozenset[str]


@dataclass(frozen=True)
class LaidOut:
    """The graph after the layout step, in the order of the runtime's numbers: new ops stand behind old ones.

    `channels` are those of each value in blocks.
    """

    ops: tuple[LayoutOp, ...]
    channels: Mapping[str, int]


def laid_out(scene: LayoutScene, block: int) -> LaidOut:
    """What a default session makes of a graph on a processor with blocks of so many channels (1: with none)."""
    plain = LaidOut(tuple(replace(op, covers=(op.name,)) for op in scene.ops), {})
    laid = plain if block == 1 else _Step(scene, block).done()
    return replace(laid, ops=_with_sums(replace(scene, ops=laid.ops)))


def _with_sums(scene: LayoutScene) -> tuple[LayoutOp, ...]:
    """The ops once sums, and activations behind them, have gone into convolutions that lie in no blocks."""
    reads = Counter(name for op in scene.ops for name in op.reads)
    reads.update(scene.outputs)
    reader = {name: op for op in scene.ops for name in op.reads}
    maker = {name: (place, op) for place, op in enumerate(scene.ops) for name in op.makes}
    taken: dict[str, LayoutOp | None] = {}
    for add in scene.ops:
        conv = _conv_of_sum(scene, add, maker, reads) if add.is_standard("Add") else None
        if conv is None:
            continue
        last, attributes = add, conv.attributes
        follower = reader.get(add.makes[0])
        if follower is not None and reads[add.makes[0]] == 1 and follower.is_standard(*MOVING_PLAIN):
            last, attributes = follower, {**attributes, "activation": follower.op_type}
        covers = dict.fromkeys((conv.name, add.name, last.name))
        taken |= covers
        taken[last.name] = replace(
            conv,
            op_type="FusedConv",
            domain=CONTRIB,
            reads=(*conv.reads, *(name for name in add.reads if name != conv.makes[0])),
            makes=last.makes,
            attributes=attributes,
            covers=tuple(covers),
        )
    kept = (taken.get(op.name, op) for op in scene.ops)
    return tuple(op for op in kept if op is not None)


_Origin = tuple[tuple[str, int, int], ...]
"""Of each dimension of a value: the value from which it comes, its axis there, and how often it was halved since."""


@dataclass
class _Blocked:
    """A value that exists in blocks: under which name, made by which op, read how often before and still by others."""

    name: str
    maker: int
    channels: int
    reads_before: int
    reads_left: int
    origin: _Origin


@dataclass
class _Step:
    """The walk over a graph in its order; `made` grows."""

    scene: LayoutScene
    block: int
    made: list[LayoutOp] = field(default_factory=list)
    blocked: dict[str, _Blocked] = field(default_factory=dict)
    reordered: dict[str, str] = field(default_factory=dict)
    reads: Counter[str] = field(default_factory=Counter)
    makers: frozenset[str] = frozenset()

    def done(self) -> LaidOut:
        """Walk in the order of a default session, then reorder what is still read by others."""
        ops = self.scene.ops
        places = {op.name: place for place, op in enumerate(ops)}
        self.reads = Counter(name for op in ops for name in op.reads)
        self.reads.update(self.scene.outputs & {name for op in ops for name in op.makes})
        self.makers = frozenset(name for op in ops for name in op.makes)
        named = [Wiring(tuple(filter(None, op.reads)), tuple(filter(None, op.makes))) for op in ops]
        for number in depth_first_order(named):
            op = ops[number]
            if op.is_standard(CONV) or (op.domain == CONTRIB and op.op_type == "FusedConv"):
                is_taken = self._conv(op)
            elif op.is_standard(*WINDOWS):
                is_taken = self._pool(op)
            elif all(name not in self.makers or name in self.blocked for name in op.reads if name):
                is_taken = self._beside(op)
            else:
                is_taken = False
            if not is_taken:
                self.made.append(replace(op, covers=(op.name,)))
        left = [(name, each) for name, each in self.blocked.items() if each.reads_left > 0]
        back = [LayoutOp(f"{name}{BACK}", "ReorderOutput", NCHWC, (each.name,), (name,)) for name, each in left]
        channels = {each.name: each.channels for each in self.blocked.values()}
        channels |= {new: self._channels_of(old) or 0 for old, new in self.reordered.items()}
        old = sorted((op for op in self.made if not op.is_blocked), key=lambda op: places[op.name])
        return LaidOut((*old, *(op for op in self.made if op.is_blocked), *back), channels)

    def _beside(self, op: LayoutOp) -> bool:
        """An op that is taken into the layout only where all that it reads lies there."""
        if op.is_standard("Add", "Sum", "Mul"):
            return self._binary(op)
        if op.is_standard("Concat"):
            return self._concat(op)
        if op.is_standard(*MOVING) or (op.domain == CONTRIB and op.op_type in ("Gelu", "QuickGelu")):
            return self._activation(op)
        if op.is_standard("BatchNormalization"):
            return self._norm(op)
        if op.is_standard("Resize", "Upsample"):
            return self._resize(op)
        return op.is_standard(*GLOBAL_POOLS) and self._pool(op)

    def _conv(self, op: LayoutOp) -> bool:
        weight = self.scene.weights.get(op.reads[1])
        if weight is None or len(weight) != RANK or len(op.reads) > PLACES_OF_SUM - 1:
            return False
        outputs, inputs, groups = weight[0], weight[1], op.attributes.get("group", 1)
        is_direct = groups == 1 and inputs < self.block
        if groups > 1:
            is_depthwise = inputs == 1 and outputs == groups
            whole = inputs % self.block == 0 and outputs // groups % self.block == 0
            if outputs % ALIGNED or not (is_depthwise or whole):
                return False
        elif not is_direct and inputs % ALIGNED:
            return False
        bias = op.reads[2] if len(op.reads) > 2 else ""
        if bias and self.scene.weights.get(bias) != (outputs,):
            return False
        first = op.reads[0] if is_direct else self._in_blocks(op.reads[0])
        self._make(op, (first, *op.reads[1:]), CONV, outputs, self._window_origin(op, weight[2:], first))
        return True

    def _pool(self, op: LayoutOp) -> bool:
        channels = self._channels_of(op.reads[0])
        if len([name for name in op.makes if name]) > 1 or channels is None or channels % self.block:
            return False
        first = self._in_blocks(op.reads[0])
        self._make(op, (first,), op.op_type, channels, self._window_origin(op, None, first))
        return True

    def _binary(self, op: LayoutOp) -> bool:
        read = [self.blocked.get(name) for name in op.reads]
        known = [each for each in read if each is not None]
        if len(known) < len(read) or any(each.channels != known[0].channels for each in known):
            return False
        is_add = not op.is_standard("Mul")
        if not all(self._same_dims(op.reads[0], name) for name in op.reads):
            return False
        for each in known:
            each.reads_left -= 1
        if is_add and len(known) == 2:
            for each, other in (known, reversed(known)):
                maker = self.made[each.maker]
                if self._takes(maker, each) and len(maker.reads) < PLACES_OF_SUM:
                    reads = (*maker.reads, *[""] * (3 - len(maker.reads)), other.name)
                    self._take_in(op, each, replace(maker, reads=reads))
                    return True
        self._make(op, tuple(each.name for each in known), op.op_type, known[0].channels, known[0].origin, op.domain)
        return True

    def _concat(self, op: LayoutOp) -> bool:
        read = [self.blocked.get(name) for name in op.reads]
        known = [each for each in read if each is not None and each.channels % self.block == 0]
        if len(known) < len(read) or op.attributes.get("axis") != 1:
            return False
        for each in known:
            each.reads_left -= 1
        first = known[0].origin
        channels = sum(each.channels for each in known)
        origin = (first[0], self._fresh_origin(op)[1], *first[2:])
        self._make(op, tuple(each.name for each in known), op.op_type, channels, origin, op.domain)
        return True

    def _activation(self, op: LayoutOp) -> bool:
        each = self.blocked.get(op.reads[0])
        if each is None:
            return False
        each.reads_left -= 1
        maker = self.made[each.maker]
        if op.op_type in MOVING and self._takes(maker, each):
            self._take_in(op, each, replace(maker, attributes={**maker.attributes, "activation": op.op_type}))
        else:
            self._make(op, (each.name,), op.op_type, each.channels, each.origin, op.domain)
        return True

    def _norm(self, op: LayoutOp) -> bool:
        each = self.blocked.get(op.reads[0])
        is_plain = len([name for name in op.makes if name]) == 1 and "epsilon" in op.attributes
        if (
            each is None
            or not is_plain
            or any(self.scene.weights.get(name) != (each.channels,) for name in op.reads[1:])
        ):
            return False
        each.reads_left -= 1
        self._make(op, (each.name, op.reads[1], op.reads[2]), CONV, each.channels, each.origin)
        return True

    def _resize(self, op: LayoutOp) -> bool:
        each = self.blocked.get(op.reads[0])
        scales = self.scene.numbers.get(op.reads[-1])
        if each is None or scales is None or len(scales) != RANK or len(op.reads) == PLACES_OF_SUM:
            return False
        by, mode = (
            op.attributes.get("coordinate_transformation_mode", "half_pixel"),
            op.attributes.get("mode", "nearest"),
        )
        is_nearest = mode == "nearest" and by == "asymmetric" and op.attributes.get("nearest_mode") == "floor"
        if op.op_type == "Resize" and not is_nearest and not (mode == "linear" and by in LINEAR_BY):
            return False
        if tuple(scales[:2]) != (1, 1) or any(scale != int(scale) for scale in scales):
            return False
        each.reads_left -= 1
        self._make(op, (each.name,), "Upsample", each.channels, self._fresh_origin(op))
        return True

    def _takes(self, maker: LayoutOp, each: _Blocked) -> bool:
        """Whether a convolution in blocks, read by nobody else, has room for what follows it."""
        is_conv = maker.is_blocked and maker.op_type == CONV
        return is_conv and each.reads_before == 1 and "activation" not in maker.attributes

    def _take_in(self, op: LayoutOp, each: _Blocked, maker: LayoutOp) -> None:
        """Let a convolution make the result of an op that follows it; it keeps its number."""
        self.made[each.maker] = replace(maker, covers=(*maker.covers, op.name))
        reads = self.reads[op.makes[0]]
        self.blocked[op.makes[0]] = replace(each, reads_before=reads, reads_left=reads)

    def _make(
        self,
        op: LayoutOp,
        reads: tuple[str, ...],
        op_type: str,
        channels: int,
        origin: _Origin,
        domain: str = NCHWC,
    ) -> None:
        name = f"{op.makes[0]}{IN_BLOCKS}"
        self.made.append(LayoutOp(op.name, op_type, domain, reads, (name,), op.attributes, (op.name,)))
        uses = self.reads[op.makes[0]]
        self.blocked[op.makes[0]] = _Blocked(name, len(self.made) - 1, channels, uses, uses, origin)

    def _in_blocks(self, name: str) -> str:
        """The value in blocks, reordered for that once where it is not there yet."""
        if name in self.blocked:
            self.blocked[name].reads_left -= 1
            return self.blocked[name].name
        if name not in self.reordered:
            self.reordered[name] = f"{name}{REORDERED}"
            self.made.append(
                LayoutOp(f"{name}{REORDER_INPUT}", "ReorderInput", NCHWC, (name,), (self.reordered[name],))
            )
        return self.reordered[name]

    def _channels_of(self, name: str) -> int | None:
        shape = self.scene.shapes.get(name)
        channels = shape[1] if shape is not None and len(shape) == RANK else None
        return channels if isinstance(channels, int) else None

    def _fresh_origin(self, op: LayoutOp) -> _Origin:
        return tuple((op.makes[0], axis, 0) for axis in range(RANK))

    def _window_origin(self, op: LayoutOp, kernel: Sequence[int] | None, first: str) -> _Origin:
        """From which value each dimension comes, and how often it was halved, as far as the runtime follows that."""
        fresh = self._fresh_origin(op)
        before = next((each.origin for each in self.blocked.values() if each.name == first), None)
        if before is None:
            return fresh
        found = [before[0], fresh[1]]
        kernel = kernel or op.attributes.get("kernel_shape", (0, 0))
        pads, strides = op.attributes.get("pads", (0, 0, 0, 0)), op.attributes.get("strides", (1, 1))
        dilations, by = op.attributes.get("dilations", (1, 1)), op.attributes.get("auto_pad", "NOTSET")
        for axis in range(2):
            is_followed = dilations[axis] == 1 and strides[axis] in (1, 2)
            if is_followed and (by.startswith("SAME") or pads[axis] + pads[axis + 2] + 1 == kernel[axis]):
                name, place, halvings = before[2 + axis]
                found.append((name, place, halvings + strides[axis] - 1))
            else:
                found.append(fresh[2 + axis])
        return tuple(found)

    def _same_dims(self, first: str, second: str) -> bool:
        """Whether the runtime knows that two values in blocks have the same dimensions."""
        ours, theirs = self.scene.shapes.get(first), self.scene.shapes.get(second)
        for axis in range(RANK):
            if self.blocked[first].origin[axis] == self.blocked[second].origin[axis]:
                continue
            if ours is None or theirs is None or ours[axis] is None or ours[axis] != theirs[axis]:
                return False
        return True


def _conv_of_sum(
    scene: LayoutScene, add: LayoutOp, maker: Mapping[str, tuple[int, LayoutOp]], reads: Mapping[str, int]
) -> LayoutOp | None:
    """The convolution that takes in a sum: of those that may, the one that stands first in the file."""
    shape, *others = {scene.shapes.get(name) for name in add.reads}
    if others or shape is None or len(shape) != RANK or any(dim is None or dim == 0 for dim in shape):
        return None
    makers = sorted((maker[name] for name in set(add.reads) if name in maker), key=lambda each: each[0])
    for _, op in makers:
        if op.is_standard(CONV) and len(op.reads) == 3 and reads[op.makes[0]] == 1:
            return op
    return None


SENSITIVE: Final = frozenset(
    {CONV, "FusedConv", "Add", "Sum", "BatchNormalization", "AveragePool", "Resize", "Upsample", *GLOBAL_POOLS}
)
"""Ops whose last bits may depend on whether they work in blocks, or on which convolution takes them in."""
Fate = tuple[bool, tuple[str, ...]]


def fates(scene: LayoutScene, block: int, whole: Mapping[str, str]) -> dict[str, frozenset[Fate]]:
    """What becomes of each sensitive op of a whole model: in blocks or not, and computed together with which others.

    `whole` names the whole op that an op of the scene is a tile or a copy of; ops without an entry are helpers.
    """
    # Where elements are copied as they are, it does not matter.
    copied = [
        op
        for op in scene.ops
        if op.op_type in ("Resize", "Upsample") and op.attributes.get("mode", "nearest") == "nearest"
    ]
    sensitive = {op.name for op in scene.ops if op.op_type in SENSITIVE} - {op.name for op in copied}
    found: dict[str, set[Fate]] = {}
    laid = laid_out(scene, block)
    for op in laid.ops:
        together = tuple(whole.get(each, each) for each in op.covers if each in sensitive)
        for each in op.covers:
            if each in whole and each in sensitive:
                found.setdefault(whole[each], set()).add((op.makes[0] in laid.channels, together))
    return {name: frozenset(each) for name, each in found.items()}


@dataclass(frozen=True)
class WholeLayout:
    """What the layout step makes of a whole model, by the size of blocks: the fate of each sensitive op.

    `in_blocks` are ops that work in blocks on every processor that has any, `in_any` those that do on some.
    """

    fates: Mapping[int, Mapping[str, frozenset[Fate]]]
    in_blocks: frozenset[str]
    in_any: frozenset[str]
    names: frozenset[str]

    @property
    def partners(self) -> frozenset[str]:
        """Convolutions that take in a sum, on some kind of processor."""
        groups = (together for fates in self.fates.values() for each in fates.values() for _, together in each)
        return frozenset(together[0] for together in groups if len(together) > 1)

    @property
    def fused(self) -> frozenset[str]:
        """Ops that are computed together with others, on some kind of processor."""
        groups = (together for fates in self.fates.values() for each in fates.values() for _, together in each)
        return frozenset(name for together in groups if len(together) > 1 for name in together)

    def differing(self, scene: LayoutScene, whole: Mapping[str, str]) -> frozenset[str]:
        """Whole ops of which the layout step makes something else in another form of the model, on some processor."""
        known = {name: op for name, op in whole.items() if op in self.names}
        found = {block: fates(scene, block, known) for block in self.fates}
        return frozenset(op for block, ours in self.fates.items() for op in ours if found[block].get(op) != ours[op])

    @property
    def is_plain(self) -> bool:
        """Whether sessions leave the model as it is on every kind of processor."""
        together = (each for fates in self.fates.values() for each in fates.values())
        return not self.in_any and all(len(names) == 1 for each in together for _, names in each)


def whole_layout(scene: LayoutScene) -> WholeLayout:
    """What the layout step makes of a whole model on all kinds of processors."""
    names = {op.name: op.name for op in scene.ops}
    blocked = [_in_blocks(laid_out(scene, block)) for block in BLOCKS if block != 1]
    return WholeLayout(
        fates={block: fates(scene, block, names) for block in BLOCKS},
        in_blocks=frozenset.intersection(*blocked),
        in_any=frozenset.union(*blocked),
        names=frozenset(names),
    )


def _in_blocks(laid: LaidOut) -> frozenset[str]:
    return frozenset(name for op in laid.ops if op.makes[0] in laid.channels for name in op.covers)
