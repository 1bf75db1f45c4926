"""What was split: regions of ops that run tile by tile, in the names of the whole optimised model."""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import Literal

import msgspec

from remat_cli.base.errors import ConfigError, ModelError
from remat_cli.base.units import format_bytes
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.values.profile import Profile

SplitMode = Literal["auto", "off", "max"]
AxisName = Literal["auto", "axis", "batch", "channels", "depth", "height", "width", "sequence", "heads"]

AXIS_NAMES: Mapping[str, AxisName] = {
    "auto": "auto",
    "n": "batch",
    "batch": "batch",
    "c": "channels",
    "channel": "channels",
    "channels": "channels",
    "d": "depth",
    "depth": "depth",
    "h": "height",
    "height": "height",
    "w": "width",
    "width": "width",
    "length": "width",
    "s": "sequence",
    "seq": "sequence",
    "sequence": "sequence",
    "head": "heads",
    "heads": "heads",
}
MOST_AXES = 8  # no op that we can split has tensors of more


class SplitAxis(msgspec.Struct, frozen=True):
    """Which axis tiles may cut, as the user wrote it in `text`; `axis` belongs to kind `axis`, negative from the end.

    Images are read as NCHW (batch, channels, then depth, height, width), sequences as batch x sequence x features,
    attention as batch x heads x sequence x features.
    """

    text: str = "auto"
    kind: AxisName = "auto"
    axis: int = 0

    def axes(self, rank: int) -> tuple[int, ...]:
        """The axes that may be cut in a tensor of this rank; empty where it has no such axis."""
        meaning = {
            "auto": tuple(range(rank)),
            "axis": (self.axis + rank if self.axis < 0 else self.axis,),
            "batch": (0,),
            "channels": (1,) if rank >= 3 else (),
            "depth": (rank - 3,) if rank >= 5 else (),
            "height": (rank - 2,) if rank >= 4 else (),
            "width": (rank - 1,) if rank >= 3 else (),
            "sequence": {2: (0,), 3: (1,), 4: (2,)}.get(rank, ()),
            "heads": {3: (0,), 4: (1,)}.get(rank, ()),
        }
        return tuple(axis for axis in meaning[self.kind] if 0 <= axis < rank)


class LargeTensor(msgspec.Struct, frozen=True):
    """A tensor above the cap on tensors that stays whole, and why: `op` makes or reads it."""

    name: str
    size_bytes: int
    op: str
    kind: Literal["input", "output", "weight", "inside"]


def large_tensors(graph: Graph, most_bytes: int) -> tuple[LargeTensor, ...]:
    """What of a model is larger than a cap: tensors with storage of their own, inputs, outputs and weights."""
    found: list[LargeTensor] = []
    readers = {tensor: op.name for op in reversed(graph.ops) for tensor in op.inputs}
    for number, tensor in enumerate(graph.tensors):
        if tensor.size_bytes <= most_bytes or tensor.view_of is not None:
            continue
        if tensor.producer is None:
            found.append(LargeTensor(tensor.name, tensor.size_bytes, readers.get(number, ""), "input"))
        else:
            kind: Literal["output", "inside"] = "output" if tensor.kept else "inside"
            found.append(LargeTensor(tensor.name, tensor.size_bytes, graph.ops[tensor.producer].name, kind))
    users = {weight: op.name for op in reversed(graph.ops) for weight in op.weights}
    for number, weight in enumerate(graph.weights):
        if weight.size_bytes > most_bytes:
            found.append(LargeTensor(weight.name, weight.size_bytes, users.get(number, ""), "weight"))
    return tuple(found)


def large_tensor_lines(graph: Graph, most_bytes: int | None) -> tuple[str, ...]:
    """A line for each tensor above a cap (None: there is none): inputs, outputs and weights, which no split cuts."""
    found = () if most_bytes is None else large_tensors(graph, most_bytes)
    return tuple(
        f"--max-tensor: {each.kind} '{each.name}' of {format_bytes(each.size_bytes)} stays whole, for op '{each.op}'"
        for each in found
    )


def parse_split_axis(text: str) -> SplitAxis:
    """Read `auto`, an axis number such as `2` or `-1`, a letter of NCHW, or a name such as `height`.

    Raises:
        ConfigError: neither, or a number that no tensor has as an axis.
    """
    word = text.strip()
    if word.lower() in AXIS_NAMES:
        return SplitAxis(word, AXIS_NAMES[word.lower()])
    if re.fullmatch(r"-?[0-9]+", word) and -MOST_AXES <= int(word) < MOST_AXES:
        return SplitAxis(word, "axis", int(word))
    raise ConfigError(
        f"split axis '{text}' is not an axis: write auto, a number such as 2, "
        "or batch, height, width, sequence, heads (N, H, W of NCHW)"
    )


