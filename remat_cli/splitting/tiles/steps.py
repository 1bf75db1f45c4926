"""A tiled region as a list of steps: cut, run, join. What is built and what is judged come from the same list."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from remat_cli.splitting.tiles.op_view import Shape, Slab, tile_bounds
from remat_cli.splitting.tiles.tiling import Cutting, Tile, TileWork, cut_tiles, is_overwritable
from remat_cli.splitting.tiles.view import ModelView


class Piece(msgspec.Struct, frozen=True):
    """A value of the split model: some slab of a tensor of the whole model (None: all of it).

    `across` is a second slab, along another axis, where a slab is cut once more.
    """

    name: str
    tensor: str
    slab: Slab | None
    across: Slab | None = None


class CutStep(msgspec.Struct, frozen=True):
    """Copies a slab out of a piece."""

    source: Piece
    result: Piece


class RunStep(msgspec.Struct, frozen=True):
    """Runs an op on pieces; `reads` by position, None where the op reads a constant or nothing there.

    Of ops that add up positions, `turn` tells those apart that may go on together: all of them take one tile before any
    takes the next.
    """

    work: TileWork
    tile: int
    reads: tuple[Piece | None, ...]
    makes: tuple[Piece | None, ...]
    turn: tuple[int, int] | None = None


class WholeStep(msgspec.Struct, frozen=True):
    """Runs an op as it is; `reads` and `makes` are those of its tensors that ops make, all of each."""

    op: int
    reads: tuple[Piece, ...]
    makes: tuple[Piece, ...]


class JoinStep(msgspec.Struct, frozen=True):
    """Joins pieces that lie side by side into one."""

    parts: tuple[Piece, ...]
    result: Piece


class FillStep(msgspec.Struct, frozen=True):
    """Writes a part into a buffer of full size: over `before`, in place, or into a new one where that is None.

    The first `before` may be another tensor, of the same kind, that nothing reads any more. `is_last` tells that the
    result is then the tensor itself.
    """

    before: Piece | None
    part: Piece
    result: Piece
    is_last: bool


class AddStep(msgspec.Struct, frozen=True):
    """Adds what a tile has added up to the sum so far."""

    before: Piece
    part: Piece
    result: Piece


NEW, RAW = "/new", "/raw"  # what a tile adds to kept rows; what an op makes before it is cut to what was asked

Step = CutStep | RunStep | WholeStep | JoinStep | FillStep | AddStep


@dataclass(frozen=True)
class TiledRegion:
    """Ops of the whole model, and the steps that take their place."""

    ops: tuple[int, ...]
    steps: tuple[Step, ...]


def piece_shape(view: ModelView, piece: Piece) -> Shape:
    """Shape of a piece."""
    shape = view.tensors[piece.tensor].shape
    for slab in (piece.slab, piece.across):
        if slab is not None:
            shape = (*shape[: slab.axis], slab.extent, *shape[slab.axis + 1 :])
    return shape


def reads_of(step: Step) -> tuple[Piece, ...]:
    """Pieces that a step reads."""
    if isinstance(step, CutStep):
        return (step.source,)
    if isinstance(step, JoinStep):
        return step.parts
    if isinstance(step, AddStep):
        return (step.before, step.part)
    if isinstance(step, FillStep):
        return (step.part,) if step.before is None else (step.before, step.part)
    return tuple(piece for piece in step.reads if piece is not None)


def op_of(view: ModelView, step: Step) -> int:
    """The op that a step runs, or that makes what it cuts or joins; of a model input, an op that reads it."""
    if isinstance(step, WholeStep):
        return step.op
    if isinstance(step, RunStep):
        return step.work.op
    name = results_of(step)[0].tensor
    maker = view.tensors[name].producer
    return view.readers[name][0] if maker is None else maker


def results_of(step: Step) -> tuple[Piece, ...]:
    """Pieces that a step makes."""
    if isinstance(step, RunStep | WholeStep):
        return tuple(piece for piece in step.makes if piece is not None)
    return (step.result,)


def region_steps(view: ModelView, cutting: Cutting) -> tuple[Step, ...] | None:
    """Everything a tiled region does, in order; None where it cannot be cut."""
    tiles = cut_tiles(view, cutting)
    if tiles is None or not all(is_overwritable(view, cutting, tiles, *pair) for pair in cutting.over):
        return None
    return tuple(_Writer(view, cutting, tiles).steps())


@dataclass
class _Writer:
    """Writes the steps of one region; `pieces` are those of the current tile by name of their tensor."""

    view: ModelView
    cutting: Cutting
    tiles: Sequence[Tile]
    pieces: dict[str, Piece] = field(default_factory=dict)
    tails: dict[str, Piece] = field(default_factory=dict)
    cuts: dict[tuple[str, Slab], Piece] = field(default_factory=dict)
    parts: dict[str, list[Piece]] = field(default_factory=dict)
    mark: str = "tile"

    def steps(self) -> Iterator[Step]:
        self.parts = {name: [] for name, _ in self.cutting.exits}
        while any(f"/{self.mark}_" in name for name in self.view.tensors):  # a model that was split before
            self.mark = f"{self.mark}_of_tile"
        for number, tile in enumerate(self.tiles):
            after = self.tiles[number + 1] if number + 1 < len(self.tiles) else None
            yield from self._tile(number, tile, after)
        for name, parts in self.parts.items():
            if name not in self.cutting.fills:
                yield JoinStep(tuple(parts), Piece(name, name, None))

    def _tile(self, number: int, tile: Tile, after: Tile | None) -> Iterator[Step]:
        before, self.tails = self.tails, {}
        self.pieces, self.cuts = {}, {}
        works = {work.op: work for work in tile.works}
        for op in self.cutting.ops:
            if op in works:
                yield from self._run(number, tile, works[op])
            for name in self.view.makes[op]:
                if name in tile.kept and name not in self.pieces:
                    self.pieces[name] = before[name]
                elif name in tile.kept:  # put what the tile before kept in front of what this one made
                    joined = Piece(f"{name}/{self.mark}_{number}", name, tile.holds[name])
                    yield JoinStep((before[name], self.pieces[name]), joined)
                    self.pieces[name] = joined
                if name in tile.holds and after is not None and name in after.kept:
                    # cut off at once what the next tile will need again, so that the rest can die
                    tail = Piece(f"{name}/{self.mark}_{number + 1}/tail", name, after.kept[name])
                    if tail.slab == self.pieces[name].slab:
                        tail = self.pieces[name]
                    else:
                        yield CutStep(self.pieces[name], tail)
                    self.tails[name] = tail
        for name, axis in self.cutting.exits:
            bounds = tile_bounds(self.view.tensors[name].shape[axis], self.cutting.tiles)
            part = Slab(axis, bounds[number], bounds[number + 1])
            source = self.pieces[name]
            yield from self._cut(source, part, number)
            found = self._found(source, part)
            if name in self.cutting.fills:
                result = Piece(name if after is None else f"{name}/{self.mark}_{number}/filled", name, None)
                yield FillStep(self._filled(name, number), found, result, is_last=after is None)
            self.parts[name].append(found)

    def _filled(self, name: str, number: int) -> Piece | None:
        """What holds an exit so far when a tile begins; at first what is to be overwritten, if anything is."""
        if number:
            return Piece(f"{name}/{self.mark}_{number - 1}/filled", name, None)
        entry = dict(self.cutting.over).get(name)
        return None if entry is None else Piece(entry, entry, None)

    def _run(self, number: int, tile: Tile, work: TileWork) -> Iterator[Step]:
        reads: list[Piece | None] = []
        for name, need in zip(self.view.reads[work.op], work.sliced.needs, strict=True):
            if name not in self.view.tensors:
                reads.append(None)
                continue
            source = self.pieces.get(name)
            if source is None:  # an entry, which lies in the storage of an exit where that overwrites it
                over = next((exit_name for exit_name, entry in self.cutting.over if entry == name), None)
                source = (None if over is None else self._filled(over, number)) or Piece(name, name, None)
            yield from self._cut(source, need, number)
            reads.append(self._found(source, need))
        made: list[Piece | None] = []
        for name in self.view.makes[work.op]:
            new = NEW if name in tile.kept else ""
            raw = RAW if name in tile.holds and work.sliced.makes != work.asked else ""
            label = f"{name}/{self.mark}_{number}{new}{raw}"
            made.append(Piece(label, name, work.sliced.makes) if name else None)
        yield RunStep(work, number, tuple(reads), tuple(made))
        for piece in made:
            if piece is not None and piece.tensor in tile.holds:
                exact = Piece(piece.name.removesuffix(RAW), piece.tensor, work.asked)
                if exact != piece:
                    yield CutStep(piece, exact)
                self.pieces[piece.tensor] = exact

    def _cut(self, source: Piece, need: Slab | None, number: int) -> Iterator[Step]:
        if self._fits(source, need) or (source.name, need) in self.cuts:
            return
        assert need is not None
        name = f"{source.name}/axis_{need.axis}_{need.start}_{need.stop}"
        if source.slab is None:  # another region may cut the same rows of it, but has other exits
            name = f"{name}/for_{self.cutting.exits[0][0]}/{self.mark}_{number}"
        result = Piece(name, source.tensor, need)
        self.cuts[source.name, need] = result
        yield CutStep(source, result)

    def _found(self, source: Piece, need: Slab | None) -> Piece:
        return source if self._fits(source, need) or need is None else self.cuts[source.name, need]

    def _fits(self, source: Piece, need: Slab | None) -> bool:
        """Whether a piece is just what is needed."""
        if need is None or source.slab == need:
            return True
        return source.slab is None and need.extent == self.view.tensors[source.tensor].shape[need.axis]
