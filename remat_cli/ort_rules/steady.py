"""The form of a file in which later runs take what the first one took, and what it adds to the requests of a run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from remat_cli.ort_rules.requests import Request

PREFIX = "remat/steady/"
"""Of the names of all nodes that belong to the form."""
BODY = f"{PREFIX}body"
"""The node whose branch holds the graph."""
NUMBER_BYTES = 8
FLAG_BYTES = 1
"""What the form holds while the graph runs."""


FLOAT_BYTES = 4
STEP_BYTES = 4
GATES = 4
STATES = 6
STATES_BACK = 5, 4, 2, 3, 1
"""Of an LSTM: its gates, its tensors of one state each, and the order in which all but the first are given back."""


@dataclass(frozen=True)
class Ballast:
    """An LSTM of one feature over so many steps, which is given one step: it asks for room for the gates of all."""

    steps: int
    hidden: int

    @classmethod
    def of(cls, ballast_bytes: int) -> Self:
        """The ballast whose workspace has at least so many bytes, and for which least has to be written.

        That is a float for each step and a square of weights for each gate; the workspace is the product of both.
        """
        hidden = max(1, round((ballast_bytes / (8 * GATES * FLOAT_BYTES)) ** (1 / 3)))
        return cls(-(-ballast_bytes // (GATES * hidden * FLOAT_BYTES)), hidden)

    @property
    def shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Shapes of its steps, its weights and its recurrent weights."""
        return (self.steps, 1, 1), (1, GATES * self.hidden, 1), (1, GATES * self.hidden, self.hidden)

    @property
    def workspace_bytes(self) -> int:
        """What it asks for and does not write."""
        return GATES * self.hidden * self.steps * FLOAT_BYTES


@dataclass(frozen=True)
class SteadyForm:
    """A graph in a branch without a memory pattern, behind workspaces of so many bytes that are freed at once.

    Nothing is written to these ballasts, so that they only decide which regions the arena takes, in which order.
    `early` are outputs whose shape the branch says: they are made before it begins, all beside each other. What a
    caller still holds of the run before then lies beside them too, and not between tensors that come and go.
    """

    ballast_bytes: tuple[int, ...] = ()
    early: tuple[str, ...] = ()

    @property
    def ballasts(self) -> list[Ballast]:
        """What makes the workspaces."""
        return list(map(Ballast.of, self.ballast_bytes))

    @property
    def constant_bytes(self) -> int:
        """Weights that the ballasts bring: three shapes of three numbers each, and one number of steps for all."""
        return 9 * NUMBER_BYTES * len(self.ballast_bytes) + (STEP_BYTES if self.ballast_bytes else 0)


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
    first = min((request.number for request in requests), default=0) - 1
    before = _Prologue(first)
    start = before.take(NUMBER_BYTES, in_block=True)
    if form.ballasts:
        start = before.ballasts(start, form.ballasts)
    go = before.take(FLAG_BYTES, in_block=True)  # held until the graph's own last op
    before.give(start)
    for size_bytes in branch.early_bytes:
        before.take(size_bytes)
    views = [before.take(NUMBER_BYTES)]
    if branch.rank:
        views.append(before.take(NUMBER_BYTES * branch.rank))
    before.give(*views)
    return (*before.found, *(replace(request, in_block=False) for request in requests), replace(go, takes=False))


class _Prologue:
    """Requests of the form's own tensors before the graph's first op, in order; their numbers go down from `first`."""

    def __init__(self, first: int) -> None:
        self._numbers = itertools.count(first, -1)
        self.found: list[Request] = []

    def take(self, size_bytes: int, *, in_block: bool = False, is_written: bool = True) -> Request:
        """Ask for memory."""
        self.found.append(Request(next(self._numbers), size_bytes, True, in_block, is_written))
        return self.found[-1]

    def give(self, *taken: Request) -> None:
        """Give memory back."""
        self.found += [replace(request, takes=False) for request in taken]

    def ballasts(self, size: Request, ballasts: Sequence[Ballast]) -> Request:
        """What the branch with the ballasts asks for, and the flag that leads to it; the token is what is left."""
        flag = self.take(FLAG_BYTES, in_block=True)
        self.give(size)
        token, before = self.take(NUMBER_BYTES, in_block=True), self.take(NUMBER_BYTES)
        shape = self.take(3 * NUMBER_BYTES)  # the runtime uses one for all
        for ballast in ballasts[:-1]:
            result = self._ballast(ballast, before)
            before = self.take(NUMBER_BYTES)
            self.give(result)
        self.give(self._ballast(ballasts[-1], before, shape), flag)
        return token

    def _ballast(self, ballast: Ballast, *read_last: Request) -> Request:
        """Ask for a ballast: all but its result is given back, and what is read for the last time before it begins."""
        steps, weights, recurrence = (FLOAT_BYTES * math.prod(dims) for dims in ballast.shapes)
        read = [self.take(recurrence), self.take(weights)]
        self.give(*read_last[:1])
        read.append(self.take(steps))
        self.give(*read_last[1:])
        result, *state = (self.take(FLOAT_BYTES * ballast.hidden) for _ in range(1 + STATES))
        workspace = self.take(ballast.workspace_bytes, is_written=False)
        self.give(*(state[at] for at in STATES_BACK), workspace, state[0], *reversed(read))
        return result
