"""What kernels take of the process's heap for themselves, beside tensors and workspace, which come from the arena.

Measured on the CPU provider of 1.32.0 with a library that notes every request of malloc, at two to ten sizes each and
on 1, 2 and 4 threads, as `tests/runtime/test_kernel_heap.py` does; and the same at one size on 1.20.1, 1.24.4 and
1.28.0, but for GridSample, which takes nothing on the first two, and Det and DFT, which were not tried. By kernel:

- ScatterElements: a place of 8 bytes for each index, on any axis and with any reduction. ScatterND, GatherND: one for
  each row of indices.
- TopK: 8 bytes for each of the k found, or of the n looked through where log k is no less than 0.725 log n; so much for
  each thread, of which no more work than there are rows before the axis.
- Unique: 8 bytes for each element, 24 for each distinct one, and a tree of small pieces.
- NonZero: what its result holds.
- GridSample (bilinear, 4D, padded with zeros, corners not aligned): 56 bytes for each place of a result's plane.
- TreeEnsembleRegressor and TreeEnsembleClassifier, where there are more trees than threads, more than one of these,
  and more than 50 rows: a score of 8 bytes for each row and thread; 56 bytes where a row has several, and more beyond
  six.
- NonMaxSuppression: 16 bytes for each box, twice, and three numbers for each that it selects, in a list that doubles.
- MatMul and FusedMatMul of many matrices by many: three places of 8 bytes for each pair, and 64 bytes where they are
  float. Det: a matrix twice, and some of it again. DFT: a turn for each of a signal's places, or of the next power of
  two but one. Resize (cubic): a table of all sums along rows, in small pieces.

Of others that were looked at (Compress, CumSum, OneHot, ArgMax, Einsum, GatherElements, Gather, Slice, Pad, Tile,
Concat, Hardmax, reductions, normalisations, Dropout, Trilu, MaxPool, MaxUnpool, RoiAlign, ReverseSequence, Multinomial,
STFT, other kinds of Resize and GridSample) none takes as much as 0.2 MiB.

How much stays of it is glibc's affair: a block above 32 MiB is mapped and goes back, and so does one that is larger
than all that were given back before it. Others come from the heap, as that one does the next time, and stay there. The
next run may find that place, or another chunk has been cut from it, and takes a second one: measured were both for one
file. So what is told of later runs is the most, and so is what is told of a first run with several such ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from remat_cli.core.schedule.graph import TensorType, size_bytes
from remat_cli.ort_rules.heaps.heap import LARGEST_THRESHOLD_BYTES

HeapPart = Literal["block", "pieces"]
"""One block, or as many bytes in blocks so small that any free place will do for them."""

LEAST_BYTES: Final = 2**16
"""Smaller parts are not told."""
PLACE_BYTES: Final = 8  # an index, an address or a length
_ML: Final = "ai.onnx.ml"
_MS: Final = "com.microsoft"


class HeapUse(msgspec.Struct, frozen=True):
    """Bytes that a kernel writes in the heap while it runs.

    `is_large`: it is larger than all blocks that a process has given back before it runs the model.
    """

    bytes: int
    part: HeapPart = "block"
    is_large: bool = False

    @property
    def stays(self) -> bool:
        """Whether its place may stay resident when it is given back."""
        return self.part == "pieces" or self.bytes <= LARGEST_THRESHOLD_BYTES


class KernelCall(msgspec.Struct, frozen=True):
    """An op as its kernel sees it: types of what it reads and makes by position, attributes, and threads there are."""

    reads: tuple[TensorType | None, ...]
    makes: tuple[TensorType | None, ...]
    attributes: Mapping[str, Any]
    threads: int

    def read(self, at: int) -> TensorType:
        """What it reads there; nothing where that is left out."""
        found = self.reads[at] if at < len(self.reads) else None
        return found or _NOTHING

    @property
    def made(self) -> TensorType:
        """The first of its results that there is."""
        return next((each for each in self.makes if each is not None), _NOTHING)


_NOTHING: Final = TensorType("float", (0,))


def heap_uses(op: tuple[str, str], call: KernelCall) -> tuple[HeapUse, ...]:
    """What the kernel of an op, by domain and type, takes of the heap; nothing where no rule says so."""
    rule = KERNELS.get(op)
    return () if rule is None else tuple(use for use in rule(call) if use.bytes >= LEAST_BYTES)


def _blocks(*sizes: int) -> list[HeapUse]:
    return [HeapUse(size) for size in sizes]


def _count(kind: TensorType) -> int:
    return math.prod(kind.shape)


def _of_indices(call: KernelCall) -> Iterable[HeapUse]:
    return _blocks(PLACE_BYTES * _count(call.read(1)))


def _of_index_rows(call: KernelCall) -> Iterable[HeapUse]:
    return _blocks(PLACE_BYTES * math.prod(call.read(1).shape[:-1]))


SELECTION_SHARE: Final = 0.725
FEW_FOUND: Final = 4


def _of_top(call: KernelCall) -> Iterable[HeapUse]:
    """Of TopK, which keeps what it has found so far or, where that is much, sorts all of a row in part."""
    shape = call.read(0).shape
    axis = call.attributes.get("axis", -1) % max(1, len(shape))
    if not _count(call.made):
        return []
    length, found = shape[axis], call.made.shape[axis]
    is_kept = found < FEW_FOUND or math.log(found) < SELECTION_SHARE * math.log(length)
    each_bytes = PLACE_BYTES * (found if is_kept else length) if found > 1 else 0
    return _blocks(*[each_bytes] * min(call.threads, math.prod(shape[:axis])))


TREE_BYTES, SLICE_TREE_BYTES = 96, 112
"""Of a distinct element in the tree, with the list of its places; of a slice, beside its elements."""
REPEATED_BYTES: Final = 14  # of a place in such a list, whose length doubles; about
ENTRY_BYTES: Final = 24


def _of_unique(call: KernelCall) -> Iterable[HeapUse]:
    """Of Unique: a place for each element, and lists of places, reserved for half as many distinct ones at first."""
    given, axis = call.read(0), call.attributes.get("axis")
    elements, entries, each_bytes = _count(given), _count(given), TREE_BYTES
    if axis is not None and elements:
        entries = given.shape[axis]
        each_bytes = SLICE_TREE_BYTES + size_bytes(given) // entries
    distinct = call.made.shape[0 if axis is None else axis]
    lists_bytes = ENTRY_BYTES * distinct
    if 2 * distinct > elements:  # when half was full, the list was there twice
        lists_bytes = max(lists_bytes, ENTRY_BYTES * elements - each_bytes * (distinct - elements // 2))
    tree_bytes = each_bytes * distinct + REPEATED_BYTES * (entries - distinct)
    return [*_blocks(PLACE_BYTES * elements, lists_bytes), HeapUse(tree_bytes, "pieces")]


def _of_result(call: KernelCall) -> Iterable[HeapUse]:
    return _blocks(size_bytes(call.made))


SAMPLE_BYTES: Final = 56
PLANE_AXES: Final = 4


def _of_grid(call: KernelCall) -> Iterable[HeapUse]:
    """Of GridSample, which plans its reads for all channels where it can."""
    mode, padding = call.attributes.get("mode", "linear"), call.attributes.get("padding_mode", "zeros")
    is_planned = mode in {"linear", "bilinear"} and padding == "zeros" and not call.attributes.get("align_corners", 0)
    if not is_planned or len(call.made.shape) != PLANE_AXES:
        return []
    return _blocks(SAMPLE_BYTES * math.prod(call.made.shape[-2:]))


SCORE_BYTES, SCORES_BYTES, INLINE_SCORES = 8, 56, 6
FEW_ROWS: Final = 50


def _of_trees(call: KernelCall) -> Iterable[HeapUse]:
    """Of a forest whose trees are shared out among threads, each with scores of its own for all rows."""
    trees = len(set(call.attributes.get("nodes_treeids", ())))
    rows, scores = (*call.read(0).shape, 1)[0], call.attributes.get("n_targets", 1)
    if labels := call.attributes.get("classlabels_int64s") or call.attributes.get("classlabels_strings"):
        scores = len(labels)
    if call.threads < 2 or trees <= call.threads or rows <= FEW_ROWS:
        return []
    count = rows * call.threads
    if scores == 1:
        return _blocks(SCORE_BYTES * count)
    beyond = 0 if scores <= INLINE_SCORES else SCORE_BYTES * max(2 * INLINE_SCORES, scores) + 16
    return [*_blocks(SCORES_BYTES * count), HeapUse(beyond * count, "pieces")]


BOX_BYTES, SELECTED_BYTES = 16, 24


def _of_boxes(call: KernelCall) -> Iterable[HeapUse]:
    boxes, selected = (*call.read(0).shape, 0, 0)[1], (*call.made.shape, 0)[0]
    listed = 2 ** math.ceil(math.log2(selected)) if selected else 0
    return _blocks(BOX_BYTES * boxes, BOX_BYTES * boxes, SELECTED_BYTES * listed, SELECTED_BYTES * listed // 2)


PRODUCT_BYTES: Final = 64
MATRIX_AXES: Final = 2


def _of_products(call: KernelCall) -> Iterable[HeapUse]:
    """Of products of many matrices, unless they are by one matrix, which makes them one product."""
    left, right = call.read(0).shape[:-MATRIX_AXES], call.read(1).shape[:-MATRIX_AXES]
    if not right:
        return []
    longest = max(len(left), len(right))
    pairs = zip((1,) * (longest - len(left)) + left, (1,) * (longest - len(right)) + right, strict=True)
    count = math.prod(max(pair) for pair in pairs)
    own_bytes = PRODUCT_BYTES if call.made.dtype == "float" else 0
    return _blocks(*[PLACE_BYTES * count] * 3, own_bytes * count)


def _of_determinant(call: KernelCall) -> Iterable[HeapUse]:
    kind = call.read(0)
    matrix_bytes = size_bytes(TensorType(kind.dtype, kind.shape[-MATRIX_AXES:]))
    return _blocks(matrix_bytes, matrix_bytes, matrix_bytes // 10)


def _of_signal(call: KernelCall) -> Iterable[HeapUse]:
    """Of DFT, along the longest axis, which is the one that it turns or longer."""
    kind = call.read(0)
    places = max(kind.shape[:-1], default=0)
    is_power = places & (places - 1) == 0
    turns = places if is_power else 2 ** math.ceil(math.log2(2 * places - 1))
    return _blocks(2 * turns * size_bytes(TensorType(kind.dtype, (1,))))


SUM_BYTES: Final = 48  # about: 32 of a node, and a table of them that doubles
SUM_TAPS: Final = 4


def _of_resize(call: KernelCall) -> Iterable[HeapUse]:
    """Of a cubic Resize, channel by channel."""
    if call.attributes.get("mode") != "cubic" or call.attributes.get("antialias", 0):
        return []
    height, (made_height, made_width) = call.read(0).shape[-2], call.made.shape[-2:]
    return [HeapUse(SUM_BYTES * min(height, SUM_TAPS * made_height) * made_width, "pieces")]


KERNELS: Final[Mapping[tuple[str, str], Callable[[KernelCall], Iterable[HeapUse]]]] = MappingProxyType(
    {
        ("", "ScatterElements"): _of_indices,
        ("", "Scatter"): _of_indices,
        ("", "ScatterND"): _of_index_rows,
        ("", "GatherND"): _of_index_rows,
        ("", "TopK"): _of_top,
        ("", "Unique"): _of_unique,
        ("", "NonZero"): _of_result,
        ("", "GridSample"): _of_grid,
        ("", "NonMaxSuppression"): _of_boxes,
        ("", "MatMul"): _of_products,
        (_MS, "FusedMatMul"): _of_products,
        ("", "Det"): _of_determinant,
        ("", "DFT"): _of_signal,
        ("", "Resize"): _of_resize,
        (_ML, "TreeEnsembleRegressor"): _of_trees,
        (_ML, "TreeEnsembleClassifier"): _of_trees,
    }
)
"""(domain, op type) -> what its kernel takes of the heap."""


@dataclass
class KernelHeap:
    """What the heap holds for the kernels of a session, from its first run on.

    `kept_bytes` are, of blocks and of pieces, the most that a kernel before had at once in places that stay.
    """

    kept_bytes: dict[HeapPart, int] = field(default_factory=lambda: {"block": 0, "pieces": 0})
    _held: list[HeapUse] = field(default_factory=list)
    _given_back: list[HeapUse] = field(default_factory=list)
    _largest_bytes: int = 0
    _most_bytes: dict[HeapPart, int] = field(default_factory=lambda: {"block": 0, "pieces": 0})

    @property
    def resident_bytes(self) -> int:
        """What is resident now: blocks lie beside the places of earlier ones, pieces in those of earlier ones."""
        mapped_bytes = sum(use.bytes for use in self._held if self._is_mapped(use))
        pieces_bytes = max(self.kept_bytes["pieces"], self._bytes_of("pieces"))
        return self.kept_bytes["block"] + self._bytes_of("block") + mapped_bytes + pieces_bytes

    def take(self, use: HeapUse) -> None:
        """A kernel takes a part."""
        self._held.append(use)
        for part, most in self._most_bytes.items():
            self._most_bytes[part] = max(most, self._bytes_of(part))

    def give_back(self, use: HeapUse) -> None:
        """It gives the part back; what stays is there for later ones once the kernel holds nothing any more."""
        self._held.remove(use)
        self._given_back.append(use)
        if not self._held:
            sizes = (each.bytes for each in self._given_back if each.part == "block" and each.stays)
            self._largest_bytes, self._given_back = max([self._largest_bytes, *sizes]), []
            self.kept_bytes = {part: max(kept, self._most_bytes[part]) for part, kept in self.kept_bytes.items()}
            self._most_bytes = dict.fromkeys(self._most_bytes, 0)

    def _is_mapped(self, use: HeapUse) -> bool:
        return use.part == "block" and (not use.stays or (use.is_large and use.bytes > self._largest_bytes))

    def _bytes_of(self, part: HeapPart) -> int:
        return sum(use.bytes for use in self._held if use.part == part and not self._is_mapped(use))
