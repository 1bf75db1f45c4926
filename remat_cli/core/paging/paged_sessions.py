"""A plan of one device as sessions whose values may wait in a larger memory: what is judged is what is run.

A session holds what it is given until it ends, and makes what outlives it as buffers of its own. So the steps that are
paged are whole sessions, and the tensors are the values that pass between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from remat_cli.core.paging.paging import Link, PagedProblem, PagedTensor
from remat_cli.core.paging.weight_loads import Load, loads_of, released_bytes
from remat_cli.core.paging.weight_paging import NO_WEIGHTS, WeightPaging
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Compute, Plan
from remat_cli.core.schedule.problem import Problem, device_tensor_ids
from remat_cli.core.schedule.segments import Cut, Segment, cut_at
from remat_cli.core.schedule.timeline import step_ns
from remat_cli.core.values.pages import PAGE_BYTES, whole_pages

END_NS = BEGIN_NS = 1
MAPPED_FROM_BYTES = 65_536
"""What a session takes for itself in blocks of so many bytes goes back to the system at once, lest it be kept."""


class PagedStep(msgspec.Struct, frozen=True):
    """What a step of a paged problem is: the beginning, a session that is opened, one that runs, or the end."""

    kind: Literal["begin", "load", "run", "end"]
    session: int = -1


class Image(msgspec.Struct, frozen=True):
    """Weights as they are read for a session: those that it packs, whose pages go then, or those that it does not."""

    session: int
    weights: tuple[int, ...]
    is_packed: bool


class PagedSessions(msgspec.Struct, frozen=True):
    """Sessions, and how they are paged: the problem's first tensors are the plan's `instances`, then come `images`.

    Its `steps` are the sessions and one of a nanosecond, the end, when all outputs are handed over: until then they may
    be away too. Where weights page, the sessions that read them are opened in steps of their own, and before all others
    is one of a nanosecond that leaves room for nothing: a run begins with all those weights away. Other tensors are the
    copies that sessions pack. `released_bytes` of the fixed part are then not held all through.
    """

    cut: Cut
    problem: PagedProblem
    instances: tuple[int, ...]
    steps: tuple[PagedStep, ...] = ()
    images: tuple[Image, ...] = ()
    released_bytes: int = 0

    @property
    def first_action(self) -> int:
        """The step that is the first to be run."""
        return int(self.steps[0].kind == "begin")

    @property
    def packed(self) -> tuple[PagedTensor, ...]:
        """The copies that sessions pack."""
        return self.problem.tensors[len(self.instances) + len(self.images) :]

    @property
    def inner_bytes(self) -> tuple[int, ...]:
        """What each step holds inside its session: workspace, and what it packs of weights."""
        inner = list(self.problem.workspace_bytes)
        for tensor in self.packed:
            for step in tensor.uses:
                inner[step] += tensor.size_bytes
        return tuple(inner)

    def with_longer_steps(self, more_ns: dict[int, int]) -> PagedSessions:
        """The same sessions, of which some steps take so much longer."""
        durations = tuple(ns + more_ns.get(step, 0) for step, ns in enumerate(self.problem.durations_ns))
        return msgspec.structs.replace(self, problem=msgspec.structs.replace(self.problem, durations_ns=durations))

    def session_at(self, step: int) -> int:
        """The session of a step; the end comes after the last one."""
        return self.steps[step].session if self.steps[step].kind != "end" else self.steps[-2].session + 1


class SessionCosts(msgspec.Struct, frozen=True):
    """What sessions cost beyond their ops: `call_ns` each, and `sizes` bytes of each tensor in a buffer of its own.

    `fresh_page_ns` is for each page that a session takes for what it neither is given nor gives. `weights`
    are those that may page.
    """

    sizes: tuple[int, ...]
    call_ns: int = 0
    fresh_page_ns: int = 0
    weights: WeightPaging = NO_WEIGHTS


def own_sizes(graph: Graph, problem: Problem) -> tuple[int, ...]:
    """Bytes of each tensor of a graph's problem in a buffer of its own."""
    return tuple(graph.tensors[tensor].size_bytes for tensor in device_tensor_ids(graph, problem))


def grouped(problem: Problem, plan: Plan, most_ns: int) -> tuple[int, ...]:
    """First steps of sessions of about so many nanoseconds each, two at most where a cut would cost a buffer.

    A session does not end where the next op works in place on what it made, or views it: both would then be held.
    """
    firsts, spent = [0], 0
    for number, step in enumerate(plan.schedule.steps):
        storages = {plan.instances[value].storage for value in plan.makes[number]}
        reads = (plan.instances[value] for value in plan.reads[number])
        is_continued = any(value.storage in storages and value.birth >= firsts[-1] for value in reads)
        if number and spent >= (2 * most_ns if is_continued else most_ns):
            firsts.append(number)
            spent = 0
        spent += step_ns(problem, step)
    return tuple(firsts)


