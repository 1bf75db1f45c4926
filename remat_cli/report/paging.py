"""What pages, how much and when, as values that become JSON."""

import msgspec


class PagedTensorReport(msgspec.Struct, frozen=True, kw_only=True):
    """A value that is away meanwhile. Times are planned, in nanoseconds since a run begins.

    It leaves when session `last_session` and its write (`written_ns`: start and end) are over, and is read
    (`read_ns`) for session `next_session`. To make it again instead would take `recompute_ns` at least (None: its op
    cannot be repeated), and more where `missing_input`, which its op reads, is not there then either.
    """

    tensor: str
    size_bytes: int
    last_session: int
    next_session: int
    written_ns: tuple[int, int]
    read_ns: tuple[int, int]
    recompute_ns: int | None
    missing_input: str | None = None


class PagedWeightsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Weights that are there only in the turn of a session: read from their files (`read_ns`), and never written.

    `size_bytes` is what is read of them, in whole pages, and `packed_bytes` the most that copies of the session's own
    take, after which what was read goes (0: they are read where they are, and go when the session is over).
    """

    session: int
    weights: tuple[str, ...]
    size_bytes: int
    packed_bytes: int
    read_ns: tuple[int, int]


class PagingReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a plan pages, largest tensors first; `without_paging_ns` is the best plan that pages nothing, if one fits.

    `weights` are those that page, in the order of sessions, `released_bytes` what they would take all through, and
    `opening_ns` what it takes in a run to open sessions over them. `overhead_percent` is what all of it costs.
    """

    memory: str
    write_bytes_per_second: float
    read_bytes_per_second: float
    file_bytes: int
    written_bytes: int
    read_bytes: int
    stall_ns: int
    without_paging_ns: int | None
    tensors: tuple[PagedTensorReport, ...]
    overhead_percent: float = 0.0
    weights: tuple[PagedWeightsReport, ...] = ()
    released_bytes: int = 0
    opening_ns: int = 0

    @property
    def weight_bytes(self) -> int:
        """What is read of weights in a run."""
        return sum(each.size_bytes for each in self.weights)
