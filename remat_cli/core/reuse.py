"""What a session holds that uses dead buffers again: the runtime keeps them for later tensors of the same shape."""

from collections.abc import Hashable, Sequence

from remat_cli.core.plan import Plan

Kind = Hashable | None
"""Shape and element size of a tensor where the runtime knows them before a run; None: it does not."""


def held_for_later(plan: Plan, size_bytes: Sequence[int], kinds: Sequence[Kind]) -> list[int]:
    """Bytes that a session holds during each step of a plan beyond the judge's, dead buffers kept for later tensors.

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
    dying: list[list[int]] = [[] for _ in range(steps)]
    for storage, value in first.items():
        born[plan.instances[value].birth].append(storage)
        dying[death[storage]].append(storage)
    change, waiting = [0] * (steps + 1), dict[Kind, list[int]]()
    for step in range(steps):
        for storage in born[step]:
            kind = kinds[first[storage]]
            if kind is not None and waiting.get(kind):
                old = waiting[kind].pop()
                change[death[old] + 1] += size_bytes[first[old]]
                change[step] -= size_bytes[first[old]]
        for storage in dying[step]:
            kind = kinds[first[storage]]
            if kind is not None:
                waiting.setdefault(kind, []).append(storage)
    held, total = [], 0
    for delta in change[:-1]:
        total += delta
        held.append(total)
    return held
