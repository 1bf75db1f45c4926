"""A plan of one device as sessions whose values may wait in a larger memory: what is judged is what is run.

A session holds what it is given until it ends, and makes what outlives it as buffers of its own. So the steps that are
paged are whole sessions, and the tensors are the values that pass between them.
"""

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from remat_cli.core.graph import Graph
from remat_cli.core.paging import Link, PagedProblem, PagedTensor
from remat_cli.core.plan import Plan
from remat_cli.core.problem import Problem, device_tensor_ids
from remat_cli.core.segments import Cut, Segment, cut_at
from remat_cli.core.timeline import step_ns

END_NS = 1


class PagedSessions(msgspec.Struct, frozen=True):
    """Sessions, and how they are paged: step s of the problem is session s, tensor t the plan's `instances[t]`.

    One more step of a nanosecond is the end, when all outputs are handed over: until then they may be away too.
    """

    cut: Cut
    problem: PagedProblem
    instances: tuple[int, ...]


class SessionCosts(msgspec.Struct, frozen=True):
    """What sessions cost beyond their ops: `call_ns` each, and `sizes` bytes of each tensor in a buffer of its own."""

    sizes: tuple[int, ...]
    call_ns: int = 0


def own_sizes(graph: Graph, problem: Problem) -> tuple[int, ...]:
    """Bytes of each tensor of a graph's problem in a buffer of its own."""
    return tuple(graph.tensors[tensor].size_bytes for tensor in device_tensor_ids(graph, problem))


def grouped(problem: Problem, plan: Plan, most_ns: int) -> tuple[int, ...]:
    """First steps of sessions of about so many nanoseconds each, two at most where a cut would cost a buffer.

    A session does not end where the next op works in place on what it made, or views it: both would then be held.
    """
    firsts, spent = [0], 0
    for number, step in enumerate(plan.schedule.steps):
        is_full = spent >= most_ns if not _is_continued(plan, number, firsts[-1]) else spent >= 2 * most_ns
        if number and is_full:
            firsts.append(number)
            spent = 0
        spent += step_ns(problem, step)
    return tuple(firsts)


def _is_continued(plan: Plan, number: int, first: int) -> bool:
    """Whether a step works in the storage of what was made since step `first`."""
    storages = {plan.instances[value].storage for value in plan.makes[number]}
    reads = (plan.instances[value] for value in plan.reads[number])
    return any(value.storage in storages and value.birth >= first for value in reads)


def paged_sessions(
    problem: Problem, plan: Plan, firsts: Sequence[int], link: Link, costs: SessionCosts
) -> PagedSessions:
    """Sessions that begin at these steps, with all that may be paged between them."""
    steps = plan.schedule.steps
    groups = [tuple(range(a, b)) for a, b in zip(firsts, (*firsts[1:], len(steps)), strict=True)]
    cut, inner = cut_at(problem, plan, groups, costs.sizes)
    uses: dict[int, list[int]] = defaultdict(list)
    for number, session in enumerate(cut.actions):
        assert isinstance(session, Segment)
        for instance in (*session.imports, *session.exports):
            uses[instance].append(number)
    newest = {instance.tensor: number for number, instance in enumerate(plan.instances)}
    for tensor, instance in newest.items():
        if problem.tensors[tensor].kept:
            uses[instance].append(len(groups))
    tensors = tuple(PagedTensor(costs.sizes[plan.instances[each].tensor], tuple(used)) for each, used in uses.items())
    judged = PagedProblem(
        durations_ns=(
            *(max(1, sum(step_ns(problem, steps[s]) for s in group) + costs.call_ns) for group in groups),
            END_NS,
        ),
        workspace_bytes=(*inner, 0),
        tensors=tensors,
        budget_bytes=problem.memories[0].free_bytes,
        link=link,
    )
    return PagedSessions(cut, judged, tuple(uses))
