"""Along which axis each op is cut when the large tensors of a model are kept in bands, and into how many tiles.

A band is a slab of a tensor in a buffer of its own. A tensor whose maker and readers are all cut alike never exists
whole: each band is freed once the tiles that read it have run.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal

from remat_cli.base.present import present
from remat_cli.core.schedule.splits import SplitAxis
from remat_cli.splitting.rules.conv_channels import CHANNELS, ITEMS, SPATIAL
from remat_cli.splitting.tiles.op_view import SUMMED, Slab, tile_bounds
from remat_cli.splitting.tiles.view import ModelView

Lean = Literal["rows", "outer"]  # which axis is cut where several would do
LEANS: tuple[Lean, ...] = ("rows", "outer")
CROSSING_SHARE = 0.1  # what each reader that cuts a tensor otherwise costs beside the tensor's being whole
SMALL_INPUT = 8  # times smaller than its result is what a convolution may read again for each band of channels
SWEEPS = 3


@dataclass(frozen=True)
class Banding:
    """How the ops of a model are cut: by op id its axis (of the first output) and fusion group, by group its tiles.

    Ops of a fusion group are cut into as many tiles, which run side by side; ops without one stay whole. Of tensors
    that are made again so large a share is not: its last bands are those of the first time.
    """

    axis: Mapping[int, int]
    group: Mapping[int, int]
    tiles: tuple[int, ...]
    kept_share: float = 0.0


@dataclass(frozen=True)
class BandRules:
    """What may be cut: tensors of at least `least_bytes`, along axes that `axis` admits, never ops in `forbidden`.

    Tensors in `also` count as large whatever their size; outputs of the model do not where `spares_outputs`: they have
    to be whole at last. `workspaces` are the bytes that ops take while they run, by op id, where those are as many.
    `most_tiles` are the most into which some ops can be cut, by op id: they do not run beside what they read.
    """

    least_bytes: int
    lean: Lean
    axis: SplitAxis
    forbidden: frozenset[int] = frozenset()
    also: frozenset[str] = frozenset()
    spares_outputs: bool = False
    workspaces: Mapping[int, int] = field(default_factory=dict, hash=False)
    most_tiles: Mapping[int, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class BandSize:
    """How large bands of a group's largest tensor may be; `crossing_bytes` where it reads across others' bands."""

    bytes: int
    crossing_bytes: int


def band_axes(view: ModelView, order: Sequence[int], rules: BandRules) -> Mapping[int, int]:
    """The axis of every op that reads or makes a large tensor: as few bytes as can be are read whole or across."""
    return _Labels(view, tuple(order), rules).found()


def band_ops(view: ModelView, axis: Mapping[int, int], rules: BandRules, size: BandSize, most_tiles: int) -> Banding:
    """Cut ops along the axis of each, in groups of those that hand bands to each other.

    Groups get as few tiles as make bands of their largest tensor of at most that size, at most `most_tiles`.
    """
    groups = _fusion_groups(view, axis, rules)
    group = {op: number for number, ops in enumerate(groups) for op in ops}
    tiles = []
    for ops in groups:
        sizes = [(rules.workspaces[op], view.extent(op, axis[op])) for op in ops if op in rules.workspaces]
        sizes += [
            (view.tensors[name].size_bytes, view.extent(op, axis[op]))
            for op in ops
            for name in (*view.reads[op], *(() if axis[op] == SUMMED else view.makes[op]))
            if name in view.tensors
        ]
        largest_bytes, extent = max(sizes)
        most_bytes = size.crossing_bytes if _reads_across(view, axis, ops) else size.bytes
        bearable = min((rules.most_tiles[op] for op in ops if op in rules.most_tiles), default=most_tiles)
        wanted = max(2, min(-(-largest_bytes // max(1, most_bytes)), most_tiles, extent, bearable))
        tiles.append(even_tiles(view, axis, ops, wanted))
    return Banding({op: axis[op] for op in group}, group, tuple(tiles))


def even_tiles(view: ModelView, axis: Mapping[int, int], ops: Sequence[int], wanted: int) -> int:
    """Into how many tiles to cut a group: as many as wanted; where it adds up, so many that all are equal."""
    if all(axis[op] != SUMMED for op in ops):
        return wanted
    even = even_counts(view, axis, ops)
    return next((count for count in even if count >= wanted), even[-1] if even else wanted)


def even_counts(view: ModelView, axis: Mapping[int, int], ops: Iterable[int]) -> list[int]:
    """Into how many tiles, all as long, each of some ops can be cut."""
    common = math.gcd(*(view.extent(op, axis[op]) for op in ops))
    return [count for count in range(2, common + 1) if common % count == 0]


class _Labels:
    """Searches an axis per op: sweeps over the ops, each given the axis that costs least beside its neighbours'.

    A tensor costs its bytes if it must exist whole because some reader needs all of it, or other slabs than its maker
    makes, and a tenth of them for every such reader.
    """

    def __init__(self, view: ModelView, order: tuple[int, ...], rules: BandRules) -> None:
        self.view, self.order, self.rules = view, order, rules
        self.axis = {op: choices[0] for op, choices in self.choices.items()}

    def found(self) -> dict[int, int]:
        """The axis of every op that is to be cut."""
        ops = [op for op in self.order if op in self.choices]
        self._settle(ops, [*reversed(ops)], self._cost_behind)
        if any(ITEMS not in self.choices[op] and self._takes_for_one_item(op) for op in ops):
            # the items that the last ops ask for may meet the rows of the first where most is held
            from_behind, cost = dict(self.axis), self._all_cost
            self.axis = {op: choices[0] for op, choices in self.choices.items()}
            self._settle(ops, ops, self._cost_before)
            if self._all_cost >= cost:
                self.axis = from_behind
        # cut small ops between large ones too where bands can go through: whole, they would hold up all of them
        choices = {op: self._choices(op) for op in self._between}
        for op in (op for op in self.order if choices.get(op)):
            self.axis[op] = min(choices[op], key=lambda axis: (self._cost(op, axis), choices[op].index(axis)))
        while stuck := [op for op in choices if op in self.axis and not self._passes_on(op)]:
            for op in stuck:
                del self.axis[op]
        return self.axis

    def _settle(self, ops: Sequence[int], first: Sequence[int], cost: Callable[[int, int], float]) -> None:
        """Give each op an axis as those before it in `first` ask, and sweep until each suits its neighbours."""
        for op in first:
            self.axis[op] = min(self.choices[op], key=lambda axis: (cost(op, axis), self._cost(op, axis)))
        for sweep in range(SWEEPS):
            for op in ops if sweep % 2 == 0 else reversed(ops):
                now = self.axis[op]
                self.axis[op] = min(self.choices[op], key=lambda axis: (self._cost(op, axis), axis != now))

    @property
    def _all_cost(self) -> float:
        return sum(self._cost_behind(op, axis) for op, axis in self.axis.items())

    def _passes_on(self, op: int) -> bool:
        """Whether an op takes bands as they are made, and its readers take bands as it makes them."""
        axis, makers = self.axis, ((name, self.view.tensors[name].producer) for name in self.reads[op, self.axis[op]])
        taken = (self.reads[op, axis[op]][name] == axis[maker] for name, maker in makers if maker in axis)
        read = ((name, reader) for name in self.view.makes[op] if name for reader in self.view.readers[name])
        given = (reader in axis and self.reads[reader, axis[reader]].get(name) == axis[op] for name, reader in read)
        return all(taken) and all(given)

    @cached_property
    def choices(self) -> dict[int, tuple[int, ...]]:
        """By op that reads or makes something large, the axes it can be cut along, the preferred first."""
        found = {op: self._choices(op) for op in self.order if self._is_large(op)}
        return {op: axes for op, axes in found.items() if axes}

    @cached_property
    def _between(self) -> tuple[int, ...]:
        """Small ops on a way from a large one that is cut to another, such as those on a number for each row."""
        view, cut = self.view, self.choices
        behind: set[int] = set()
        for op in self.order:
            makers = (view.tensors[name].producer for name in view.reads[op] if name in view.tensors)
            if op not in cut and any(maker in cut or maker in behind for maker in makers):
                behind.add(op)
        before: set[int] = set()
        for op in reversed(self.order):
            readers = (reader for name in view.makes[op] if name for reader in view.readers[name])
            if op in behind and any(reader in cut or reader in before for reader in readers):
                before.add(op)
        return tuple(op for op in self.order if op in before and not self._is_large(op))

    @cached_property
    def reads(self) -> dict[tuple[int, int], Mapping[str, int | None]]:
        """By op and axis, the axis of the slab that it reads of each tensor that ops make."""
        return {}

    def _is_large(self, op: int) -> bool:
        view = self.view
        if op in self.rules.workspaces:
            return True
        made = [view.tensors[name] for name in (*view.reads[op], *view.makes[op]) if name in view.tensors]
        return any(
            t.producer is not None
            and not (t.kept and self.rules.spares_outputs)
            and (t.size_bytes >= self.rules.least_bytes or t.name in self.rules.also)
            for t in made
        )

    def _choices(self, op: int) -> tuple[int, ...]:
        shapes = {shape for shape in self.view.ops[op].outputs if shape is not None}
        if op in self.rules.forbidden or not shapes:
            return ()
        shape = self.view.ops[op].output_shape
        allowed = self.rules.axis.axes(len(shape))
        found = []
        is_by_rows = self.rules.lean == "rows"
        # A convolution of which each channel reads all of its input: channel by channel, that is too much, unless the
        # input is small, and nothing reads the result by rows.
        all_channels = is_by_rows and self.view.rules[op].reads_all_channels
        if all_channels and has_small_input(self.view, op):
            reads = ((reader, name) for name in self.view.makes[op] for reader in self.view.readers[name])
            all_channels = any(reads_rows(self.view, *each) for each in reads)
        one_item = is_by_rows and self._takes_for_one_item(op)
        for axis in (SUMMED, *_preferred(len(shape), self.rules.lean)):
            if (all_channels and axis == CHANNELS) or (one_item and axis == ITEMS):
                continue  # would read all of its input; would take as much for itself
            is_sum = axis == SUMMED
            needs = self.view.axes_read(op, axis) if is_sum or (axis in allowed and shape[axis] > 1) else None
            if needs is None or (not is_sum and any(len(s) <= axis or s[axis] != shape[axis] for s in shapes)):
                continue
            read = zip(self.view.reads[op], needs, strict=True)
            self.reads[op, axis] = {name: need for name, need in read if name in self.view.tensors}
            found.append(axis)
        return tuple(found)

    def _takes_for_one_item(self, op: int) -> bool:
        """Whether an op takes as much for itself, and that is much, for one item of the batch as for all."""
        shape = self.view.ops[op].output_shape
        is_large = op in self.rules.workspaces and len(shape) > ITEMS and shape[ITEMS] > 1
        return is_large and self.view.rules[op].takes_for_one_item

    def _cost_behind(self, op: int, axis: int) -> float:
        return sum(self._tensor_cost(name, op, axis) for name in self.view.makes[op] if name)

    def _cost_before(self, op: int, axis: int) -> float:
        return sum(self._tensor_cost(name, op, axis) for name in set(self.reads[op, axis]))

    def _cost(self, op: int, axis: int) -> float:
        return self._cost_before(op, axis) + self._cost_behind(op, axis)

    def _tensor_cost(self, name: str, op: int, axis: int) -> float:
        """What a tensor costs if an op, its maker or a reader, is cut along an axis."""
        tensor = self.view.tensors[name]
        maker = tensor.producer
        if maker is None or maker not in self.axis:
            return 0.0
        made = axis if maker == op else self.axis[maker]
        if made == SUMMED:
            return 0.0
        others = 0
        for reader in self.view.readers[name]:
            label = axis if reader == op else self.axis.get(reader)
            others += label is None or self.reads[reader, label].get(name) != made
        return tensor.size_bytes * (bool(others) + CROSSING_SHARE * others)


def has_small_input(view: ModelView, op: int) -> bool:
    """Whether an op is a convolution that may read its input again for each band of channels, or run again whole."""
    if not view.rules[op].reads_all_channels:
        return False
    read, made = (view.tensors.get(names[op][0]) for names in (view.reads, view.makes))
    return read is not None and made is not None and read.size_bytes <= made.size_bytes / SMALL_INPUT


def reads_rows(view: ModelView, reader: int, name: str) -> bool:
    """Whether an op can read slabs of a tensor along a spatial axis; a change of shape if what reads its result can."""
    return any(_reads_along(view, reader, name, axis) for axis in range(SPATIAL, len(view.tensors[name].shape)))


def _reads_along(view: ModelView, reader: int, name: str, axis: int) -> bool:
    place, (made, *_) = view.reads[reader].index(name), view.makes[reader]
    for other in range(len(view.ops[reader].output_shape)):
        needs = view.axes_read(reader, other)
        if needs is None or needs[place] != axis:
            continue
        if view.graph.ops[reader].op_type != "Reshape":
            return True
        if any(_reads_along(view, each, made, other) for each in view.readers[made]):
            return True
    return False


def _preferred(rank: int, lean: Lean) -> tuple[int, ...]:
    """Axes of a tensor, those to be cut first before others: rows of images and sequences, or what lies outside."""
    if lean == "outer" or rank < 3:
        return tuple(range(rank))
    rows = 2 if rank > 3 else 1
    return (*range(rows, rank), *reversed(range(rows)))


def most_cut(view: ModelView, op: int, axis: int, tiles: int) -> int:
    """The most tiles, fewer than so many, into which an op can be cut; 0 where there are none."""
    extent = view.extent(op, axis)
    for count in range(min(tiles - 1, extent), 1, -1):
        bounds = pairwise(tile_bounds(extent, count))
        if all(view.slice(op, Slab(axis, *each)) is not None for each in bounds):
            return count
    return 0


def _fusion_groups(view: ModelView, axis: Mapping[int, int], rules: BandRules) -> list[list[int]]:
    """Groups ops that hand bands to each other; an op alone is a group if it reads bands or needs much workspace."""
    linked: dict[int, set[int]] = defaultdict(set)
    takes_bands = set()
    for op, along in axis.items():
        needs = present(view.axes_read(op, along), "the axes that an op in bands reads")
        for name, need in zip(view.reads[op], needs, strict=True):
            maker = view.tensors[name].producer if name in view.tensors else None
            if maker is None or maker not in axis:
                continue
            takes_bands.add(op)
            if axis[maker] == need and op not in rules.most_tiles:
                linked[op].add(maker)
                linked[maker].add(op)
    groups: list[list[int]] = []
    grouped: set[int] = set()
    for op in sorted(axis):
        if op in grouped:
            continue
        group, frontier = {op}, [op]
        while frontier:
            new = linked[frontier.pop()] - group
            group |= new
            frontier += new
        grouped |= group
        if len(group) > 1 or group & takes_bands or not group.isdisjoint(rules.workspaces):
            groups.append(sorted(group))
    return groups


def _reads_across(view: ModelView, axis: Mapping[int, int], ops: Sequence[int]) -> bool:
    """Whether some op reads other slabs of a tensor in bands than its maker makes."""
    for op in ops:
        needs = present(view.axes_read(op, axis[op]), "the axes that an op in bands reads")
        for name, need in zip(view.reads[op], needs, strict=True):
            maker = view.tensors[name].producer if name in view.tensors else None
            if maker is not None and maker in axis and need is not None and axis[maker] != need:
                return True
    return False
