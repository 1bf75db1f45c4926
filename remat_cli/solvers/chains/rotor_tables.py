"""Optimal schedules of a chain for every budget at once: tables, operations behind them, and plans worth judging."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from remat_cli.solvers.base import Reason
from remat_cli.solvers.chains import rotor_floating as floating
from remat_cli.solvers.chains import rotor_kernels as persistent
from remat_cli.solvers.chains.actions import Action, Chain
from remat_cli.solvers.chains.rotor_kernels import CHECKPOINT, NEVER, SAVE, Net
from remat_cli.solvers.chains.rotor_slots import VALUE_SLOTS, Ints, Slots, chain_figures, forward_bytes, make_slots

Variant: TypeAlias = Literal["persistent", "drop", "floating", "no-fall"]
Moves: TypeAlias = dict[Variant, tuple[int, int, int]]
Place: TypeAlias = tuple[int, int, int, int]

ENTRY_BYTES = 8
TOGETHER = 8  # stages s whose rows are filled in one call: less than half the time of one by one
ALLOWED: Moves = {"persistent": (1, 1, 0), "drop": (1, 1, 1), "floating": (1, 1, 0), "no-fall": (0, 1, 0)}


@dataclass(frozen=True)
class RotorTable:
    """Least times of a chain in `times`, for every number of slots up to the largest budget's; see the kernels."""

    chain: Chain
    variant: Variant
    slots: Slots
    net: Net
    times: Ints
    first: Ints

    def least_ns(self, budget_bytes: int) -> int | None:
        """The least time within a budget, which the chain's input counts against; None: no schedule fits."""
        slots = self._slots(budget_bytes)
        time_ns = NEVER if slots < 0 else int(self._row[slots])
        return None if time_ns >= NEVER else time_ns

    def steps(self) -> list[tuple[int, int]]:
        """The least time from each budget at which it changes, in order of the budgets."""
        finite = np.nonzero(self._row < NEVER)[0]
        if not finite.size:
            return []
        changes = [int(finite[0]), *(int(m) for m in finite[1:] if self._row[m] != self._row[m - 1])]
        return [(self.slots.first_bytes(m + self._held), int(self._row[m])) for m in changes]

    def actions(self, budget_bytes: int) -> tuple[Action, ...] | None:
        """Operations that take the least time within a budget; None: no schedule fits."""
        if self.least_ns(budget_bytes) is None:
            return None
        slots, last = self._slots(budget_bytes), self.chain.stages
        if self.variant == "floating":
            return _spelled_out(partial(_floating_choice, self), (1, last, 1, slots))
        return _spelled_out(partial(_persistent_choice, self), (0, 1, last, slots))

    @property
    def _row(self) -> Ints:
        """Times of the whole chain, per number of slots besides its input."""
        stages = self.chain.stages
        if self.variant == "floating":
            whole: Ints = self.times[floating.row_of(stages, 1, stages, 1)]
        else:
            whole = self.times[0, persistent.row_of(stages, 1, stages)]
        return whole[: max(0, self.slots.most + 1 - self._held)]

    def _slots(self, budget_bytes: int) -> int:
        """Slots of a budget besides the chain's input; negative: not even that fits."""
        return self.slots.given(budget_bytes) - self._held if budget_bytes >= 0 else -1

    @property
    def _held(self) -> int:
        """How many slots the chain's input takes."""
        return int(self.net.figures[VALUE_SLOTS, 0])


def table_rows(stages: int, variant: Variant) -> int:
    """How many rows a table has."""
    if variant == "floating":
        return stages * (stages + 1) * (stages + 2) // 6 + 1
    return (stages * (stages + 1) // 2 + 1) * (2 if variant == "drop" else 1)


def table_bytes(stages: int, variant: Variant, width: int) -> int:
    """What a table for so many slots takes."""
    return table_rows(stages, variant) * (width + 1) * ENTRY_BYTES


def build_table(chain: Chain, variant: Variant, slots: Slots, is_over: Callable[[], bool]) -> RotorTable | None:
    """The table for the largest budget of these slots; None when it was over before.

    O(S N^3) time and O(S N^2) memory for N stages and S slots; O(S N^4) and O(S N^3) for the floating variant.
    """
    figures = chain_figures(chain, slots)
    scale = np.array([slots.count, slots.bytes_], dtype=np.int64)
    allowed = np.array(ALLOWED[variant], dtype=np.int64)
    net = Net(figures, forward_bytes(chain), scale, allowed)
    layers = 2 if variant == "drop" else 1
    rows = table_rows(chain.stages, variant) // layers
    shape = (rows, slots.most + 1) if variant == "floating" else (layers, rows, slots.most + 1)
    times, first = np.empty(shape, dtype=np.int64), np.zeros(shape[:-1], dtype=np.int64)
    times[..., -1, :] = 0
    fill = floating.fill if variant == "floating" else persistent.fill
    for high in range(chain.stages, 0, -TOGETHER):
        if is_over():
            return None
        fill(max(1, high - TOGETHER + 1), high, net, times, first)
    return RotorTable(chain, variant, slots, net, times, first)


def _spelled_out(choose: Callable[[Place], list[Action | Place]], whole: Place) -> tuple[Action, ...]:
    """The operations behind an entry: each place in a table gives way to what was chosen for it, in order."""
    actions: list[Action] = []
    waiting: list[Action | Place] = [whole]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Action):
            actions.append(item)
        else:
            waiting += reversed(choose(item))
    return tuple(actions)


