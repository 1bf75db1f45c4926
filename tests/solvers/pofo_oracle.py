"""POFO's model by its definition: what a plan takes, and every plan there is; shares no code with the program.

A plan is a forward sweep, a backward sweep, and the stages whose kept copies are paged. All transfers pause at the
loss: writes end before, reads start after. Bytes are free as soon as they are written, and taken only as they are read;
what an operation uses is there in full.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from remat_cli.solvers.chains.actions import Action, Chain
from remat_cli.solvers.published._pofo.paged_chain import PagedChain


class Plan(NamedTuple):
    forward: tuple[Action, ...]
    backward: tuple[Action, ...]
    paged: tuple[int, ...]


class Op(NamedTuple):
    """How long it takes, bytes besides what is stored, what is stored meanwhile (by number), and what it makes."""

    time: int
    extra: int
    stored: frozenset[int]
    uses: frozenset[int]


def makespan(chain: PagedChain, plan: Plan) -> Fraction | None:
    """The time that a plan takes; None where it does not fit."""
    ops, sizes, copies = _ops(chain.chain, plan)
    turn = len(plan.forward)
    paged = {copies[stage] for stage in plan.paged}
    after = {copy: max((o for o in range(turn) if copy in ops[o].uses), default=-1) for copy in paged}
    since = {copy: next((o for o in range(turn) if copy in ops[o].stored), 0) for copy in paged}
    since = {copy: -1 if copy == 0 else made for copy, made in since.items()}
    needed = {copy: min(o for o in range(turn, len(ops)) if copy in ops[o].uses) for copy in paged}
    mirrored = {copy: len(ops) - 1 - first for copy, first in needed.items()}
    link = chain.link
    write, read = Fraction(link.write_bytes, link.per_ns), Fraction(link.read_bytes, link.per_ns)
    out = _sweep(ops[:turn], (since, after), sizes, (chain.budget_bytes, write))
    back = _sweep(ops[turn:][::-1], (mirrored, mirrored), sizes, (chain.budget_bytes, read))
    return None if out is None or back is None else out + back


def _sweep(
    ops: Sequence[Op], when: tuple[dict[int, int], dict[int, int]], sizes: Sequence[int], what: tuple[int, Fraction]
) -> Fraction | None:
    """Until all that is paged has been moved: `when` it may go, and when nothing uses it any more."""
    (since, after), (budget, rate) = when, what
    now, queue = Fraction(0), []
    left = {copy: Fraction(sizes[copy]) for copy in since}
    for number, op in enumerate(ops):
        queue += sorted(copy for copy in since if since[copy] == number - 1)
        gone = {copy for copy in after if after[copy] < number}
        stored = sum(sizes[each] for each in op.stored - gone) + op.extra
        pending = sum(left[copy] for copy in gone)
        wait = max(Fraction(0), pending - (budget - stored)) / rate
        if stored > budget:
            return None
        now += wait + op.time
        moved = (wait + op.time) * rate
        for copy in queue:
            part = min(moved, left[copy])
            left[copy], moved = left[copy] - part, moved - part
    return now + sum(left.values()) / rate


def _ops(chain: Chain, plan: Plan) -> tuple[list[Op], list[int], dict[int, int]]:
    """Each operation, sizes of all that is ever stored, and what is stored of each stage at the turn."""
    sizes, where, ops = [chain.value_bytes[0]], {0: 0}, []
    gradient, copies = None, {}
    for number, action in enumerate((*plan.forward, *plan.backward)):
        if number == len(plan.forward):
            copies = dict(where)
        stage = action.stage
        if action.kind == "back":
            stored = frozenset({*where.values()} | ({gradient} if gradient is not None else set()))
            extra = chain.gradient_bytes[stage - 1] + chain.backward_extra_bytes[stage]
            uses = frozenset({where[stage - 1], where[stage]})
            ops.append(Op(chain.backward_ns[stage], extra, stored, uses))
            sizes.append(chain.gradient_bytes[stage - 1])
            gradient = len(sizes) - 1
            del where[stage]
            if stage - 1 not in {a.stage for a in _stored_whole(plan, number)}:
                where.pop(stage - 1)
            continue
        is_all = action.kind == "all"
        size = (chain.saved_bytes if is_all else chain.value_bytes)[stage]
        extra = (chain.saving_extra_bytes if is_all else chain.forward_extra_bytes)[stage]
        uses = frozenset({where[stage - 1]})
        sizes.append(size)
        where[stage] = len(sizes) - 1
        stored = frozenset({*where.values()} | ({gradient} if gradient is not None else set()))
        ops.append(Op(chain.forward_ns[stage], extra, stored, uses))
        if action.kind == "move":
            del where[stage - 1]
    return ops, sizes, copies


def _stored_whole(plan: Plan, number: int) -> Iterator[Action]:
    """Stages whose last forward before an operation made all that the backward needs."""
    newest: dict[int, Action] = {}
    for action in (*plan.forward, *plan.backward)[:number]:
        if action.kind != "back":
            newest[action.stage] = action
    return (action for action in newest.values() if action.kind == "all")


def every_plan(stages: int) -> Iterator[Plan]:
    """All plans of the class, for so many stages, the loss among them."""
    for forward, returns, inputs in _forwards(1, stages):
        backward = tuple(itertools.chain.from_iterable(reversed(returns)))
        for count in range(len(inputs) + 1):
            for paged in itertools.combinations(inputs, count):
                yield Plan(forward, backward, paged)


def _forwards(s: int, n: int) -> Iterator[tuple[tuple[Action, ...], list[tuple[Action, ...]], list[int]]]:
    """From stage s on: the sweep, what each of its parts does in the backward sweep, the stages kept for it."""
    if s == n:
        yield (Action("all", n),), [(Action("back", n),)], []
        return
    for forward, returns, inputs in _forwards(s + 1, n):
        yield (Action("all", s), *forward), [(Action("back", s),), *returns], [s - 1, *inputs]
    for end in range(s, n):
        for block in _blocks(s, end):
            for forward, returns, inputs in _forwards(end + 1, n):
                yield (*_run(s, end), *forward), [block, *returns], [s - 1, *inputs]


def _blocks(s: int, t: int) -> Iterator[tuple[Action, ...]]:
    if s == t:
        yield Action("all", s), Action("back", s)
        return
    for inner in _blocks(s + 1, t):
        yield (Action("all", s), *inner, Action("back", s))
    for end in range(s, t):
        for second in _blocks(end + 1, t):
            for first in _blocks(s, end):
                yield (*_run(s, end), *second, *first)


def _run(first: int, last: int) -> tuple[Action, ...]:
    return (Action("keep", first), *(Action("move", stage) for stage in range(first + 1, last + 1)))
