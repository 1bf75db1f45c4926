"""What a tiled region would hold and cost, from the whole ops' figures: quick, to choose between many candidates."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from remat_cli.core.schedule.graph import element_bits
from remat_cli.core.values.profile import OpCost
from remat_cli.splitting.tiles.steps import (
    FillStep,
    Piece,
    RunStep,
    Step,
    WholeStep,
    piece_shape,
    reads_of,
    results_of,
)
from remat_cli.splitting.tiles.timeline import owner_of
from remat_cli.splitting.tiles.view import ModelView

# Measured by whole runs of tiled convolutional networks beside whole ones, two threads. They only rank candidates:
# what is chosen is measured.
COPY_NS_PER_BYTE = 0.05
COPY_NS = 4_000  # what a slice or a concatenation costs besides
VIEW_NS = 1_500  # a view, of which blocked tensors need some around every copy
RUN_NS = 2_000  # what an op costs besides its work
WEIGHT_NS_PER_BYTE = 0.045  # every tile reads its op's weights again, mostly from memory


@dataclass(frozen=True)
class Estimate:
    """Most bytes held at once by a region's own values and the entries it reads; time; the part of it that halos cost.

    Times are of the region's steps, in nanoseconds.
    """

    peak_bytes: int
    time_ns: int
    whole_time_ns: int

    @property
    def added_ns(self) -> int:
        """Time beyond that of the whole ops."""
        return self.time_ns - self.whole_time_ns


def estimate(
    view: ModelView,
    costs: Sequence[OpCost],
    steps: Sequence[Step],
    dying: frozenset[str],
    ops: Iterable[int],
    lasting: frozenset[str] | None = None,
) -> Estimate:
    """Judge the steps of a region in their order.

    `dying` are the entries that nothing reads after the region: each is held whole until its last read in it. Entries
    that live on are for the caller to count. `lasting` are the results held to the end, by default all that no step
    reads.
    """
    memory = _Memory(view, steps, dying, lasting)
    peak, time_ns = 0, 0
    for index, step in enumerate(steps):
        peak = max(peak, memory.held_during(index, workspace_of(step, view, costs)))
        time_ns += step_time_ns(step, view, costs)
    return Estimate(peak, time_ns, sum(costs[op].time_ns for op in ops))


def most_needed(view: ModelView, costs: Sequence[OpCost], steps: Sequence[Step], lasting: frozenset[str]) -> int:
    """Most bytes that a step of a whole run needs by itself: what it reads and makes, and results that last so far.

    All else that waits may be made again, so a solver may find a plan that holds little more.
    """
    memory, kept, most = _Memory(view, steps, frozenset(), lasting), 0, 0
    for index, step in enumerate(steps):
        workspace_bytes = workspace_of(step, view, costs)
        memory.held_during(index, workspace_bytes)
        used = {memory.storage[piece.name] for piece in (*reads_of(step), *results_of(step))}
        most = max(most, kept + workspace_bytes + sum(memory.size[name] for name in used))
        kept += sum(memory.size[memory.storage[p.name]] for p in results_of(step) if p.name in lasting)
    return most


def held_at_peak(
    view: ModelView, costs: Sequence[OpCost], steps: Sequence[Step], lasting: frozenset[str]
) -> tuple[int, Mapping[str, int]]:
    """Finds the step of a whole run that holds most, and the bytes of each storage then, by its owner's name."""
    return held_at_peaks(view, costs, steps, lasting, 1.0)[0]


def held_at_peaks(
    view: ModelView, costs: Sequence[OpCost], steps: Sequence[Step], lasting: frozenset[str], share: float
) -> list[tuple[int, Mapping[str, int]]]:
    """Finds the highest step of each run of steps that hold at least this share of the most; the highest first.

    What is held goes by the name of the last value that was written into it.
    """
    memory = _Memory(view, steps, frozenset(), lasting)
    held = [memory.held_during(index, workspace_of(step, view, costs)) for index, step in enumerate(steps)]
    least, tops, is_high = share * max(held), [], False
    for index, count in enumerate(held):
        if count >= least and not is_high:
            tops.append(index)
        elif count >= least and count > held[tops[-1]]:
            tops[-1] = index
        is_high = count >= least
    found = []
    memory, wanted = _Memory(view, steps, frozenset(), lasting), set(tops)
    for index, step in enumerate(steps):
        before = dict.fromkeys(memory.until) if index in wanted else {}
        memory.held_during(index, workspace_of(step, view, costs))
        if index in wanted:
            held_then = before | dict.fromkeys(memory.storage[piece.name] for piece in results_of(step))
            found.append((index, {memory.carried[name]: memory.size[name] for name in held_then}))
    return sorted(found, key=lambda each: held[each[0]], reverse=True)


def piece_bytes(view: ModelView, piece: Piece) -> int:
    """Size of a piece: its share of the whole tensor."""
    tensor = view.tensors[piece.tensor]
    size = tensor.size_bytes
    for slab in (piece.slab, piece.across):
        if slab is not None:
            size = size * slab.extent // max(1, tensor.shape[slab.axis])
    return size


