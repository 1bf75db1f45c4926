"""The form of a file in which later runs take what the first one took, and what it adds to the requests of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from remat_cli.core.requests import Request

PREFIX = "remat/steady/"
"""Of the names of all nodes that belong to the form."""
BODY = f"{PREFIX}body"
"""The node whose branch holds the graph."""
NUMBER_BYTES = 8
FLAG_BYTES = 1
"""What the form holds while the graph runs."""


@dataclass(frozen=True)
class SteadyForm:
    """A graph in a branch without a memory pattern, behind a tensor of so many bytes that is freed at once.

    A ballast of 0 bytes is none.
    """

    ballast_bytes: int = 0


@dataclass(frozen=True)
class SteadyBranch:
    """What the form adds depends on: the rank of the input that waits, and outputs that are made beforehand.

    A branch makes an output when the op runs that fills it, unless the runtime knows its shape: then before the branch
    begins. `early_bytes` are the sizes of such outputs, in order.
    """

    rank: int
    early_bytes: tuple[int, ...] = ()

    @property
    def held_bytes(self) -> int:
        """What the form holds while the graph runs."""
        return FLAG_BYTES + sum(self.early_bytes)


def steady_requests(requests: Sequence[Request], branch: SteadyBranch, form: SteadyForm) -> tuple[Request, ...]:
    """What one run asks for when a graph that asks for `requests` is in this form.

    None of its tensors has a place in a block any more.
    """
    inner = [replace(request, in_block=False) for request in requests]
    first = min((request.number for request in requests), default=0) - 1
    return tuple(_with_prologue(first, branch, inner, form))


def _with_prologue(first: int, branch: SteadyBranch, inner: Sequence[Request], form: SteadyForm) -> Iterator[Request]:
    """The requests of the form's own small tensors around those of the graph; their numbers go down from `first`."""
    size, flag, token, length, shape, ballast, go, waits, same, output = range(first, first - 10, -1)
    rank = branch.rank

    def take(number: int, size_bytes: int, in_block: bool = False) -> Request:
        return Request(number, size_bytes, True, in_block)

    def give(number: int, size_bytes: int, in_block: bool = False) -> Request:
        return Request(number, size_bytes, False, in_block)

    yield take(size, NUMBER_BYTES, True)
    start = size
    if form.ballast_bytes:
        yield from (take(flag, FLAG_BYTES, True), give(size, NUMBER_BYTES, True), take(token, NUMBER_BYTES, True))
        yield from (take(length, NUMBER_BYTES), take(shape, NUMBER_BYTES), give(length, NUMBER_BYTES))
        yield from (take(ballast, form.ballast_bytes), give(shape, NUMBER_BYTES), give(ballast, form.ballast_bytes))
        yield give(flag, FLAG_BYTES, True)
        start = token
    yield from (take(go, FLAG_BYTES, True), give(start, NUMBER_BYTES, True))
    for number, size_bytes in enumerate(branch.early_bytes):
        yield take(output - number, size_bytes)
    yield take(waits, NUMBER_BYTES)
    if rank:
        yield take(same, NUMBER_BYTES * rank)
    yield give(waits, NUMBER_BYTES)
    if rank:
        yield give(same, NUMBER_BYTES * rank)
    yield from inner
    yield give(go, FLAG_BYTES, True)
