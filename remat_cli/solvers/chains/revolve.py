"""Revolve (Griewank & Walther 2000): fewest forwards that reverse a chain of equal layers in so many slots.

Memory is in slots (Shilova 2021, ch. 1). Every value and gradient takes one. A forward or backward of a layer puts its
result where its input was, so that keeping an input takes a copy of it, which costs a slot and no time. The backward of
layer l needs the layer's input and the gradient of its output, and leaves the gradient of its input. The loss turns the
ends of all branches into their gradients.

Counts are of forwards only: every backward runs once, so that costs per layer multiply and add, and change no decision.
"""

from collections.abc import Iterable, Iterator
from math import comb
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from remat_cli.solvers.chains.actions import Action

MOST_FORWARDS = 100_000  # longer sequences, in the fewest slots on very long branches, are not worth judging
NEVER = 1 << 29  # more forwards than any sequence has; three of it still fit 32 bits

SlotKind: TypeAlias = Literal["copy", "advance", "loss", "back", "drop"]


class SlotAction(NamedTuple):
    """One operation on a layer of a branch, 1 the first; the loss has neither.

    `copy` is of the layer's output (0: the branch's input), `drop` of the gradient of the branch's input (layer 0).
    """

    kind: SlotKind
    branch: int = 0
    layer: int = 0


LOSS = SlotAction("loss")


def fewest_forwards(layers: int, checkpoints: int) -> int:
    """Least number of forwards before `layers` backwards with that many values kept at once, the input among them.

    The closed form: the least r with C(c + r, c) >= n gives r n - C(c + r, c + 1).
    """
    sweeps = 0
    while comb(checkpoints + sweeps, checkpoints) < layers:
        sweeps += 1
    return sweeps * layers - comb(checkpoints + sweeps, checkpoints + 1) if sweeps else 0


def forward_table(layers: int, slots: int) -> NDArray[np.int64]:
    """Entry [l, m]: fewest forwards from {input, last gradient} through the backwards of l + 1 layers, in m slots.

    NEVER where m slots are too few. The table satisfies

        T[l, m] = min over 1 <= i <= l of i + T[l - i, m - 1] + T[i - 1, m],    T[0, m] = 0 for m >= 2,

    and is filled from the closed form, which says that each further layer adds the least r with C(c + r, c) >= n, in
    time O(layers * slots).
    """
    table = np.full((layers + 1, slots + 1), NEVER, dtype=np.int64)
    table[0, 2:] = 0
    for m in range(3, slots + 1):
        sweeps, reach = 0, 1
        added = np.zeros(layers + 1, dtype=np.int64)
        while reach <= layers:
            sweeps += 1
            further = comb(m - 2 + sweeps, sweeps)
            added[reach:further] = sweeps
            reach = further
        table[:, m] = np.minimum(np.cumsum(added), NEVER)
    return table


def reverse(table: NDArray[np.int64], layers: int, slots: int, branch: int = 0, base: int = 0) -> Iterator[SlotAction]:
    """The operations of an optimal sequence for `layers` layers that follow the output of layer `base`.

    The output of `base` and the last gradient are stored at the start, the first gradient alone at the end.
    `table` is a `forward_table` large enough, with a finite entry for this case. The stack holds what is still to do,
    the next on top: each entry is a stretch of layers to reverse.
    """
    todo = [(base, layers - 1, slots)]
    while todo:
        start, rest, room = todo.pop()
        if rest == 0:
            yield SlotAction("back", branch, start + 1)
            continue
        # Where to put the next checkpoint: the i of the recurrence, the least of several.
        steps = np.arange(1, rest + 1)
        step = 1 + int(np.argmin(steps + table[rest - steps, room - 1] + table[steps - 1, room]))
        yield from keep_and_advance(branch, start, step)
        todo.append((start, step - 1, room))
        todo.append((start + step, rest - step, room - 1))


def keep_and_advance(branch: int, base: int, step: int) -> Iterator[SlotAction]:
    """Keep the output of layer `base` and go on `step` layers from a copy of it."""
    yield SlotAction("copy", branch, base)
    for layer in range(base + 1, base + step + 1):
        yield SlotAction("advance", branch, layer)


def chain_actions(actions: Iterable[SlotAction]) -> Iterator[Action]:
    """One branch: each layer a stage, its forward run again, keeping everything, just before its backward."""
    is_copy = False
    for action in actions:
        if action.kind == "advance":
            yield Action("keep" if is_copy else "move", action.layer)
        elif action.kind == "back":
            yield Action("all", action.layer)
            yield Action("back", action.layer)
        is_copy = action.kind == "copy"
