"""From a judged plan of one device to steps whose tensors may be paged: its order and its recomputations stay."""

from collections import defaultdict

from remat_cli.core.paging.paging import Link, PagedProblem, PagedTensor
from remat_cli.core.schedule.plan import Copy, Plan
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.timeline import step_ns


def plan_steps(problem: Problem, plan: Plan, link: Link) -> PagedProblem:
    """A tensor for each storage of the plan, used wherever an instance in it is made or read.

    Views and results in place move with the storage that they are in; what is made in place changes its bytes. Fixed
    bytes are taken off the budget. Steps of no time take 1 ns.
    """
    steps = plan.schedule.steps
    uses: dict[int, set[int]] = defaultdict(set)
    changed: dict[int, int] = {}
    sizes: dict[int, int] = {}
    deaths: dict[int, int] = defaultdict(int)
    for instance in plan.instances:
        spec, storage = problem.tensors[instance.tensor], instance.storage
        uses[storage].add(instance.birth)
        sizes.setdefault(storage, spec.size_bytes)
        deaths[storage] = max(deaths[storage], instance.death)
        if spec.view_of is None or storage not in changed:
            changed[storage] = instance.birth
    for number, reads in enumerate(plan.reads):
        for value in reads:
            uses[plan.instances[value].storage].add(number)
    tensors = []
    for storage, used in sorted(uses.items()):
        order = tuple(sorted(used))
        # nothing but a model's output outlives its last use
        is_kept, final = deaths[storage] > order[-1], order.index(changed[storage])
        tensors.append(PagedTensor(sizes[storage], order, is_kept=is_kept, final=final))
    return PagedProblem(
        durations_ns=tuple(max(1, step_ns(problem, step)) for step in steps),
        workspace_bytes=tuple(
            0 if isinstance(step, Copy) else problem.ops[step.op].workspace_bytes[step.device] for step in steps
        ),
        tensors=tuple(tensors),
        budget_bytes=problem.memories[0].free_bytes,
        link=link,
    )