def _persistent_choice(table: RotorTable, place: Place) -> list[Action | Place]:
    """What is behind an entry (layer, s, t, slots)."""
    layer, s, t, m = place
    if s == t:
        return [Action("back", s)] if layer else [Action("all", s), Action("back", s)]
    begin, j, way = persistent.choose(place, table.net, table.times, table.first)
    head = Action("back", s) if begin == SAVE else (way.head_layer, s, j, m - way.held)
    # The forwards from s to j of a way to begin.
    if begin == SAVE:
        forwards = [Action("all", s)]
    elif begin == CHECKPOINT:
        forwards = [Action("keep", s), *(Action("move", h) for h in range(s + 1, j + 1))]
    else:
        forwards = [Action("keep", s), *(Action("move", h) for h in range(s + 1, j)), Action("drop", j)]
    return [*forwards, (layer, j + 1, t, m - way.taken), head]


def _floating_choice(table: RotorTable, place: Place) -> list[Action | Place]:
    """What is behind an entry (s, t, end, slots)."""
    s, t, end, m = place
    if s == t:
        return [Action("all", s), Action("back", s)]
    begin, cut, way = floating.choose(place, table.net, table.times, table.first)
    left = m - way.taken
    if begin == SAVE:
        return [Action("all", s), (s + 1, t, s + 1, left), Action("back", s)]
    if begin == CHECKPOINT:
        return [Action("keep", s), (s + 1, t, cut, left), (s, cut - 1, end, m)]
    return [Action("move", s), (s + 1, t, end, left)]


LARGEST_TABLE = 2**30
SPREAD = 16  # larger budgets tried at first, and again between the largest that does and the next
LEAST_SHARE = 4  # a budget below such a part of what keeping all takes has fewer slots


def size_table(chain: Chain, variant: Variant, budget_bytes: int, slots: int, inflate: bool) -> Slots | Reason:
    """Slots of the budget, and of larger ones where `inflate`; or why there can be no table.

    A table for larger budgets goes no further than what keeping everything takes, nor than its memory allows.
    """
    time_ns, everything = chain.keep_all()
    if time_ns * chain.stages >= NEVER:
        return Reason(f"a table cannot add up times of {time_ns} ns for {chain.stages} stages")
    room = max(1, min(budget_bytes, everything), everything // LEAST_SHARE)
    most = everything + chain.stages * (room // slots + 1) if inflate else max(1, budget_bytes)
    for part in range(8, -1, -1):
        found = make_slots(chain, room + (most - room) * part // 8, room, slots)
        size = table_bytes(chain.stages, variant, found.most)
        if size <= LARGEST_TABLE:
            return found
    table = f"a table of {chain.stages} stages and {found.most} slots takes {size >> 20} MiB"
    less = "fewer slots take" if variant in ("persistent", "no-fall") else "fewer slots or variant=persistent take"
    return Reason(f"{table}, more than {LARGEST_TABLE >> 20} MiB: {less} less")


def plans(
    table: RotorTable,
    budget_bytes: int,
    spell: Callable[[Sequence[Action]], list[int]],
    fits: Callable[[list[int]], bool],
) -> Iterator[list[int]]:
    """The best plan of the budget, then those of larger budgets that may take less than the table thinks.

    What a plan really takes grows with the budget it was made for, nearly always. So the largest budget whose plan
    still fits is looked for among a few over the whole range, then among those from there to the next.
    """
    steps = [budget for budget, _ in table.steps()]
    within = [budget for budget in steps if budget <= budget_bytes]
    above = steps[len(within) :]
    for budget in within[-1:]:
        yield spell(table.actions(budget) or ())
    begin, end = -1, len(above)
    while end - begin > 1:
        tried = spread(begin + 1, end, SPREAD)
        last = begin
        for place in tried:
            ops = spell(table.actions(above[place]) or ())
            yield ops
            if fits(ops):
                last = place
        following = [place for place in tried if place > last]
        if last == begin or not following:
            return
        begin, end = last, following[0]


def spread(start: int, stop: int, most: int) -> list[int]:
    """At most so many whole numbers from start up to but without stop, the first and the last among them."""
    count = stop - start
    if count <= most:
        return list(range(start, stop))
    return [start + number * (count - 1) // (most - 1) for number in range(most)]