class _Memory:
    """Bytes held step by step; a storage may carry several values (views, in-place ops) and goes by its owner's name.

    The storage of an entry that lives on is known, but has no size here.
    """

    def __init__(
        self, view: ModelView, steps: Sequence[Step], dying: frozenset[str], lasting: frozenset[str] | None
    ) -> None:
        self.view, self.steps, self.lasting = view, steps, lasting
        self.results = [results_of(step) for step in steps]
        reads = [reads_of(step) for step in steps]
        self.last_read = {piece.name: index for index, pieces in enumerate(reads) for piece in pieces}
        self.storage: dict[str, str] = {}
        self.carried: dict[str, str] = {}  # by storage the last value in it
        self.size: dict[str, int] = {}
        self.until: dict[str, int] = {}
        self.held = 0
        self.ends: dict[int, list[str]] = {}
        for name in dying:
            self._open(name, view.tensors[name].size_bytes, -1)
        # only what exists before is read whole
        made = {piece.name for pieces in self.results for piece in pieces}
        read = {piece.name for pieces in reads for piece in pieces if piece.slab is None}
        for name in read - made:
            owner = owner_of(view, name).name
            if owner not in self.size:
                self._open(owner, 0, len(steps))
            self.storage[name] = owner
            self._extend(owner, self.last_read[name])

    def held_during(self, index: int, workspace_bytes: int) -> int:
        """Bytes held while a step runs; what it reads last is freed after it."""
        step = self.steps[index]
        for result in self.results[index]:
            shared = self._shared(step, result, index)
            # what no step reads lasts to the end, or is gone at once
            if self.lasting is None:
                is_lasting = result.slab is None and result.name not in self.last_read
            else:
                is_lasting = result.name in self.lasting
            last = len(self.steps) if is_lasting else self.last_read.get(result.name, index)
            if shared is None:
                self._open(result.name, piece_bytes(self.view, result), last)
            else:
                self.storage[result.name], self.carried[shared] = shared, result.name
                self._extend(shared, last)
        held = self.held + workspace_bytes
        for name in self.ends.pop(index, ()):
            if self.until.get(name) == index:
                self.held -= self.size[name]
                del self.until[name]
        return held

    def _open(self, name: str, size_bytes: int, last: int) -> None:
        self.storage[name] = self.carried[name] = name
        self.size[name] = size_bytes
        self.held += size_bytes
        self._extend(name, last)

    def _extend(self, name: str, last: int) -> None:
        self.until[name] = max(last, self.until.get(name, -1))
        self.ends.setdefault(self.until[name], []).append(name)

    def _shared(self, step: Step, result: Piece, index: int) -> str | None:
        """The storage that a result shares with something the step reads; sums may, and are not counted on to."""
        if isinstance(step, FillStep) and step.before is not None:
            return self.storage[step.before.name]
        written_over: list[Piece] = []
        if isinstance(step, WholeStep):
            tensor = self.view.tensors[result.name]
            if tensor.kept:  # model outputs have their own
                return None
            if tensor.view_of is not None:
                return self.storage.get(self.view.graph.tensors[tensor.view_of].name)
            written_over = [piece for piece in step.reads if (piece.name, result.name) in self.view.in_place]
        elif isinstance(step, RunStep):
            facts = self.view.facts[step.work.op]
            if facts.view and result == step.makes[0] and step.reads[0] is not None:
                return self.storage[step.reads[0].name]
            for source, made in facts.in_place:
                piece = step.reads[source] if source < len(step.reads) else None
                if piece is not None and result == step.makes[made]:
                    written_over.append(piece)
        else:
            return None
        given_up = (piece for piece in written_over if self._is_given_up(step, piece, result, index))
        return next((self.storage[piece.name] for piece in given_up), None)

    def _is_given_up(self, step: RunStep | WholeStep, piece: Piece, result: Piece, index: int) -> bool:
        """Whether a step may write over what it reads: it reads it once and last, in the form of the result."""
        storage, tensors = self.storage[piece.name], self.view.tensors
        times_read = sum(self.storage[read.name] == storage for read in reads_of(step))
        bits = {element_bits(tensors[one.tensor].dtype) for one in (piece, result)}
        is_alike = piece_shape(self.view, piece) == piece_shape(self.view, result) and len(bits) == 1
        return self.until[storage] == index and times_read == 1 and is_alike


def _share(step: RunStep, view: ModelView) -> float:
    """How much of its op a step does."""
    slab = step.work.sliced.makes
    return slab.extent / max(1, view.extent(step.work.op, slab.axis))


def workspace_of(step: Step, view: ModelView, costs: Sequence[OpCost]) -> int:
    """Bytes that a step takes for itself: its share of what its op takes."""
    if isinstance(step, WholeStep):
        return costs[step.op].workspace_bytes
    if not isinstance(step, RunStep) or not costs[step.work.op].workspace_bytes:
        return 0
    is_by_items = step.work.sliced.makes.axis == 0 and view.rules[step.work.op].takes_for_one_item
    return int(costs[step.work.op].workspace_bytes * (1 if is_by_items else _share(step, view)))


def step_time_ns(step: Step, view: ModelView, costs: Sequence[OpCost]) -> int:
    """Estimates how long one step takes."""
    if isinstance(step, WholeStep):
        return costs[step.op].time_ns
    if isinstance(step, RunStep):
        again = view.weight_bytes[step.work.op] * WEIGHT_NS_PER_BYTE if step.tile else 0.0
        return int(costs[step.work.op].time_ns * _share(step, view) + again) + RUN_NS
    result = results_of(step)[0]
    if isinstance(step, FillStep):
        copied = piece_bytes(view, step.part if step.before else result)
        return int(copied * COPY_NS_PER_BYTE) + COPY_NS + VIEW_NS
    views = len(reads_of(step)) + 1 if result.tensor in view.blocked else 0
    return int(piece_bytes(view, result) * COPY_NS_PER_BYTE) + COPY_NS + views * VIEW_NS
