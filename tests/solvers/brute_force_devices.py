"""Exact optima of tiny problems with several devices by exhaustive search; shares no code with the solvers.

Dijkstra over what each memory holds and which ops have run. A value is dropped only when a step needs its room: what
is dropped unread since then was dead since its last read, so this is the judge's memory. Values share no storage here.
A tensor that is kept must be there at the end where its newest instance was made, as the judge has it; in `staged` and
`no_room`, where copies are dropped at once, in any memory.

Spaces: `free`; `first_in_order`; `staged`: first computations in order, before each of them every earlier op at most
once on each device, in the order of ops and then devices; what a compute lacks is copied for it alone. `no_room` is
`staged` but such copies take no memory (no schedule realises it).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from remat_cli.core.schedule.plan import Compute, Copy, Schedule, Step
from remat_cli.core.schedule.problem import Problem

SPACES = ("free", "first_in_order", "staged", "no_room")
Held = frozenset[tuple[int, int]]
"""(memory, tensor) pairs."""


@dataclass(frozen=True)
class Rules:
    """Where to search. Cost is time plus `energy_weight` per nanojoule; limits are in nanojoules.

    `energy_limit_nj` holds per device and run, `stage_limit_nj` per device and stage, `total_stage_limit_nj` per stage
    over all devices.
    """

    space: str = "free"
    energy_weight: int = 0
    energy_limit_nj: int | None = None
    stage_limit_nj: int | None = None
    total_stage_limit_nj: int | None = None


@dataclass(frozen=True, order=True)
class State:
    """`newest` says in which memories a kept tensor may be at the end; `position` is the last recompute of the stage.

    `last` is the device of the last compute where that matters, `spent` what each device has taken in the run and in
    this stage, where that is limited.
    """

    held: tuple[tuple[int, int], ...]
    ran: int
    newest: tuple[tuple[int, tuple[int, ...]], ...]
    position: tuple[int, int] = (-1, -1)
    last: int = -1
    spent: tuple[int, ...] = ()
    stage_spent: tuple[int, ...] = ()


@dataclass(frozen=True)
class Move:
    """Steps that happen together: a step, in `staged` with the copies for it. `extra` is room besides `needs`."""

    steps: tuple[Step, ...]
    needs: Held
    makes: Held
    extra: tuple[int, int]


def optimum(problem: Problem, rules: Rules | str = "free") -> tuple[int, Schedule] | None:
    """Least cost and a best schedule within the budgets; None if there is none."""
    rules = Rules(rules) if isinstance(rules, str) else rules
    shares = any(t.view_of is not None for t in problem.tensors) or any(op.in_place for op in problem.ops)
    if problem.overlap or shares:
        raise ValueError("no overlap, views or in-place results here")
    answers = [_dijkstra(limited, rules) for limited in _with_weights(problem)]
    return min((answer for answer in answers if answer is not None), key=lambda answer: answer[0], default=None)


def _with_weights(problem: Problem) -> Iterator[Problem]:
    """The problem for every choice of which memory holds which weight; ops run only where their weights are."""
    places = list(itertools.product(range(len(problem.memories)), range(len(problem.weight_bytes))))
    if len(problem.memories) == 1 or not places:
        yield problem
        return
    for mask in itertools.product((False, True), repeat=len(places)):
        chosen = set(itertools.compress(places, mask))
        yield from _limited(problem, chosen)


def _limited(problem: Problem, chosen: set[tuple[int, int]]) -> Iterator[Problem]:
    """The problem with these (memory, weight) pairs in place, unless some op then runs nowhere."""
    memories = []
    for index, memory in enumerate(problem.memories):
        weights = sum(problem.weight_bytes[weight] for home, weight in chosen if home == index)
        memories.append(msgspec.structs.replace(memory, fixed_bytes=memory.fixed_bytes + weights))
    ops = []
    for op in problem.ops:
        here = [all((device.memory, weight) in chosen for weight in op.weights) for device in problem.devices]
        times = tuple(time if there else None for time, there in zip(op.time_ns, here, strict=True))
        if all(time is None for time in times):
            return
        ops.append(msgspec.structs.replace(op, time_ns=times))
    yield msgspec.structs.replace(problem, memories=tuple(memories), ops=tuple(ops), weight_bytes=())


def _dijkstra(problem: Problem, rules: Rules) -> tuple[int, Schedule] | None:
    is_limited = rules.energy_limit_nj is not None
    is_stage_limited = rules.stage_limit_nj is not None or rules.total_stage_limit_nj is not None
    none = (0,) * len(problem.devices)
    start = State((), 0, (), spent=none if is_limited else (), stage_spent=none if is_stage_limited else ())
    heap: list[tuple[int, int, State, tuple[Step, ...]]] = [(0, 0, start, ())]
    done: set[State] = set()
    ticket = itertools.count(1)
    while heap:
        cost, _, state, steps = heapq.heappop(heap)
        if state in done:
            continue
        done.add(state)
        if _is_complete(problem, state):
            return cost, Schedule(steps)
        for move in _moves(problem, state, rules.space):
            more, energy = _cost(problem, state, move)
            for after in _after(problem, rules, state, move, energy):
                if after not in done:
                    price = cost + more + rules.energy_weight * sum(energy)
                    heapq.heappush(heap, (price, next(ticket), after, (*steps, *move.steps)))
    return None


def _is_complete(problem: Problem, state: State) -> bool:
    if state.ran != (1 << len(problem.ops)) - 1:
        return False
    there = set(state.held)
    return all(any((memory, tensor) in there for memory in memories) for tensor, memories in state.newest)


def _moves(problem: Problem, state: State, space: str) -> Iterator[Move]:
    held, count = set(state.held), len(problem.ops)
    stage = next((op for op in range(count) if not state.ran >> op & 1), count)
    is_staged = space in ("staged", "no_room")
    if is_staged and stage == count:
        return
    for op, device in itertools.product(range(count), range(len(problem.devices))):
        is_first = not state.ran >> op & 1
        if problem.ops[op].time_ns[device] is None or (not is_first and not problem.ops[op].repeatable):
            continue
        if space != "free" and op > stage:
            continue
        if is_staged and not is_first and (op, device) <= state.position:
            continue
        yield from _computes(problem, held, op, device, space)
    if not is_staged:
        yield from _copies(problem, held)


def _computes(problem: Problem, held: set[tuple[int, int]], op: int, device: int, space: str) -> Iterator[Move]:
    """The op on the device; in `staged` for every choice of where to copy from what its memory lacks."""
    spec, memory = problem.ops[op], problem.devices[device].memory
    missing = {x for x in spec.inputs if (memory, x) not in held}
    if missing and space not in ("staged", "no_room"):
        return
    makes = frozenset((memory, x) for x in spec.outputs)
    for fetched in _fetches(spec.inputs, missing, space):
        local = {(memory, x) for x in spec.inputs if x not in fetched}
        staged = 0 if space == "no_room" else sum(problem.tensors[x].size_bytes for x in fetched)
        extra = (memory, staged + spec.workspace_bytes[device])
        for chosen in itertools.product(*(_sources(problem, held, device, x) for x in fetched)):
            remote = {(problem.devices[s].memory, x) for s, x in zip(chosen, fetched, strict=True)}
            copies = tuple(Copy(x, s, device) for s, x in zip(chosen, fetched, strict=True))
            yield Move((*copies, Compute(op, device)), frozenset(local | remote), makes, extra)


def _fetches(inputs: tuple[int, ...], missing: set[int], space: str) -> Iterator[list[int]]:
    """What to copy: what is missing; where copies take no room, perhaps also what is there, which then may go."""
    present = [x for x in inputs if x not in missing]
    for count in range(len(present) + 1 if space == "no_room" else 1):
        for more in itertools.combinations(present, count):
            yield sorted({*missing, *more})


def _copies(problem: Problem, held: set[tuple[int, int]]) -> Iterator[Move]:
    devices = range(len(problem.devices))
    for (memory, tensor), source, target in itertools.product(sorted(held), devices, devices):
        goal = (problem.devices[target].memory, tensor)
        if (memory, tensor) in _reachable(problem, source, target, tensor) and goal not in held:
            step = (Copy(tensor, source, target),)
            yield Move(step, frozenset({(memory, tensor)}), frozenset({goal}), (memory, 0))


def _sources(problem: Problem, held: set[tuple[int, int]], target: int, tensor: int) -> list[int]:
    """Devices from whose memory a tensor can be copied to another device."""
    devices = range(len(problem.devices))
    return [s for s in devices if any(value in held for value in _reachable(problem, s, target, tensor))]


def _reachable(problem: Problem, source: int, target: int, tensor: int) -> Held:
    """What can be copied so: the tensor in the memory of the source, or nothing."""
    home, goal = problem.devices[source].memory, problem.devices[target].memory
    if home == goal or problem.copy_ns[source][target][tensor] is None:
        return frozenset()
    return frozenset({(home, tensor)})


def _cost(problem: Problem, state: State, move: Move) -> tuple[int, list[int]]:
    """Time, and energy by device, of a move."""
    total, energy = 0, [0] * len(problem.devices)
    for step in move.steps:
        if isinstance(step, Copy):
            total += problem.copy_ns[step.source][step.target][step.tensor]
            if problem.copy_energy_nj:
                energy[step.source] += problem.copy_energy_nj[step.source][step.target][step.tensor]
            continue
        op = problem.ops[step.op]
        total += op.time_ns[step.device]
        total += problem.devices[step.device].call_ns if state.last not in (-1, step.device) else 0
        energy[step.device] += op.energy_nj[step.device] if op.energy_nj else 0
    return total, energy


def _after(problem: Problem, rules: Rules, state: State, move: Move, energy: list[int]) -> Iterator[State]:
    """States after a move, one for each way of making room for it."""
    step, is_staged = move.steps[-1], rules.space in ("staged", "no_room")
    ran, position, last = state.ran, state.position, state.last
    is_first = isinstance(step, Compute) and not ran >> step.op & 1
    if isinstance(step, Compute):
        ran |= 1 << step.op
        position = (-1, -1) if is_first or not is_staged else (step.op, step.device)
        last = step.device if any(device.call_ns for device in problem.devices) else -1
    spent = tuple(a + b for a, b in zip(state.spent, energy, strict=False))
    stage_spent = tuple(a + b for a, b in zip(state.stage_spent, energy, strict=False))
    if not _is_affordable(rules, spent, stage_spent):
        return
    stage_spent = (0,) * len(stage_spent) if is_first else stage_spent
    newest = dict(state.newest)
    anywhere = tuple(range(len(problem.memories)))
    made = {tensor: anywhere if is_staged else (memory,) for memory, tensor in move.makes}
    newest |= {tensor: memories for tensor, memories in made.items() if problem.tensors[tensor].kept}
    for held in _rooms(problem, frozenset(state.held), move):
        yield State(tuple(sorted(held)), ran, tuple(sorted(newest.items())), position, last, spent, stage_spent)


def _is_affordable(rules: Rules, spent: tuple[int, ...], stage_spent: tuple[int, ...]) -> bool:
    checks = [
        (max(spent, default=0), rules.energy_limit_nj),
        (max(stage_spent, default=0), rules.stage_limit_nj),
        (sum(stage_spent), rules.total_stage_limit_nj),
    ]
    return all(limit is None or amount <= limit for amount, limit in checks)


def _rooms(problem: Problem, held: Held, move: Move) -> Iterator[Held]:
    """What is held after a move, for every least set of values to drop so that it fits."""
    must = move.needs | move.makes
    options = [_fits(problem, memory, held, must, move.extra) for memory in range(len(problem.memories))]
    for choice in itertools.product(*options):
        yield must | frozenset().union(*choice)


def _fits(problem: Problem, memory: int, held: Held, must: Held, extra: tuple[int, int]) -> list[Held]:
    """The largest sets of values in a memory that may stay beside what must be there."""
    room = problem.memories[memory].free_bytes - (extra[1] if extra[0] == memory else 0)
    room -= sum(problem.tensors[tensor].size_bytes for home, tensor in must if home == memory)
    others = sorted(value for value in held - must if value[0] == memory)
    found: list[Held] = []
    for size in range(len(others), -1, -1):
        for stay in map(frozenset, itertools.combinations(others, size)):
            is_small = sum(problem.tensors[tensor].size_bytes for _, tensor in stay) <= room
            if is_small and not any(stay < larger for larger in found):
                found.append(stay)
    return found
