"""A slicing rule as a record: how its ops are cut, why the bits stay, and all else that splitting may rely on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from remat_cli.splitting.rules.recurrent import HandedOn
from remat_cli.splitting.rules.sums import Adds
from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced


class Why(Enum):
    """Why a slab has the bits of the whole."""

    MOVED = "elements are moved or repeated, and none is computed"
    ALONE = "each element is computed from those at its place, in the same way wherever it lies"
    APART = "each line, window, channel, region or item of a batch is computed by itself, in the same order"
    INTEGERS = "sums of integers are exact in any order, and each result is rounded by itself"
    ASKED = "the runtime computes in several ways: the rule takes slabs for which it goes the same way as for the whole"
    NEVER = "it has not: ops are cut only where other last bits are allowed"


class Scope(Enum):
    """For which tiles and sizes a rule's answer for one of them holds, where the same op is run on parts."""

    EVERY_SIZE = "for every tile of every size"
    SEVERAL_ROWS = "for every tile of two rows and more"
    TILE_LENGTH = "for tiles that are as long, of the same size"
    ONE_TILE = "for that tile only: another may begin at a place where the answer is another"


class WindowKind(Enum):
    """What ops look at that can run in tiles of rows of a picture, where only the first and last tiles see its ends."""

    BESIDE = "at no window, but they run in such tiles beside ops that do"
    ROWS = "at windows of rows, of which bits do not depend on how wide a picture is"
    WIDTH = "at windows, and bits depend on how wide a picture is"
    SPREAD = "at no window, but each row is spread over several, and bits depend on how wide a picture is"


class ProductKind(Enum):
    """How many matrices a product of matrices makes."""

    ONE = "one"
    STACK = "one for each position of the axes before the last two"


class ElementKind(Enum):
    """How ops that make a number of each number compute it."""

    ALONE = "in the same way wherever it lies"
    PACKETS = "in packets, and in another way where none is full"


class LayoutKind(Enum):
    """What ops that put channels into blocks, or back, make."""

    BLOCKS = "blocks of channels"
    PLAIN = "tensors as ONNX defines them"


REST, REPEATED, COPIED = -1, 1, 0
"""What a shape says of a length that is what is left of a Reshape, or what an Expand, or a Reshape, reads there."""


@dataclass(frozen=True, eq=False)
class SliceRule:
    """How ops are cut, and what holds for them. `ops` are op types by domain, `cut` says what a slab of them needs.

    `is_cheap`: takes little longer than reading the result, so that it may be made again in a loop. `regroups`: only
    changes the shape, so that a part is the same part wherever as much lies before the cut axis. `by_channel`: treats
    each channel by itself, also in blocks. `reads_all_channels`: each channel of the result reads all of the input's.
    `takes_one_for_copies`: has the same bits with one number as with a tensor of copies of it. `moves_numbers`: results
    are numbers of what is read first. `open_length`: what a computed shape may say of a length that it leaves open.
    `is_resize`: may be written as picking rows and columns and mixing them. `reads_no_constants`: asks for shapes and
    attributes only, so that what it says of an op holds for the same op with other weights. `whole_in_loops`: why it is
    not cut where sizes vary, though it is at one size; else it is. `items_apart`: what is said of items of a batch
    holds for any of them, and where it holds for small items it does for larger ones. `adds` says what they add up, if
    that can be done part by part. `takes_for_one_item`: workspace is that of one item of the batch, however many there
    are. `in_turn` is how they are cut where parts run one after the other and hand states
    on, `hands_on` which states these are. `counts_places`: from nought by ones the numbers are those of places, so that
    in loops each tile begins to count where it begins. `counts_windows`: how long results are follows from windows,
    though loops do not move these. `rows_together`: how many rows are computed together, of which tiles have all.
    """

    cut: Callable[[OpView, Slab], Sliced | None]
    ops: Mapping[str, str]
    why: Why
    scope: Scope = Scope.ONE_TILE
    is_cheap: bool = False
    windows: WindowKind | None = None
    product: ProductKind | None = None
    elements: ElementKind | None = None
    layout: LayoutKind | None = None
    open_length: int | None = None
    regroups: bool = False
    by_channel: bool = False
    reads_all_channels: bool = False
    takes_one_for_copies: bool = False
    moves_numbers: bool = False
    is_resize: bool = False
    reads_no_constants: bool = False
    whole_in_loops: str = ""
    in_turn: Callable[[OpView, Slab], Sliced | None] | None = None
    hands_on: Callable[[OpView], HandedOn | None] | None = None
    items_apart: bool = False
    takes_for_one_item: bool = False
    counts_places: bool = False
    counts_windows: bool = False
    rows_together: Callable[[OpView], int] | None = None
    adds: Adds | None = None

    @property
    def has_windows(self) -> bool:
        """Whether the ops look at windows."""
        return self.windows in (WindowKind.ROWS, WindowKind.WIDTH)
