"""What a provider holds of its device that takes buffers of certain sizes only, and keeps them when they are free."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

import msgspec


class BufferCache(msgspec.Struct, frozen=True):
    """How a provider takes buffers: those of weights in steps of `granule_bytes`, others of the sizes of buckets.

    Above the largest bucket they go by `granule_bytes` too. A buffer that is free is kept for the next of its size.
    Weights of `packed_ops` get another form; of one of them, the last, each session keeps the original as well. Where
    the second input of such an op is no weight, it gets that form in a buffer of its own whenever the op runs.
    `turning_ops` transpose their first input into a buffer of its own. `there_and_back_ops` do so unless they go along
    the last axis, and make each output transposed in another one. `pairing_ops` take their inputs two by two, each
    result but the last in a buffer of its own. `scaling_ops` make two floats for each channel first. `parts` are the
    buffers of workspaces that are more than one, in bytes, by number of the op in a problem.
    """

    bucket_bytes: tuple[int, ...]
    granule_bytes: int
    packed_ops: tuple[str, ...] = ()
    turning_ops: tuple[str, ...] = ()
    there_and_back_ops: tuple[str, ...] = ()
    pairing_ops: tuple[str, ...] = ()
    scaling_ops: tuple[str, ...] = ()
    parts: dict[int, tuple[int, ...]] = {}

    def rounded(self, size_bytes: int) -> int:
        """Bytes of the buffer of a tensor; one without bytes has none."""
        if not size_bytes:
            return 0
        at = bisect_left(self.bucket_bytes, size_bytes)
        return self.bucket_bytes[at] if at < len(self.bucket_bytes) else self.weight_bytes(size_bytes)

    def weight_bytes(self, size_bytes: int) -> int:
        """Bytes of the buffer of a weight."""
        return -(-size_bytes // self.granule_bytes) * self.granule_bytes


class Hold(NamedTuple):
    """A buffer for so many bytes, from one position of a run to another, both included."""

    size_bytes: int
    start: int
    end: int


def steady_bytes(cache: BufferCache, holds: Iterable[Hold], length: int) -> int:
    """What is held once a run of so many positions is over: of each bucket as many as ever were at the same time."""
    changes: defaultdict[int, list[int]] = defaultdict(lambda: [0] * (length + 1))
    for hold in holds:
        bucket = changes[cache.rounded(hold.size_bytes)]
        bucket[hold.start] += 1
        bucket[hold.end + 1] -= 1
    return sum(size * max(accumulate(bucket)) for size, bucket in changes.items())


def workspace_holds(size_bytes: int, position: int, parts: Iterable[int]) -> list[Hold]:
    """The buffers of an op's workspace at its position: none, its parts, or one where it has none."""
    return [Hold(part, position, position) for part in tuple(parts) or (size_bytes,)] if size_bytes else []


def most_bytes(holds: Iterable[Hold], length: int) -> int:
    """The most that these buffers take at the same time, in a run of so many positions, where none is kept."""
    changes = [0] * (length + 1)
    for hold in holds:
        changes[hold.start] += hold.size_bytes
        changes[hold.end + 1] -= hold.size_bytes
    return max(accumulate(changes))
