"""Schedules to hints and solutions to schedules, for Moccasin's model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from remat_cli.core.problem import Problem
from remat_cli.solvers._moccasin.model import Computation, MoccasinModel


def _placed(
    problem: Problem, ops: list[int], events: list[int], horizon: int
) -> tuple[list[list[int]], list[list[int]], dict[tuple[int, int, int], int]]:
    """Follow a sequence of ops at these events; reads take the newest instance, kept tensors end at the horizon.

    `starts[v]` are the events of op v's computations; `ends[x][i]` the last read of instance i of tensor x;
    `sources[v, i, x]` the instance of x that computation i of op v reads.
    """
    starts: list[list[int]] = [[] for _ in problem.ops]
    ends: list[list[int]] = [[] for _ in problem.tensors]
    sources: dict[tuple[int, int, int], int] = {}
    for event, op in sorted(zip(events, ops, strict=True)):
        for tensor in problem.ops[op].inputs:
            sources[op, len(starts[op]), tensor] = len(ends[tensor]) - 1
            if ends[tensor]:
                ends[tensor][-1] = event
        starts[op].append(event)
        for tensor in problem.ops[op].outputs:
            ends[tensor].append(event)
    for tensor, spec in enumerate(problem.tensors):
        if spec.kept and ends[tensor]:
            ends[tensor][-1] = horizon
    return starts, ends, sources


def add_hint(model: MoccasinModel, ops: list[int], events: list[int], capacity: int) -> None:
    """Hint every variable of the model from a schedule whose peak is `capacity` byte units."""
    starts, ends, sources = _placed(model.problem, ops, events, model.clock.horizon)
    model.cp.add_hint(model.capacity, capacity)
    for op, copies in enumerate(model.computations):
        for copy, made in enumerate(copies):
            _hint_computation(model.cp, made, starts[op][copy : copy + 1])
    for tensor, family in enumerate(model.retentions):
        producer = model.problem.tensors[tensor].producer
        lives = list(zip(starts[producer], ends[tensor], strict=True))
        for copy, (made, held) in enumerate(zip(model.computations[producer], family, strict=True)):
            earliest = made.start.window.earliest  # an absent instance may have any life; it gets the shortest
            start, end = lives[copy] if copy < len(lives) else (earliest, earliest)
            model.cp.add_hint(held.end, end)
            if held.length is not None:
                model.cp.add_hint(held.length, end + 1 - start)
            if held.kept is not None:
                model.cp.add_hint(held.kept, copy == len(lives) - 1)
    for pair in model.pairs:
        is_source = sources.get((pair.reader, pair.reader_copy, pair.tensor)) == pair.copy
        model.cp.add_hint(pair.literal, is_source)


def _hint_computation(cp: Any, made: Computation, event: list[int]) -> None:
    if made.present is not None:
        cp.add_hint(made.present, bool(event))
    window = made.start.window
    if made.start.key is not None:
        cp.add_hint(made.start.key, (event[0] - window.offset) // window.scale if event else window.keys[0])


def read_ops(model: MoccasinModel, value: Callable[[Any], int]) -> list[int]:
    """Ops of the present computations of a solution, in the order of their events."""
    found = []
    for copies in model.computations:
        for made in copies:
            if made.present is None or value(made.present):
                found.append((value(made.start.event), made.op))
    return [op for _, op in sorted(found)]
