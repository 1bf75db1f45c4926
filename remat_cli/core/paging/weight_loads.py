"""From sessions whose weights page to what each is opened from, and what a memory then no longer holds all through."""

from collections.abc import Iterable, Sequence

import msgspec

from remat_cli.core.paging.weight_paging import WeightPaging
from remat_cli.core.schedule.plan import Compute, Plan
from remat_cli.core.schedule.problem import Problem


class Load(msgspec.Struct, frozen=True):
    """What a session is opened from: numbers of weights that it packs, and of those that it reads where they are.

    `packed_bytes` is the most that its own copies take.
    """

    session: int
    packed: tuple[int, ...]
    plain: tuple[int, ...]
    packed_image_bytes: int
    plain_image_bytes: int
    packed_bytes: int


def loads_of(problem: Problem, plan: Plan, groups: Sequence[Sequence[int]], paging: WeightPaging) -> tuple[Load, ...]:
    """What each session whose weights page is opened from, in order; every op packs a copy of its own at worst.

    Of other weights it makes its own copies again each time, as far as it makes any.
    """
    hosted = {each.weight: each for each in paging.weights}
    found = []
    for session in paging.sessions:
        all_reads = _reads(problem, plan, groups[session])
        reads = [weight for weight in all_reads if weight in hosted]
        others = sum(problem.weight_bytes[weight] for weight in all_reads if weight not in hosted)
        mine = tuple(dict.fromkeys(reads))
        packed = tuple(weight for weight in mine if hosted[weight].packed_bytes)
        plain = tuple(weight for weight in mine if not hosted[weight].packed_bytes)
        found.append(
            Load(
                session=session,
                packed=packed,
                plain=plain,
                packed_image_bytes=sum(hosted[weight].image_bytes for weight in packed),
                plain_image_bytes=sum(hosted[weight].image_bytes for weight in plain),
                packed_bytes=sum(hosted[weight].packed_bytes for weight in reads) + others,
            )
        )
    return tuple(found)


def released_bytes(problem: Problem, plan: Plan, groups: Sequence[Sequence[int]], paging: WeightPaging) -> int:
    """What of a memory's fixed part is no longer there all through: weights that only those sessions read.

    What is fixed was measured, and is less than all weights where some have the same contents and were packed once; but
    sessions share nothing, so the weights that stay are no less than they are.
    """
    away = set(paging.sessions)
    stay = {w for number, group in enumerate(groups) if number not in away for w in _reads(problem, plan, group)}
    gone = {w for number in away for w in _reads(problem, plan, groups[number])}
    hosted = {each.weight for each in paging.weights}
    released = gone & hosted - stay
    staying = sum(size for weight, size in enumerate(problem.weight_bytes) if weight not in released)
    most = max(0, problem.memories[0].fixed_bytes - staying)
    return min(most, sum(problem.weight_bytes[weight] for weight in released))


def weights_read(problem: Problem, plan: Plan, groups: Sequence[Sequence[int]]) -> dict[int, tuple[int, ...]]:
    """The weights that each session reads, by its number."""
    return {number: tuple(dict.fromkeys(_reads(problem, plan, group))) for number, group in enumerate(groups)}


def _reads(problem: Problem, plan: Plan, group: Iterable[int]) -> list[int]:
    """Weights by op, as often as ops read them."""
    steps = (plan.schedule.steps[number] for number in group)
    return [weight for step in steps if isinstance(step, Compute) for weight in problem.ops[step.op].weights]