DEFAULT_RACE_SHARE = Fraction(3, 10)


class SplitOptions(msgspec.Struct, frozen=True):
    """Which splits may be made; `allow_reassociation` admits those that add in another order.

    Once a split fits, rivals are measured beside it for `race_share` of the time limit. No tensor that an op makes may
    be larger than `max_tensor_bytes` (None: any size), outputs of the model excepted.
    """

    mode: SplitMode = "auto"
    max_tiles: int = 32
    axis: SplitAxis = SplitAxis()
    allow_reassociation: bool = False
    race_share: Fraction = DEFAULT_RACE_SHARE
    max_tensor_bytes: int | None = None


class Region(msgspec.Struct, frozen=True):
    """Ops that run tile by tile: each tile makes its part of `exits`, which exist whole once all tiles have run.

    `ops` are op names in execution order, `exits` tensor names; both are those of the whole optimised model. Tiles
    cut the exits along `axes` (one axis per exit) into `tiles` parts. Rows of the tensors in `kept` that two tiles
    need are kept from one to the next; all other such rows (the halo) are computed again.
    """

    ops: tuple[str, ...]
    exits: tuple[str, ...]
    axes: tuple[int, ...]
    tiles: int
    kept: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that every exit has its axis.

        Raises:
            ModelError: it has not.
        """
        if not self.ops or len(self.axes) != len(self.exits):
            raise ModelError(f"a region of {len(self.ops)} ops has {len(self.exits)} exits, {len(self.axes)} axes")


class RegionFacts(msgspec.Struct, frozen=True):
    """What splitting a region does.

    `extent` is how many positions the first exit has along its axis, which the tiles share. `halo_percent` is how much
    work the tiles do beyond the whole ops, in estimated time. Peaks are the most held at once while the region runs,
    all that lies beside it included; times are those of its ops: before, measured as a whole; after, measured in tiles
    (in proposals of `inspect`, both "after" figures are estimates).
    """

    extent: int
    halo_percent: float
    peak_before_bytes: int
    peak_after_bytes: int
    time_before_ns: int
    time_after_ns: int


class Splitting(msgspec.Struct, frozen=True):
    """The splitting that a plan rests on.

    `whole_sha256` and `whole_profile` belong to the optimised model before splitting, which the baseline is counted
    from and outputs are compared with. `whole_floor_bytes` is the floor of whole ops. Tiles have the bits of the whole
    with up to `most_threads` (0: with any number).
    """

    regions: tuple[Region, ...]
    facts: tuple[RegionFacts, ...]
    whole_sha256: str
    whole_profile: Profile
    whole_floor_bytes: int
    most_threads: int = 0

    def __post_init__(self) -> None:
        """Check that every region has its facts.

        Raises:
            ModelError: it has not.
        """
        if len(self.regions) != len(self.facts):
            raise ModelError(f"{len(self.regions)} regions have the facts of {len(self.facts)}")


def regions_of_ops(splitting: Splitting, graph: Graph) -> tuple[int | None, ...]:
    """Per op of the split graph, the number of the region whose tiles it belongs to; None for ops that stayed whole.

    Tiles of an op are called `OP/tile_T`, tiles of a tile `OP/tile_T/tile_U`. Other new ops (slices, joins, views) have
    other names and belong to the nearest tiles they exchange tensors with.
    """
    owner = {op: number for number, region in enumerate(splitting.regions) for op in region.ops}
    whole = {cost.name for cost in splitting.whole_profile.ops}
    found = [owner.get(_whole_name(op.name, whole)) for op in graph.ops]
    # By op, those that read what it makes, or make what it reads.
    touching: dict[int, list[int]] = defaultdict(list)
    for number, reader in enumerate(graph.ops):
        for tensor in reader.inputs:
            producer = graph.tensors[tensor].producer
            if producer is not None:
                touching[number].append(producer)
                touching[producer].append(number)
    frontier = [op for op, region in enumerate(found) if region is not None]
    while frontier:
        reached: dict[int, int | None] = {}
        for op in frontier:
            for other in touching[op]:
                if found[other] is None and graph.ops[other].name not in whole:
                    reached.setdefault(other, found[op])
        for op, region in reached.items():
            found[op] = region
        frontier = list(reached)
    return tuple(found)


def _whole_name(name: str, whole: Collection[str]) -> str:
    """The name of the whole op that an op is, or is a tile of; another name where it is neither."""
    while name not in whole and "/tile_" in name:
        name = name.rpartition("/tile_")[0]
    return name
