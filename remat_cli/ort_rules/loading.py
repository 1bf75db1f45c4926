"""What loading a file takes of a process's memory, and what stays, above a session without weights.

Measured with glibc 2.36, CPU provider, x86-64: fresh processes that load files which loading does not change any more,
of 16 models with 16 to 316 MiB of weights and 63 to 1521 ops; and what such a process asks of malloc. The forecast
holds to 3 % and 2 MiB, with data files mostly to 1 MiB. So it does for 16 files that remat wrote of other models, with
9 to 80 MiB of weights and up to 2985 ops.

A weight inside the file goes this way; only its size matters.

1. The file is read through a buffer, and each weight into a block of its own. When all are read, each is
   copied into an aligned block and the first one freed, one weight after the other: for a moment the largest one is
   there twice. Blocks below 212 KiB (malloc's threshold in a process that has imported NumPy) lie in the heap, which
   keeps what is freed. An aligned block needs a little more than the weight, so it finds no place where one of the same
   size was, but one where a larger one was.
2. Weights are packed in the order of the ops, and the original of each is freed once the copy is there. Later copies
   find a place in what the heap keeps or not, which hangs on a few bytes and differs between processes (one file of
   79 MiB: 85, 100 or 132 MiB). So the forecast is the most, and says how much may be reused.
   A block above the threshold is mapped by itself and goes back: the threshold is 4 MiB once the buffer is freed, then
   the size of the largest such block that was freed, up to 32 MiB.

A weight in a data file is mapped, and nothing is read before it is used. Packing reads all its pages, and they leave
with the original: one such weight at a time is there beside its copy. A weight that ops read as it is stays mapped: its
pages count, clean, once a run has read them (measured: all of them; a gather reads only the rows it takes).

What a copy of another weight takes of a weight that stays (scales of blocks of few bits) is read while loading too.

Where a branch reads weights from outside, originals are freed only when all are packed: the peak has every original and
every copy. Those in a data file all leave then; those in the heap stay.

A weight that belongs to a branch stays there as it was read, packed or not, and inside the file once more than that:
the branch is made of a message that holds it, and that stays too (if the branch is right in the main graph; deeper ones
have more). A third time it is there while the file is read. Of what is freed of that the heap keeps blocks below its
threshold, and packed copies go there, but for one or two. In a data file it is mapped, and stays mapped.

Where the copies are in the data file too, a session makes each all the same, compares it, drops it, and reads the saved
one when it first runs, or (`reads_saved`) right then. So does every op beyond the first that reads a weight in the same
way. What the heap keeps of dropped copies follows from its rules (`heap`): with primers in the file, the largest
that it served; without them up to seven more. Copies larger than it serves all go back.

The rest, a session's own structures, is fitted: so much for it, for an op, for a weight, and more for each weight that
a branch reads from outside (0.9 MiB off at most), and for an op in a branch (two models of 430 and 816 ops, as they are
and in a branch: 2.8 and 3.5 KiB), once for each branch or body around it: every level keeps a copy of what lies deeper
(43 files with bodies up to five levels deep; 387 ops there took 7.6 MiB, not 4). Each thread beyond two adds about
0.05 MiB. Copies that lie in the arena (`arena_copies`) come with what it holds beyond them. Not counted is what
ConvTranspose, and quantised convolutions whose copies lie outside the arena, take beyond the size of their weights:
about a twentieth, and the largest of them once.
"""

import bisect
from collections import Counter
from collections.abc import Sequence

import msgspec

from remat_cli.core.schedule.graph import Graph
from remat_cli.core.values.pages import whole_pages
from remat_cli.ort_rules.heaps.heap import FIRST_THRESHOLD_BYTES, LARGEST_THRESHOLD_BYTES, SLACK_BYTES, Heap


class LoadRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a session takes beside weights, and what it does with saved copies.

    A file is read through a buffer of `stream_bytes`. `session_bytes` are a session's own, with `op_bytes` for each op,
    `branch_op_bytes` more for each branch around it, `weight_bytes` for each weight, `captured_bytes` more for one that
    a branch reads from outside. A weight inside the file that a branch has itself is there `branch_copies` times more.
    Kernels read in `run_bytes` of code and tables when they run first. A gather touches
    `gathered_factor` times the rows that it reads of a mapped weight. Primers leave `primed_bytes`; of the copies that
    are dropped, at most `stuck_copies` stay for all that. A session without an arena holds `no_arena_bytes` beyond live
    tensors. `reads_saved`: packed copies in a data file are read while it is loaded, not in the first run.
    """

    stream_bytes: int
    session_bytes: int
    op_bytes: int
    branch_op_bytes: int
    weight_bytes: int
    captured_bytes: int
    branch_copies: int
    run_bytes: int
    gathered_factor: int
    primed_bytes: int
    stuck_copies: int
    no_arena_bytes: int
    reads_saved: bool


class LoadedWeight(msgspec.Struct, frozen=True):
    """A weight of a file.

    `packed_bytes` are those of all copies that stay of it (0: no op packs it), `copies` how many, `packings` how often
    ops make one. `is_read_plainly`: some op reads it as it is too, so that it stays beside its copies. `is_mapped`: it
    lies in a data file, else in the model file. `is_captured`: a branch reads it from outside. `is_of_branch`: it
    belongs to a branch. `is_saved`: its copies are in the data file too, so that a session drops those that it makes.
    `is_read_early`: no op packs it, but loading reads it all the same.
    """

    size_bytes: int
    packed_bytes: int = 0
    is_read_plainly: bool = False
    is_mapped: bool = False
    is_captured: bool = False
    is_of_branch: bool = False
    is_saved: bool = False
    copies: int = 1
    packings: int = 1
    is_read_early: bool = False

    @property
    def is_replaced(self) -> bool:
        """Whether only copies of it stay."""
        return self.packed_bytes > 0 and not (self.is_read_plainly or self.is_of_branch)

    @property
    def own_bytes(self) -> int:
        """What stays of it that is no page of a file."""
        copies_bytes = 0 if self.is_saved else self.packed_bytes
        return copies_bytes + (0 if self.is_mapped or self.is_replaced else self.size_bytes)

    @property
    def copy_bytes(self) -> int:
        """Bytes of one of the copies."""
        return self.packed_bytes // self.copies

    @property
    def inside_bytes(self) -> int:
        """Its bytes in the model file."""
        return 0 if self.is_mapped else self.size_bytes

    @property
    def mapped_bytes(self) -> int:
        """Its pages in a data file."""
        return whole_pages(self.size_bytes) if self.is_mapped else 0


class LoadForecast(msgspec.Struct, frozen=True):
    """What a process holds for a session, above one without weights: at most while it loads, and afterwards.

    `loaded_bytes` is what stays when runs have read all weights. `mapped_bytes` of these are pages of the data file:
    they come when a run first reads them, but for `read_bytes` of them, which loading reads; processes share them, and
    the system can drop them. By `reused_bytes` the two other figures may be less in one process or another; 0 unless
    weights inside the file are packed.
    """

    load_peak_bytes: int
    loaded_bytes: int
    mapped_bytes: int
    reused_bytes: int
    read_bytes: int = 0


class LoadedFile(msgspec.Struct, frozen=True):
    """What of a file matters beside its weights: how many ops it has, and its primers.

    `nested_ops`: those in a branch, each as often as there are branches or bodies around it.

    `arena_extra_bytes` is what the arena holds, once it is loaded, beyond copies of weights in it. `stuck_copies` of
    those that are dropped may stay where they lay, in spite of primers. `threshold_bytes`: smaller blocks lie in the
    heap, since the process has given back one of that size, as those do that have made their inputs.

    `packing_order` are numbers of weights in the order in which ops pack them: an original stays until the last of them
    has. Where it is empty, all ops that read a weight come one after the other.
    """

    ops: int
    nested_ops: int = 0
    is_primed: bool = False
    packing_order: tuple[int, ...] = ()
    arena_extra_bytes: int = 0
    stuck_copies: int = 0
    threshold_bytes: int = FIRST_THRESHOLD_BYTES

    def order(self, weights: Sequence[LoadedWeight]) -> list[int]:
        """The order in which weights are packed."""
        places = self.packing_order or [
            number for number, weight in enumerate(weights) for _ in range(max(weight.packings, weight.copies))
        ]
        return [number for number in places if weights[number].packed_bytes]


def packing_order(graph: Graph) -> tuple[int, ...]:
    """Places of weights, among those that ops read, in the order in which ops read them."""
    numbers = [weight for op in graph.ops for weight in op.weights]
    places = {number: place for place, number in enumerate(dict.fromkeys(numbers))}
    return tuple(places[number] for number in numbers)


def load_forecast(weights: Sequence[LoadedWeight], file: LoadedFile, rules: LoadRules) -> LoadForecast:
    """Forecast for a file that loading does not change.

    `weights` are in the order in which ops read them first. Where they lie inside the file, this holds for a process's
    first file, given by its path: after larger files it can be half as much again. With data files it does not matter.
    """
    inside = [weight.inside_bytes for weight in weights]
    parsed_bytes = sum(inside) + min(rules.stream_bytes, sum(inside))
    branches = _of_branches(weights, rules)
    holes_bytes = _holes_bytes(
        [weight.inside_bytes for weight in weights if not weight.is_of_branch], file.threshold_bytes
    )
    captured = sum(weight.is_captured for weight in weights)
    weights_bytes = rules.weight_bytes * len(weights) + rules.captured_bytes * captured
    ops_bytes = rules.op_bytes * file.ops + rules.branch_op_bytes * file.nested_ops
    structure_bytes = rules.session_bytes + ops_bytes + weights_bytes + rules.primed_bytes * file.is_primed
    early_bytes = sum(weight.mapped_bytes for weight in weights if weight.is_read_early)
    read_bytes = (
        structure_bytes + file.arena_extra_bytes + sum(inside) + branches.kept_bytes + holes_bytes + early_bytes
    )
    copied_bytes = read_bytes + max(*inside, branches.passing_bytes, 0)
    packing = _pack(weights, file, Heap(places=file.stuck_copies) if file.is_primed else Heap(), rules)
    copies_bytes = sum(weight.packed_bytes for weight in weights if not weight.is_mapped)
    unread = (weight for weight in weights if not (weight.packed_bytes or weight.is_read_early))
    unread_bytes = sum(weight.mapped_bytes for weight in unread)
    saved_bytes = sum(weight.packed_bytes for weight in weights if weight.is_saved)
    kept_bytes = sum(weight.mapped_bytes for weight in weights if not weight.is_replaced)
    return LoadForecast(
        load_peak_bytes=max(parsed_bytes, copied_bytes, read_bytes + packing.most_bytes - branches.filled_bytes),
        loaded_bytes=read_bytes
        + packing.held_bytes
        - branches.filled_bytes
        + unread_bytes
        + (0 if rules.reads_saved else saved_bytes),
        mapped_bytes=kept_bytes + saved_bytes,
        reused_bytes=min(copies_bytes, holes_bytes + packing.holes_bytes),
        read_bytes=kept_bytes - unread_bytes + (saved_bytes if rules.reads_saved else 0),
    )


class _OfBranches(msgspec.Struct, frozen=True):
    """What loading takes for weights that branches have themselves, beyond once for each.

    `kept_bytes` stay, `passing_bytes` are there for a moment. Packed copies fill `filled_bytes` of the former.
    """

    kept_bytes: int
    passing_bytes: int
    filled_bytes: int


def _of_branches(weights: Sequence[LoadedWeight], rules: LoadRules) -> _OfBranches:
    own = [weight for weight in weights if weight.is_of_branch and not weight.is_mapped]
    once_bytes = sum(weight.size_bytes for weight in own)
    freed_bytes = sum(weight.size_bytes for weight in own if weight.size_bytes <= rules.stream_bytes)
    small = [weight for weight in own if 0 < weight.copy_bytes <= rules.stream_bytes]
    missed_bytes = 2 * max((weight.copy_bytes for weight in small), default=0)
    filled_bytes = min(freed_bytes, sum(weight.packed_bytes for weight in small)) - missed_bytes
    return _OfBranches(
        kept_bytes=rules.branch_copies * once_bytes + freed_bytes,
        passing_bytes=once_bytes - freed_bytes,
        filled_bytes=max(0, filled_bytes),
    )


def _holes_bytes(inside: Sequence[int], threshold_bytes: int) -> int:
    """What the heap keeps of the blocks that weights were read into: all that no aligned block fits in."""
    holes: list[int] = []
    for size in inside:
        place = bisect.bisect_left(holes, size + SLACK_BYTES)
        if place < len(holes):
            bisect.insort(holes, holes.pop(place) - size)
        if 0 < size < threshold_bytes:
            bisect.insort(holes, size)
    return sum(holes)


class _Packing(msgspec.Struct):
    """What packing adds to the weights of the file, at the end and at most; what it frees inside the heap meanwhile."""

    held_bytes: int = 0
    most_bytes: int = 0
    holes_bytes: int = 0


def _pack(weights: Sequence[LoadedWeight], file: LoadedFile, heap: Heap, rules: LoadRules) -> _Packing:
    """Pack weight after weight. What branches read from outside is freed only at the end."""
    packing, later_bytes, order = _Packing(), 0, file.order(weights)
    freed, threshold = list[int](), max(rules.stream_bytes, file.threshold_bytes)
    for weight in weights:
        # What goes back to the system when the original is freed.
        size = weight.inside_bytes
        freed.append(weight.mapped_bytes + (size if size > threshold else 0))
        if threshold < size <= LARGEST_THRESHOLD_BYTES:
            threshold = size
    left = Counter(order)
    made = Counter[int]()
    for number in order:
        weight = weights[number]
        if not made[number]:
            stays = rules.reads_saved or not weight.is_saved
            packing.held_bytes += weight.mapped_bytes + (weight.packed_bytes if stays else 0)
            packing.most_bytes = max(packing.most_bytes, packing.held_bytes + heap.held_bytes)
        made[number] += 1
        if weight.is_saved or made[number] > weight.copies:
            packing.most_bytes = max(packing.most_bytes, packing.held_bytes + heap.during(weight.copy_bytes))
            heap = heap.after(weight.copy_bytes)
        if made[number] < left[number] or not weight.is_replaced:
            continue
        if weight.is_captured:
            later_bytes += freed[number]
        else:
            packing.held_bytes -= freed[number]
            packing.holes_bytes += weight.inside_bytes if not freed[number] else 0
    packing.held_bytes += heap.held_bytes - later_bytes
    return packing
