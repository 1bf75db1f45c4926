"""Time domains of Moccasin: which event numbers a computation may start at.

Bartan et al., "Moccasin: Efficient Tensor Rematerialization for Neural Networks", ICML 2023, sections 2.1 and 2.3.
An event is a place for one computation. Staged domains fix the order of first computations: stage j holds
recomputes of ops before j, in index order, and then the first computation of op j.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers._precedence import make_events
from remat_cli.solvers.base import Order

Domain = Literal["uniform", "triangular"]


@dataclass(frozen=True)
class EventRange:
    """Events `scale * key + offset` for the allowed keys, in rising order."""

    keys: range | tuple[int, ...]
    scale: int = 1
    offset: int = 0

    @property
    def earliest(self) -> int:
        """First allowed event."""
        return self.scale * self.keys[0] + self.offset

    @property
    def latest(self) -> int:
        """Last allowed event."""
        return self.scale * self.keys[-1] + self.offset


@dataclass(frozen=True)
class Calendar:
    """All start windows of a problem.

    `first[v]` and `later[v]` are the windows of op v's first computation and of its recomputes (None: recomputing it
    is impossible or useless); `copies[v]` is C_v. `stage_base[j]` is the event number of op 0 in stage j; None in free
    order. Kept tensors end at `horizon`. `is_capped` says whether C_v leaves out schedules of the order's space.
    """

    horizon: int
    first: tuple[EventRange, ...]
    later: tuple[EventRange | None, ...]
    copies: tuple[int, ...]
    stage_base: tuple[int, ...] | None
    is_capped: bool

    def events(self, ops: list[int]) -> list[int] | None:
        """Event numbers of a sequence of steps, None if the domain has no place for one of them.

        In staged domains a step belongs to the stage of the next first computation; steps of a stage may come in any
        order here, their event numbers follow the op index.
        """
        counts = Counter(ops)
        if any(counts[op] > copies for op, copies in enumerate(self.copies)) or len(ops) > self.horizon:
            return None
        if self.stage_base is None:
            return list(range(len(ops)))
        stage, events = 0, []
        for op in ops:
            if stage == len(self.stage_base) or op > stage:
                return None
            events.append(self.stage_base[stage] + op)
            stage += op == stage
        return events if len(set(events)) == len(events) else None


def make_clock(problem: Problem, order: Order, domain: Domain, caps: list[int]) -> Calendar:
    """The windows for an order (`keep`: staged) and a cap on the computations of each op."""
    if order == "free":
        # Events 0..H-1, H the number of computations allowed; first computations leave room for ancestors,
        # descendants.
        count = len(problem.ops)
        events = make_events(problem, range(count))
        kept = [any(problem.tensors[tensor].kept for tensor in op.outputs) for op in problem.ops]
        copies = tuple(
            caps[v] if op.repeatable and (events.after[v] or kept[v]) else 1 for v, op in enumerate(problem.ops)
        )
        horizon = sum(copies)
        early = [bits.bit_count() for bits in events.before]
        late = [horizon - 1 - bits.bit_count() for bits in events.after]
        return Calendar(
            horizon=horizon,
            first=tuple(EventRange(range(early[v], late[v] + 1)) for v in range(count)),
            later=tuple(EventRange(range(early[v] + 1, horizon)) if copies[v] > 1 else None for v in range(count)),
            copies=copies,
            stage_base=None,
            is_capped=any(number > 1 for number in copies),
        )
    count = len(problem.ops)
    last = last_useful_stages(problem)
    stages = tuple(range(v + 1, last[v] + 1) if op.repeatable else range(0) for v, op in enumerate(problem.ops))
    copies = tuple(min(cap, 1 + len(choices)) for cap, choices in zip(caps, stages, strict=True))
    base = tuple(count * j if domain == "uniform" else j * (j + 1) // 2 for j in range(count + 1))
    return Calendar(
        horizon=base[count],
        first=tuple(EventRange(range(base[op] + op, base[op] + op + 1)) for op in range(count)),
        later=tuple(_later_window(op, choices, base, domain) for op, choices in enumerate(stages)),
        copies=copies,
        stage_base=base[:count],
        is_capped=any(1 + len(choices) > cap for cap, choices in zip(caps, stages, strict=True)),
    )


def last_useful_stages(problem: Problem) -> list[int]:
    """For each op the last stage in which its results can still be read: the stage of its last descendant."""
    last = list(range(len(problem.ops)))
    for reader in reversed(range(len(problem.ops))):
        if any(problem.tensors[tensor].kept for tensor in problem.ops[reader].outputs):
            last[reader] = len(problem.ops) - 1
        for tensor in problem.ops[reader].inputs:
            producer = problem.tensors[tensor].producer
            last[producer] = max(last[producer], last[reader])
    return last


def _later_window(op: int, stages: range, base: tuple[int, ...], domain: Domain) -> EventRange | None:
    if not stages:
        return None
    if domain == "uniform":  # linear in the stage: no table is needed to link the two
        return EventRange(stages, scale=base[1], offset=op)
    return EventRange(tuple(base[stage] + op for stage in stages))
