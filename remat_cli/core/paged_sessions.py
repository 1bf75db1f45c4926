"""A plan of one device as sessions whose values may wait in a larger memory: what is judged is what is run.

A session holds what it is given until it ends, and makes what outlives it as buffers of its own. So the steps that are
paged are whole sessions, and the tensors are the values that pass between them.
"""

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from remat_cli.core.graph import Graph
from remat_cli.core.paging import Link, PagedProblem, PagedTensor
from remat_cli.core.plan import Compute, Plan
from remat_cli.core.problem import Problem, device_tensor_ids
from remat_cli.core.segments import Cut, Segment, cut_at
from remat_cli.core.timeline import step_ns

END_NS = 1
PAGE_BYTES = 4096
"""What the system hands memory out in, and what a place in a file begins at a multiple of."""
MAPPED_FROM_BYTES = 65_536
"""What a session takes for itself in blocks of so many bytes goes back to the system at once, lest it be kept."""


class PagedSessions(msgspec.Struct, frozen=True):
    """Sessions, and how they are paged: step s of the problem is session s, tensor t the plan's `instances[t]`.

    One more step of a nanosecond is the end, when all outputs are handed over: until then they may be away too.
    """

    cut: Cut
    problem: PagedProblem
    instances: tuple[int, ...]


class SessionCosts(msgspec.Struct, frozen=True):
    """What sessions cost beyond their ops: `call_ns` each, and `sizes` bytes of each tensor in a buffer of its own.

    `fresh_page_ns` is for each page that a session takes for what it neither is given nor gives.
    """

    sizes: tuple[int, ...]
    call_ns: int = 0
    fresh_page_ns: int = 0


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
            *(
                max(1, sum(step_ns(problem, steps[s]) for s in group) + costs.call_ns + costs.fresh_page_ns * pages)
                for group, pages in zip(groups, fresh_pages(problem, plan, cut), strict=True)
            ),
            END_NS,
        ),
        workspace_bytes=(*inner, 0),
        tensors=tensors,
        budget_bytes=problem.memories[0].free_bytes,
        link=link,
    )
    return PagedSessions(cut, judged, tuple(uses))


def fresh_pages(problem: Problem, plan: Plan, cut: Cut) -> list[int]:
    """Pages that each session takes from the system for blocks of its own, and gives back.

    Those are buffers of large tensors that live in it alone, and workspace. What it gives has buffers that are kept.
    """
    found = []
    for session in cut.actions:
        assert isinstance(session, Segment)
        blocks = [*_own_blocks(problem, plan, session).values(), *_workspaces(problem, plan, session)]
        found.append(sum(-(-size // PAGE_BYTES) for size in blocks if size >= MAPPED_FROM_BYTES))
    return found


def _own_blocks(problem: Problem, plan: Plan, session: Segment) -> dict[tuple[bool, int], int]:
    """Bytes of each buffer that a session makes and does not give; it works on what it is given in a new one."""
    imported = {plan.instances[each].storage for each in session.imports}
    exported = {plan.instances[each].storage for each in session.exports}
    blocks: dict[tuple[bool, int], int] = {}
    for made in (each for number in session.steps for each in plan.makes[number]):
        instance = plan.instances[made]
        tensor = problem.tensors[instance.tensor]
        if tensor.view_of is None and instance.storage not in exported:
            is_new = instance.storage not in imported
            key = (is_new, instance.storage if is_new else made)
            blocks[key] = max(blocks.get(key, 0), tensor.size_bytes)
    return blocks


def _workspaces(problem: Problem, plan: Plan, session: Segment) -> list[int]:
    steps = (plan.schedule.steps[number] for number in session.steps)
    return [problem.ops[step.op].workspace_bytes[step.device] for step in steps if isinstance(step, Compute)]
