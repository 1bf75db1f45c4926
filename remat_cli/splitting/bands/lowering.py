"""All steps of a model in bands, from the slabs that tiles make: cut, run, join; not yet in order."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from remat_cli.base.present import present
from remat_cli.splitting.bands.bands import Banding
from remat_cli.splitting.bands.demands import BandedOps, is_alike
from remat_cli.splitting.recast.recast import Recast
from remat_cli.splitting.tiles.op_view import SUMMED, Slab, SumSoFar
from remat_cli.splitting.tiles.steps import (
    RAW,
    AddStep,
    CutStep,
    FillStep,
    JoinStep,
    Piece,
    RunStep,
    Step,
    WholeStep,
    results_of,
)
from remat_cli.splitting.tiles.tiling import TileWork
from remat_cli.splitting.tiles.view import ModelView


def lower(cast: Recast, banding: Banding, banded: BandedOps, may_fill: bool) -> list[Step]:
    """Lowers a model in bands to steps, each after those whose results it reads.

    Where `may_fill`, tensors needed whole are filled in place, tile by tile; joined otherwise.
    """
    lowering = _Lowering(cast.view, cast.order, cast.twins, banding, banded, may_fill)
    for op in cast.order:
        lowering.add(op)
    return lowering.steps


@dataclass
class _Lowering:
    """Adds steps as they are asked for; `known` are pieces that a step makes already, by name."""

    view: ModelView
    order: tuple[int, ...]
    twins: Mapping[str, str]
    banding: Banding
    banded: BandedOps
    may_fill: bool
    steps: list[Step] = field(default_factory=list)
    bands: dict[str, list[Piece]] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)

    def add(self, op: int) -> None:
        """Adds the steps of one op, and of what must be cut or joined for it."""
        if op not in self.banded.works:
            read = [name for name in self.view.reads[op] if name in self.view.tensors]
            inside = (name for name in self.view.needs[op] if name not in read)  # by its bodies
            reads = tuple(self._piece(name, None, op) for name in (*read, *inside))
            made = tuple(Piece(name, name, None) for name in self.view.makes[op] if name)
            self._put(WholeStep(op, reads, made))
            return
        if self.banding.axis[op] == SUMMED:
            self._add_up(op)
            return
        kept = self.banded.kept.get(op, {})
        for tile, work in enumerate(self.banded.works[op]):
            if work is not None:
                self._run(op, tile, work)
            elif tile in kept:
                for name in self.view.makes[op]:
                    self.bands.setdefault(name, []).append(self._piece(self.twins[name], kept[tile], op))
        for name in self.view.makes[op]:
            if name in self.banded.whole:
                self._make_whole(name)

    @cached_property
    def mark(self) -> str:
        """What tells our tiles from those of a model that was split before."""
        mark = "band"
        while any(f"/{mark}_" in name for name in self.view.tensors):
            mark = f"{mark}_of_band"
        return mark

    @cached_property
    def stage(self) -> Mapping[int, int]:
        """By op, how many times something must be whole before it runs."""
        found: dict[int, int] = {}
        for op in self.order:
            made = {self.view.tensors[name].producer for name in self.view.needs[op]}
            found[op] = max((found[m] + self._waits(m, op) for m in made if m is not None), default=0)
        for op in reversed(self.order):  # what runs again does so for its readers
            if any(name in self.twins for name in self.view.makes[op]):
                readers = [r for name in self.view.makes[op] if name for r in self.view.readers[name]]
                found[op] = min((found[reader] for reader in readers), default=found[op])
        return found

    def _waits(self, maker: int, op: int) -> bool:
        """Whether an op waits for all tiles of a maker of what it reads."""
        if maker not in self.banded.works:
            return False
        if self.banding.group.get(op) != self.banding.group[maker]:
            return True
        work = next(work for work in self.banded.works[op] if work is not None)
        made = set(self.view.makes[maker])
        needs = zip(self.view.reads[op], work.sliced.needs, strict=True)
        return any(need is None or not is_alike(self.banding, maker, op, need) for name, need in needs if name in made)

    def _add_up(self, op: int) -> None:
        """Adds the steps of an op that adds up what tiles make, each to the sum of those before."""
        name = next(name for name in self.view.makes[op] if name)
        works = [(tile, work) for tile, work in enumerate(self.banded.works[op]) if work is not None]
        turn, before = (self.stage[op], self.banding.group[op]), None
        for number, (tile, work) in enumerate(works):
            so_far, is_last = work.sliced.so_far, number == len(works) - 1
            reads = self._reads(op, work)
            result = Piece(name if is_last else f"{name}/{self.mark}_{tile}/sum", name, None)
            if so_far is SumSoFar.FIRST_ROW:
                # Puts the sum so far in front of the rows that are added up; until the last tile a sum is a row
                # itself.
                rows = present(reads[0], "the rows that are added up")
                slab = present(rows.slab, "the slab of rows")
                if before is not None:
                    joined = Piece(f"{result.name}/rows", rows.tensor, slab._replace(start=slab.start - 1))
                    self._put(JoinStep((before, rows), joined))
                    reads[0] = joined
                result = result if is_last else Piece(result.name, rows.tensor, Slab(slab.axis, 0, 1))
            elif so_far is not SumSoFar.ADDED and before is not None:
                place = present(so_far, "the input that takes a sum")
                reads = [*reads, None][: max(len(reads), place + 1)]
                reads[place] = before
            if so_far is not SumSoFar.ADDED or before is None:
                self._put(RunStep(work, tile, tuple(reads), (result,), turn))
            else:
                part = Piece(f"{name}/{self.mark}_{tile}/part", name, None)
                self._put(RunStep(work, tile, tuple(reads), (part,), turn))
                self._put(AddStep(before, part, result))
            before = result

    def _reads(self, op: int, work: TileWork) -> list[Piece | None]:
        pairs = zip(self.view.reads[op], work.sliced.needs, strict=True)
        return [self._piece(name, need, op) if name in self.view.tensors else None for name, need in pairs]

    def _run(self, op: int, tile: int, work: TileWork) -> None:
        reads = self._reads(op, work)
        raw = RAW if work.sliced.makes != work.asked else ""
        made = tuple(
            Piece(f"{name}/{self.mark}_{tile}{raw}", name, work.sliced.makes) if name else None
            for name in self.view.makes[op]
        )
        self._put(RunStep(work, tile, tuple(reads), made))
        for piece in made:
            if piece is None:
                continue
            exact = Piece(piece.name.removesuffix(RAW), piece.tensor, work.asked)
            if exact != piece:
                self._put(CutStep(piece, exact))
            self.bands.setdefault(piece.tensor, []).append(exact)

    def _make_whole(self, name: str) -> None:
        bands, whole = self.bands[name], Piece(name, name, None)
        if not self.may_fill or self.view.tensors[name].kept or len(bands) == 1:
            self._put(JoinStep(tuple(bands), whole))
            return
        before: Piece | None = None
        for number, band in enumerate(bands):
            is_last = number == len(bands) - 1
            result = whole if is_last else Piece(f"{band.name}/filled", name, None)
            self._put(FillStep(before, band, result, is_last))
            before = result

    def _piece(self, name: str, need: Slab | None, op: int) -> Piece:
        """The piece that an op reads; put together from bands, or cut, where there is none yet."""
        whole = Piece(name, name, None)
        if need is None or (need.extent == self.view.tensors[name].shape[need.axis] and not self._has_bands(name, op)):
            return whole
        if not self._has_bands(name, op):
            return self._cut(whole, need, op)
        bands, axis = self.bands[name], self.bands[name][0].slab
        assert axis is not None
        if need.axis == axis.axis:
            slabs = ((band, band.slab) for band in bands if band.slab is not None)
            inside = (band for band, slab in slabs if slab.start < need.stop and need.start < slab.stop)
            parts = tuple(self._cut(band, need, op) for band in inside)
        else:
            where = self._where(need, op)
            pieces = ((band, Piece(f"{band.name}/{where}", band.tensor, band.slab, need)) for band in bands)
            parts = tuple(self._cut_out(band, piece) for band, piece in pieces)
        if len(parts) == 1 and parts[0].across is None:
            return parts[0]
        joined = Piece(f"{name}/{self._where(need, op)}", name, need)
        if joined.name not in self.known:
            self._put(JoinStep(parts, joined))
        return joined

    def _has_bands(self, name: str, op: int) -> bool:
        """Whether an op reads bands of a tensor, rather than cutting it whole."""
        maker = self.view.tensors[name].producer
        if maker is None or maker not in self.banded.works or self.banding.axis[maker] == SUMMED:
            return False
        return name not in self.banded.whole or self.stage[op] == self.stage[maker]

    def _cut(self, source: Piece, need: Slab, op: int) -> Piece:
        held = source.slab
        if held is not None:
            need = Slab(need.axis, max(held.start, need.start), min(held.stop, need.stop))
        if held == need:
            return source
        return self._cut_out(source, Piece(f"{source.name}/{self._where(need, op)}", source.tensor, need))

    def _cut_out(self, source: Piece, result: Piece) -> Piece:
        """What is cut out of a piece, once for all who read it."""
        if result.name not in self.known:
            self._put(CutStep(source, result))
        return result

    def _where(self, need: Slab, op: int) -> str:
        """Part of a name; pieces are shared by readers of one stage only, so that none is kept for a later one."""
        return f"{self.mark}_axis_{need.axis}_{need.start}_{need.stop}/stage_{self.stage[op]}"

    def _put(self, step: Step) -> None:
        self.steps.append(step)
        self.known.update(piece.name for piece in results_of(step))
