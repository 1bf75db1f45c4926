"""Who reads what, and which ops come before and after others in every order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from remat_cli.core.schedule.problem import Problem


def readers_of(problem: Problem) -> list[list[int]]:
    """For each tensor the ops that read it, rising, each once."""
    readers: list[list[int]] = [[] for _ in problem.tensors]
    for op, spec in enumerate(problem.ops):
        for tensor in dict.fromkeys(spec.inputs):
            readers[tensor].append(op)
    return readers


@dataclass(frozen=True)
class Events:
    """Chosen ops in baseline order. Bit i of `before[v]`: events[i] is an ancestor of op v; of `after[v]`: its heir."""

    events: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]


def make_events(problem: Problem, chosen: Sequence[int]) -> Events:
    """Linear in the size of the problem times the number of machine words for the events."""
    bit = {op: 1 << i for i, op in enumerate(chosen)}
    before, after = [0] * len(problem.ops), [0] * len(problem.ops)
    producers = [{problem.tensors[tensor].producer for tensor in op.inputs} for op in problem.ops]
    for op, sources in enumerate(producers):
        for source in sources:
            before[op] |= before[source] | bit.get(source, 0)
    for op in reversed(range(len(producers))):
        for source in producers[op]:
            after[source] |= after[op] | bit.get(op, 0)
    return Events(tuple(chosen), tuple(before), tuple(after))


def bits_of(items: int) -> Iterator[int]:
    """The numbers in a bit set, in rising order."""
    while items:
        low = items & -items
        yield low.bit_length() - 1
        items ^= low
