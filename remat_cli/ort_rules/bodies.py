"""What an op that runs a body holds while it does: at its end, and kernel by kernel.

A run shows of each kernel what was in use when it began and when it ended, and the model says which values die after
it. From both follows what a body asks for and gives back, in order. An arena needs that: results that grow from round
to round leave gaps that one block of the most that is ever in use does not show.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

MOST_REQUESTS = 4096
"""That are kept of one body."""
SMALL_SHARE = 1024
"""Requests below this part of the most in use are one block for all of them."""
SLACK_BYTES = 512
"""By which a buffer may be larger than what seems to have been given back: small ones may have been mistaken before."""
ROUNDS = 2
"""That are kept of a row of equal ones: the arena serves further ones as it did the last."""


class BodyRules(msgspec.Struct, frozen=True, kw_only=True):
    """`copies_results` are ops that copy what the last round of their body made: both are there at the end.

    Sequences they only pass on. `lists` are ops that put a copy of a tensor in a sequence, beside what is there.
    """

    copies_results: frozenset[str]
    lists: frozenset[str]

    def end_bytes(self, op_type: str, last_bytes: int, results_bytes: int) -> int:
        """What is in use when the results of an op are there, and `last_bytes` were when its last kernel ended."""
        return last_bytes + (results_bytes if op_type in self.copies_results else 0)


class BodyKernel(msgspec.Struct, frozen=True):
    """A kernel that ran in a body: bytes in use before and after it, bytes of its results, its workspace.

    `has_body`: it is an op whose own kernels have been told before it; `copies`: its results are copies of what these
    made; `lists`: what it makes is a part of a sequence.
    """

    name: str
    begin_bytes: int
    end_bytes: int
    result_bytes: tuple[int, ...]
    workspace_bytes: int = 0
    has_body: bool = False
    copies: bool = False
    lists: bool = False


class KernelWiring(msgspec.Struct, frozen=True):
    """What the model says of an op in a body; values are known by numbers.

    `dies` are those that nothing reads after it. `passes` says, by value that it makes, which values of its own bodies
    that may be. `is_first`: a round of its body begins with it.
    """

    reads: tuple[int, ...]
    makes: tuple[int, ...]
    dies: tuple[int, ...]
    passes: tuple[tuple[int, ...], ...] = ()
    is_first: bool = False


UNKNOWN = KernelWiring((), (), ())


def body_requests(op: BodyKernel, kernels: Sequence[BodyKernel], wiring: Mapping[str, KernelWiring]) -> tuple[int, ...]:
    """What the bodies of an op ask for and give back, in order.

    A positive number is a request of so many bytes; -1 gives back the oldest that is still held, -2 the one after it,
    and so on. What is not given back is a result of the op, or goes when the op has ended.
    """
    seen = _Body(op.begin_bytes)
    rounds = [0]
    for kernel in kernels:
        known = wiring.get(kernel.name, UNKNOWN)
        if known.is_first:
            rounds.append(len(seen.events))
        if kernel.has_body:
            seen.pass_on(kernel, known)
        else:
            seen.run(kernel, known)
    rounds.append(len(seen.events))
    seen.pass_on(op, UNKNOWN)
    return tuple(_encoded(seen.events, [*rounds, len(seen.events)]))


@dataclass(eq=False)
class _Buffer:
    """Memory that is held in a body, and the values that lie in it; `is_part`: of a sequence that is still read."""

    bytes: int
    values: set[int] = field(default_factory=set)
    is_part: bool = False


@dataclass
class _Body:
    """Follows kernels of a body: who holds what. `events` are buffers that were taken (True) or given back.

    `parts` are the buffers of each sequence.
    """

    in_use_bytes: int
    held: list[_Buffer] = field(default_factory=list)
    place: dict[int, _Buffer] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    events: list[tuple[_Buffer, bool]] = field(default_factory=list)
    parts: dict[int, list[_Buffer]] = field(default_factory=dict)

    def run(self, kernel: BodyKernel, known: KernelWiring) -> None:
        """Follow a kernel: results that do not add to what is in use lie in what it reads."""
        self.settle(kernel.begin_bytes)
        left_bytes = kernel.end_bytes - kernel.begin_bytes
        for value, size_bytes in _results(kernel, known):
            if 0 < size_bytes <= left_bytes:
                self._take(size_bytes, value)
                left_bytes -= size_bytes
            elif size_bytes and value is not None:
                # In what the kernel reads and is as large, a value that dies before others.
                read = [each for each in known.reads if each in self.place and self.place[each].bytes == size_bytes]
                chosen = next((each for each in read if each in known.dies), next(iter(read), None))
                self._bind(value, None if chosen is None else self.place[chosen])
        if left_bytes > 0:
            self._take(left_bytes)
            if kernel.lists:
                self.held[-1].is_part = True
                self.parts.setdefault(known.makes[0], []).append(self.held[-1])
        if kernel.workspace_bytes:
            workspace = _Buffer(kernel.workspace_bytes)
            self.events += [(workspace, True), (workspace, False)]
        self._die(known)

    def pass_on(self, kernel: BodyKernel, known: KernelWiring) -> None:
        """Follow an op when its body has run: its results are what the body made, or copies that come now."""
        if kernel.copies:
            self.settle(self.in_use_bytes - sum(buffer.bytes for buffer in self.held if self._is_read(buffer)))
            for value, size_bytes in _results(kernel, known):
                self._take(size_bytes, value)
        self.settle(kernel.end_bytes)
        for at, candidates in enumerate(known.passes):
            value = known.makes[at]
            if not kernel.copies:
                made = [buffer for buffer in self.held if any(self.place.get(each) is buffer for each in candidates)]
                self._bind(value, made[-1] if made else None)
                self.dead.update(candidates)
            for listed in self.parts.keys() & candidates:
                self.parts[value] = self.parts.pop(listed)
        self._die(known)

    def _die(self, known: KernelWiring) -> None:
        """Values that nothing reads any more, and with a sequence its parts."""
        self.dead.update(known.dies)
        for value in self.parts.keys() & set(known.dies):
            for part in self.parts.pop(value):
                part.is_part, part.values = False, {value}

    def settle(self, in_use_bytes: int) -> None:
        """Take or give back what explains that so much is in use now."""
        excess_bytes = self.in_use_bytes - in_use_bytes
        if excess_bytes < 0:
            self._take(-excess_bytes)
        self.in_use_bytes = in_use_bytes
        if excess_bytes <= 0:
            return
        # What dies with a kernel goes before what a round leaves to the next; small mistakes stay with what is small.
        largest_first = sorted((each for each in self.held if not each.is_part), key=lambda buffer: -buffer.bytes)
        largest_first.sort(key=lambda buffer: not self._is_read(buffer))
        # It is read, or what lies in it is made again elsewhere in another round.
        dead = [
            buffer
            for buffer in largest_first
            if buffer.values
            and all(value in self.dead or self.place.get(value) is not buffer for value in buffer.values)
        ]
        rest_bytes = excess_bytes - sum(buffer.bytes for buffer in dead)
        exact = [buffer for buffer in largest_first if buffer.bytes == rest_bytes]
        for buffer in dict.fromkeys((*dead, *exact, *largest_first)):
            if excess_bytes > 0 and buffer.bytes <= excess_bytes + SLACK_BYTES:
                excess_bytes -= buffer.bytes
                self.held.remove(buffer)
                self.events.append((buffer, False))

    def _is_read(self, buffer: _Buffer) -> bool:
        """Whether all that reads it has run."""
        return bool(buffer.values) and self.dead.issuperset(buffer.values)

    def _take(self, size_bytes: int, value: int | None = None) -> None:
        buffer = _Buffer(size_bytes)
        self.held.append(buffer)
        self.events.append((buffer, True))
        self.in_use_bytes += size_bytes
        if value is not None:
            self._bind(value, buffer)

    def _bind(self, value: int, buffer: _Buffer | None) -> None:
        """Say where a value lies; None: in no buffer of this body."""
        self.dead.discard(value)
        if buffer is None:
            self.place.pop(value, None)
        else:
            self.place[value] = buffer
            buffer.values.add(value)


def _results(kernel: BodyKernel, known: KernelWiring) -> Iterator[tuple[int | None, int]]:
    """Values that a kernel makes, where the model says which, and their bytes."""
    for at, size_bytes in enumerate(kernel.result_bytes):
        yield known.makes[at] if at < len(known.makes) else None, size_bytes


def _encoded(events: Sequence[tuple[_Buffer, bool]], rounds: Sequence[int]) -> Iterator[int]:
    """Events as numbers; what is small is one block for all, and rounds that are like two before them are left out."""
    # From which size on requests are told one by one.
    sizes = sorted((buffer.bytes for buffer, _ in events), reverse=True)
    share_bytes = _most_bytes(events) // SMALL_SHARE
    least_bytes = share_bytes if len(sizes) <= MOST_REQUESTS else max(share_bytes, sizes[MOST_REQUESTS] + 1)
    most_small_bytes = _most_bytes([event for event in events if event[0].bytes < least_bytes])
    held = [_Buffer(most_small_bytes)]
    if most_small_bytes:
        yield most_small_bytes
    else:
        held.clear()
    before: list[list[int]] = []
    for begin, end in itertools.pairwise(rounds):
        found: list[int] = []
        for buffer, takes in events[begin:end]:
            if buffer.bytes < least_bytes:
                continue
            if takes:
                held.append(buffer)
                found.append(buffer.bytes)
            else:
                found.append(-1 - held.index(buffer))
                held.remove(buffer)
        is_even = 2 * sum(number > 0 for number in found) == len(found)
        before = [*before[-ROUNDS:], found]
        if not is_even or before != [found] * (ROUNDS + 1):
            yield from found


def _most_bytes(events: Sequence[tuple[_Buffer, bool]]) -> int:
    """The most that is held at one time."""
    most = held = 0
    for buffer, takes in events:
        held += buffer.bytes if takes else -buffer.bytes
        most = max(most, held)
    return most
