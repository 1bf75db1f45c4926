"""Where paging can help at all, and what the steps of a problem ask for by themselves."""

from collections.abc import Iterator
from itertools import accumulate

from remat_cli.core.paging.paging import PagedProblem


def hot_gaps(problem: PagedProblem) -> Iterator[tuple[int, int]]:
    """Tensor and gap of every gap with a step at or within it that holds too much when nothing is paged.

    Elsewhere all tensors fit at once, whatever else is paged.
    """
    too_much = (held > problem.budget_bytes for held in problem.held_bytes())
    before = [0, *accumulate(map(int, too_much))]
    for number, tensor in enumerate(problem.tensors):
        for gap in tensor.open_gaps:
            if before[tensor.uses[gap + 1] + 1] > before[max(0, tensor.uses[gap])]:
                yield number, gap


def is_possible(problem: PagedProblem) -> bool:
    """Whether every step fits with all else away; then stalls can be as long as it takes."""
    return max(problem.working_bytes(), default=0) <= problem.budget_bytes


def cut_bound(problem: PagedProblem) -> int:
    """LB_cut in ticks: what a step has no room for is out before it starts, unless hosted, and back after it ends."""
    hosted = [0] * (len(problem.durations) + 1)
    for tensor in problem.tensors:
        if tensor.is_hosted:
            for gap in tensor.open_gaps:
                hosted[tensor.uses[gap] + 1] += tensor.size_bytes
                hosted[tensor.uses[gap + 1]] -= tensor.size_bytes
    bound, before, after = 0, 0, problem.compute_ticks
    for held, there, ticks in zip(problem.held_bytes(), accumulate(hosted), problem.durations, strict=False):
        after -= ticks
        excess = max(0, held - problem.budget_bytes)
        out, back = max(0, excess - there) * problem.link.write_ticks, excess * problem.link.read_ticks
        bound = max(bound, max(before, out) + ticks + max(after, back))
        before += ticks
    return bound