def groups_of(plan: Plan, firsts: Sequence[int]) -> list[tuple[int, ...]]:
    """The steps of each session, by the steps that sessions begin with."""
    return [tuple(range(a, b)) for a, b in zip(firsts, (*firsts[1:], len(plan.schedule.steps)), strict=True)]


def paged_sessions(
    problem: Problem, plan: Plan, firsts: Sequence[int], link: Link, costs: SessionCosts
) -> PagedSessions:
    """Sessions that begin at these steps, with all that may be paged between them.

    The weights of the sessions that `costs.weights` names are away except for their turn.
    """
    groups = groups_of(plan, firsts)
    cut, inner = cut_at(problem, plan, groups, costs.sizes)
    loads = loads_of(problem, plan, groups, costs.weights)
    released = released_bytes(problem, plan, groups, costs.weights)
    budget = problem.memories[0].free_bytes + released
    steps = _steps(len(groups), loads)
    times = {"begin": BEGIN_NS, "end": END_NS}
    of_load = {load.session: load for load in loads}
    fresh = fresh_pages(problem, plan, cut)
    durations, workspaces = [], []
    for step in steps:
        if step.kind == "run":
            spent = sum(step_ns(problem, plan.schedule.steps[s]) for s in groups[step.session])
            durations.append(max(1, spent + costs.call_ns + costs.fresh_page_ns * fresh[step.session]))
            workspaces.append(inner[step.session])
        elif step.kind == "load":
            durations.append(max(1, costs.weights.costs.time_ns(of_load[step.session].packed_bytes)))
            workspaces.append(0)
        else:
            durations.append(times[step.kind])
            workspaces.append(max(0, budget) if step.kind == "begin" else 0)
    at = {step.session: number for number, step in enumerate(steps) if step.kind == "run"}
    uses = _uses(problem, plan, cut, at, len(steps) - 1)
    tensors = [PagedTensor(costs.sizes[plan.instances[each].tensor], tuple(used)) for each, used in uses.items()]
    images, weights = _images(loads, at)
    judged = PagedProblem(
        durations_ns=tuple(durations),
        workspace_bytes=tuple(workspaces),
        tensors=(*tensors, *weights),
        budget_bytes=budget,
        link=link,
    )
    return PagedSessions(cut, judged, tuple(uses), steps, images, released)


def _steps(sessions: int, loads: Sequence[Load]) -> tuple[PagedStep, ...]:
    """All steps: where weights page those are opened in steps of their own, and a beginning comes before all."""
    away = {load.session for load in loads}
    steps = [PagedStep("begin")] if loads else []
    for session in range(sessions):
        if session in away:
            steps.append(PagedStep("load", session))
        steps.append(PagedStep("run", session))
    return (*steps, PagedStep("end"))


def _uses(problem: Problem, plan: Plan, cut: Cut, at: dict[int, int], end: int) -> dict[int, list[int]]:
    """The steps that make or read each instance that passes between sessions; `at` are those in which sessions run."""
    uses: dict[int, list[int]] = defaultdict(list)
    for number, session in enumerate(cut.actions):
        assert isinstance(session, Segment)
        for instance in (*session.imports, *session.exports):
            uses[instance].append(at[number])
    newest = {instance.tensor: number for number, instance in enumerate(plan.instances)}
    for tensor, instance in newest.items():
        if problem.tensors[tensor].kept:
            uses[instance].append(end)
    return uses


def _images(loads: Iterable[Load], at: dict[int, int]) -> tuple[tuple[Image, ...], list[PagedTensor]]:
    """The images of weights, and their tensors: what is read, which is hosted, and after it what sessions pack."""
    images, read, packed = [], [], []
    for load in loads:
        run = at[load.session]
        if load.packed:
            images.append(Image(load.session, load.packed, True))
            read.append(PagedTensor(load.packed_image_bytes, (-1, run - 1), is_hosted=True))
        if load.plain:
            images.append(Image(load.session, load.plain, False))
            read.append(PagedTensor(load.plain_image_bytes, (-1, run - 1, run), is_hosted=True, gaps=(0,)))
        if load.packed_bytes:
            packed.append(PagedTensor(load.packed_bytes, (run - 1, run), gaps=()))
    return tuple(images), [*read, *packed]


def fresh_pages(problem: Problem, plan: Plan, cut: Cut) -> list[int]:
    """Pages that each session takes from the system for blocks of its own, and gives back.

    Those are buffers of large tensors that live in it alone, and workspace. What it gives has buffers that are kept.
    """
    found = []
    for session in cut.actions:
        assert isinstance(session, Segment)
        steps = (plan.schedule.steps[number] for number in session.steps)
        workspaces = [problem.ops[step.op].workspace_bytes[step.device] for step in steps if isinstance(step, Compute)]
        # Bytes of each buffer that it makes and does not give; it works on what it is given in a new one.
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
        sizes = [*blocks.values(), *workspaces]
        found.append(sum(whole_pages(size) for size in sizes if size >= MAPPED_FROM_BYTES) // PAGE_BYTES)
    return found
