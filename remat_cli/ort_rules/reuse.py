"""What a session holds that uses dead buffers again: the runtime keeps them for later tensors of the same shape."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from remat_cli.core.schedule.plan import Plan

Kind = Hashable | None
"""Shape and element size of a tensor where the runtime knows them before a run; None: it does not."""


@dataclass(frozen=True)
class KeptBuffers:
    """By step: bytes held beyond the judge's, and bytes of results that go into a buffer which was kept for them.

    `takes_over` is, by storage that goes into a kept buffer, the storage that had the buffer before.
    """

    held_bytes: tuple[int, ...]
    reused_bytes: tuple[int, ...]
    takes_over: tuple[tuple[int, int], ...] = ()


def kept_buffers(plan: Plan, size_bytes: Sequence[int], kinds: Sequence[Kind]) -> KeptBuffers:
    """What a session keeps of dead buffers for later tensors, in each step of a plan.

    `size_bytes` and `kinds` are those of the plan's instances. A new buffer takes the one of its kind that died last,
    which was then never freed in between (`FindReusableTensor` in the runtime's allocation planner).
    """
    steps = len(plan.schedule.steps)
    first: dict[int, int] = {}
    death: dict[int, int] = {}
    for value, instance in enumerate(plan.instances):
        first.setdefault(instance.storage, value)
        death[instance.storage] = max(death.get(instance.storage, 0), instance.death)
    born: list[list[int]] = [[] for _ in range(steps)]
    for storage, value in first.items():
        born[plan.instances[value].birth].append(storage)
    change, reused, waiting = [0] * (steps + 1), [0] * steps, dict[Kind, list[int]]()
    takes_over: list[tuple[int, int]] = []
    for step in range(steps):
        for storage in born[step]:
            kind = kinds[first[storage]]
            if kind is not None and waiting.get(kind):
                old = waiting[kind].pop()
                takes_over.append((storage, old))
                change[death[old] + 1] += size_bytes[first[old]]
                change[step] -= size_bytes[first[old]]
                reused[step] += size_bytes[first[old]]
        # What an op reads dies in the order of its inputs, before results that nobody reads.
        used = dict.fromkeys(plan.instances[value].storage for value in (*plan.reads[step], *plan.makes[step]))
        for storage in used:
            kind = kinds[first[storage]]
            if kind is not None and death[storage] == step:
                waiting.setdefault(kind, []).append(storage)
    return KeptBuffers(tuple(accumulate(change[:-1])), tuple(reused), tuple(takes_over))
