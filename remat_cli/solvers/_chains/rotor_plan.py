"""From a chain and a budget to the plans worth judging: which budgets to ask the table for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from remat_cli.solvers._chains.actions import Action, Chain
from remat_cli.solvers._chains.rotor_kernels import NEVER
from remat_cli.solvers._chains.rotor_slots import Slots, make_slots
from remat_cli.solvers._chains.rotor_tables import Table, Variant, table_bytes

LARGEST_TABLE = 2**30
SPREAD = 16  # larger budgets tried at first, and again between the largest that does and the next
LEAST_SHARE = 4  # a budget below such a part of what keeping all takes has fewer slots


@dataclass(frozen=True)
class Sizing:
    """How far a table goes, and in what slots."""

    slots: Slots
    bytes_: int


def size_table(chain: Chain, variant: Variant, budget_bytes: int, slots: int, inflate: bool) -> Sizing | str:
    """Slots of the budget, and of larger ones where `inflate`; or why there can be no table.

    A table for larger budgets goes no further than what keeping everything takes, nor than its memory allows.
    """
    time_ns, everything = chain.keep_all()
    if time_ns * chain.stages >= NEVER:
        return f"a table cannot add up times of {time_ns} ns for {chain.stages} stages"
    room = max(1, min(budget_bytes, everything), everything // LEAST_SHARE)
    most = everything + chain.stages * (room // slots + 1) if inflate else max(1, budget_bytes)
    for part in range(8, -1, -1):
        found = make_slots(chain, room + (most - room) * part // 8, room, slots)
        size = table_bytes(chain.stages, variant, found.most)
        if size <= LARGEST_TABLE:
            return Sizing(found, size)
    mebibytes = size >> 20
    table = f"a table of {chain.stages} stages and {found.most} slots takes {mebibytes} MiB"
    less = "fewer slots take" if variant in ("persistent", "no-fall") else "fewer slots or variant=persistent take"
    return f"{table}, more than {LARGEST_TABLE >> 20} MiB: {less} less"


def plans(
    table: Table, budget_bytes: int, spell: Callable[[Sequence[Action]], list[int]], fits: Callable[[list[int]], bool]
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
