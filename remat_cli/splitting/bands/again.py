"""What to make again for late readers, so that a model in bands holds less at its peak.

Rematerialisation of whole tensors, before they are cut: a tensor that nothing reads around the peak is dropped, and
its maker, with what that needs, runs once more for those who read it later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from remat_cli.splitting.bands.bands import has_small_input, reads_rows
from remat_cli.splitting.recast.recast import Copied, Recast, with_copies
from remat_cli.splitting.tiles.estimate import held_at_peaks
from remat_cli.splitting.tiles.steps import RunStep, Step, WholeStep, reads_of, results_of
from remat_cli.splitting.tiles.timeline import owner_of
from remat_cli.splitting.tiles.view import ModelView, is_behind

MOST_OPS = 8  # that one tensor is made again from
WAITED_SHARE = 0.5  # of a tensor that is made again for who waits: it is made from what is not larger
SMALL_SHARES = (0.5, 0.1)  # of what is dropped: so much is rather held for it than made again in turn
LEAST_GAIN = 0.25  # of what is dropped, that must not be held instead
MOST_CHOICES = 2
NEAR_SHARE = 0.95  # of the peak, from which on a step is another peak
MOST_SITES = 24  # peaks that hold other tensors
LEAST_NAMED = 0.05  # of what is held: so large is a tensor that tells peaks apart


def small_sources_again(cast: Recast) -> Recast:
    """Repeats convolutions of small inputs for readers by rows, where readers before them need the whole result.

    Such are the statistics of a normalisation over whole lines: they read channels, and then nothing holds these.
    """
    view = cast.view
    place = {op: at for at, op in enumerate(cast.order)}
    copies = []
    for op in cast.order:
        if not has_small_input(view, op) or not view.graph.ops[op].repeatable:
            continue
        chain, (name, *_) = [op], view.makes[op]
        while len(view.readers[name]) == 1 and view.graph.ops[view.readers[name][0]].op_type == "Reshape":
            chain.append(view.readers[name][0])
            name = view.makes[chain[-1]][0]
        late = frozenset(reader for reader in view.readers[name] if reads_rows(view, reader, name))
        early = [place[reader] for reader in view.readers[name] if reader not in late]
        if late and early and min(early) < min(place[reader] for reader in late) and not view.tensors[name].kept:
            copies.append(Copied(tuple(chain), late))
    return with_copies(cast, copies)


def waited_for_again(cast: Recast, least_bytes: int) -> Recast:
    """Makes a tensor of so many bytes again for readers who wait for what others find out of all of it: its range.

    So it need not be held for them: what it is made from is smaller, some ops before. A scale is held, not found again.
    """
    view = cast.view
    place = {op: at for at, op in enumerate(cast.order)}
    copies = []
    for op in cast.order:
        for name in filter(None, view.makes[op]):
            readers, is_small = view.readers[name], view.tensors[name].size_bytes < least_bytes
            if is_small or view.tensors[name].kept:
                continue
            late = frozenset(reader for reader in readers if len(readers) > 1 and is_behind(view, reader, readers))
            chain = _makers_of(view, name) if late and late != set(readers) else ()
            if chain:
                copies.append(Copied(tuple(sorted(chain, key=place.__getitem__)), late))
    return with_copies(cast, copies)


def _makers_of(view: ModelView, name: str) -> tuple[int, ...]:
    """The ops that make a tensor from smaller ones; none where they are too many, or may not run again."""
    least_bytes, waiting, found = view.tensors[name].size_bytes * WAITED_SHARE, [name], dict[int, None]()
    while waiting:
        maker = view.tensors[waiting.pop()].producer
        if maker is None or maker in found:
            continue
        if len(found) == MOST_OPS or not view.graph.ops[maker].repeatable:
            return ()
        found[maker] = None
        reads = (each for each in dict.fromkeys(view.reads[maker]) if each in view.tensors)
        waiting += [each for each in reads if view.tensors[each].size_bytes > least_bytes]
    return tuple(found)


def copies_at_peak(cast: Recast, steps: Sequence[Step], lasting: frozenset[str]) -> tuple[tuple[Copied, ...], ...]:
    """Proposes ops to run again: in each choice those of one peak, or of all that are about as high; maybe none.

    Models of many like layers have a peak in each of them. Of each peak come first those of least time per byte.
    `lasting` are the tensors held to the end.
    """
    peaks = _Peaks(cast, tuple(steps), lasting)
    found = [peaks.choices(site) for site in peaks.sites]
    best = [[choices[rank] for choices in found if rank < len(choices)] for rank in range(MOST_CHOICES)]
    together: list[tuple[Copied, ...]] = []
    for choices in best:  # those of the first peaks, without others for the same readers
        apart: list[Copied] = []
        for choice in choices:
            if all(choice.copied.readers.isdisjoint(other.readers) for other in apart):
                apart.append(choice.copied)
        together.append(tuple(apart))
    together += [(choice.copied,) for choice in (found[0] if found else ())]
    return tuple(dict.fromkeys(each for each in together if each))


@dataclass(frozen=True)
class _Choice:
    copied: Copied
    gain_bytes: int
    time_ns: int


@dataclass(frozen=True)
class _Read:
    step: int
    op: int
    tensor: str


@dataclass(frozen=True)
class _Dropped:
    """A storage that is not held for its late readers, the first of which begins at step `first`."""

    owner: str
    first: int
    late: frozenset[int]
    small_bytes: float


@dataclass(frozen=True)
class _Site:
    """A step at which much is held, and how many bytes, by the tensor that owns the storage."""

    step: int
    held: Mapping[str, int]


@dataclass(frozen=True)
class _Peaks:
    """The steps at which most is held, and who reads what before and after them."""

    cast: Recast
    steps: tuple[Step, ...]
    lasting: frozenset[str]

    @cached_property
    def sites(self) -> list[_Site]:
        """The highest of all steps at which the same tensors are held, the highest of these first."""
        tensor = {piece.name: piece.tensor for step in self.steps for piece in results_of(step)}
        found: dict[frozenset[str], _Site] = {}
        for step, held in held_at_peaks(self.cast.view, self.cast.costs, self.steps, self.lasting, NEAR_SHARE):
            sums: dict[str, int] = defaultdict(int)
            for name, size in held.items():
                sums[self._owner(tensor.get(name, name))] += size
            most = sum(sums.values())
            found.setdefault(frozenset(name for name in sums if sums[name] > LEAST_NAMED * most), _Site(step, sums))
        return list(found.values())[:MOST_SITES]

    def choices(self, site: _Site) -> list[_Choice]:
        """The best ways to hold less at one step, those of least time per byte first."""
        found = (self._choice(site, name, share) for name in site.held for share in SMALL_SHARES)
        choices = list({choice.copied: choice for choice in found if choice is not None}.values())
        return sorted(choices, key=lambda choice: choice.time_ns / choice.gain_bytes)[:MOST_CHOICES]

    def _owner(self, name: str) -> str:
        return owner_of(self.cast.view, name).name if name in self.cast.view.tensors else name

    @cached_property
    def _reads(self) -> dict[str, list[_Read]]:
        """By owner the steps that compute something from its storage: those that only view it do not."""
        found: dict[str, list[_Read]] = defaultdict(list)
        for index, step in enumerate(self.steps):
            if not isinstance(step, RunStep | WholeStep):
                continue
            op = step.op if isinstance(step, WholeStep) else step.work.op
            made = {self._owner(name) for name in self.cast.view.makes[op] if name}
            for piece in reads_of(step):
                owner = self._owner(piece.tensor)
                if owner not in made:
                    found[owner].append(_Read(index, op, piece.tensor))
        return found

    def _choice(self, site: _Site, name: str, small_share: float) -> _Choice | None:
        """Finds ops that make a tensor again for who reads it after the peak; None where that gains nothing."""
        index, reads, held = site.step, self._reads[name], site.held[name]
        begun = {read.op for read in reads if read.step <= index}
        late = {read.op for read in reads if read.step > index} - begun
        if not late or name in self.lasting:
            return None
        first = min(read.step for read in reads if read.op in late)
        dropped = _Dropped(name, first, frozenset(late), small_share * held)
        ops: list[int] = []
        going_on = sum(r.op in begun for r in reads if r.step > index) / max(1, sum(r.op in begun for r in reads))
        wanted = sorted({read.tensor for read in reads if read.op in late})
        longer = sum(self._add(tensor, dropped, ops) for tensor in wanted)
        gain = int(held * (1 - going_on)) - longer
        if not ops or len(ops) > MOST_OPS or gain < max(1, LEAST_GAIN * held):
            return None
        place = {op: at for at, op in enumerate(self.cast.order)}
        # copies stand before the first late reader: all that they read must exist there
        view, before = self.cast.view, min(place[op] for op in late)
        sources = {view.tensors[name].producer for op in ops for name in view.reads[op] if name in view.tensors}
        if any(place[maker] >= before for maker in sources - set(ops) if maker is not None):
            return None
        time_ns = sum(self.cast.costs[op].time_ns for op in ops)
        return _Choice(Copied(tuple(sorted(ops, key=place.__getitem__)), dropped.late), gain, time_ns)

    def _add(self, name: str, dropped: _Dropped, ops: list[int]) -> int:
        """Add the maker of a tensor, and of what it reads if that is large and gone by then; bytes held longer now."""
        view = self.cast.view
        maker = view.tensors[name].producer
        if maker is None or len(ops) > MOST_OPS or not view.graph.ops[maker].repeatable:
            return view.tensors[name].size_bytes
        if maker in ops:
            return 0
        ops.append(maker)
        longer = 0
        for source in dict.fromkeys(view.reads[maker]):
            tensor = view.tensors.get(source)
            if tensor is None or tensor.producer is None:
                continue
            # Whether it is held when the late readers begin, for another reason than these readers themselves.
            owner = self._owner(source)
            without = dropped.late if owner == dropped.owner else frozenset()
            later = (read for read in self._reads[owner] if read.step >= dropped.first and read.op not in without)
            if owner in self.lasting or any(True for _ in later):
                continue
            is_small = tensor.size_bytes < dropped.small_bytes and owner != dropped.owner
            longer += tensor.size_bytes if is_small else self._add(source, dropped, ops)
        return longer
