"""Between schedules and stages, the form in which Checkmate (Jain et al. 2020) writes them.

Stage t, of n, ends with the first computation of op t; before it, each earlier op may run at most once, in the order of
ops. `computed[t]` are the ops that run in stage t, t among them (the paper's R). `held[t]`, for t up to n, are the
tensors in memory when stage t begins that are read later, before they are made anew, or kept to the end (S).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem


@dataclass(frozen=True)
class Stages:
    """A schedule in stages: a set of ops for each of the n stages, n + 1 sets of tensors held between them."""

    computed: tuple[frozenset[int], ...]
    held: tuple[frozenset[int], ...]


def schedule_of(computed: Sequence[Collection[int]]) -> Schedule:
    """Stage by stage, in the order of ops; values die after their last read, so nothing else is to be said."""
    return Schedule.of_ops([op for ops in computed for op in sorted(ops)])


def complete(problem: Problem, held: Sequence[Collection[int]]) -> list[set[int]]:
    """The least that must run in each stage, so that what is held between stages is there: `computed`.

    What begins to be held is made in that stage, and so is what a step of it reads and is not held. `held` has an entry
    for each of the n stages and one for the end. An op that must not be repeated may be: that is for the judge.
    """
    producer = [spec.producer for spec in problem.tensors]
    found = []
    for stage in range(len(problem.ops)):
        there = held[stage]
        wanted = {stage, *(producer[tensor] for tensor in held[stage + 1] if tensor not in there)}
        open_ops = list(wanted)
        while open_ops:
            for tensor in problem.ops[open_ops.pop()].inputs:
                if tensor not in there and producer[tensor] not in wanted:
                    wanted.add(producer[tensor])
                    open_ops.append(producer[tensor])
        found.append(wanted)
    return found


def stages_of(problem: Problem, schedule: Schedule) -> Stages | None:
    """The stages nearest to a schedule; None where first computations are in another order, or if they lack a value.

    Where a schedule is in stages already, this is it. Otherwise an op runs once in a stage in which it ran several
    times, in the order of ops, and what ran after all first computations is left out: so it may take more memory,
    and the judge has to see it before it is used.
    """
    computed: list[set[int]] = [set()]
    for op in schedule.op_ids():
        stage = len(computed) - 1
        if op > stage:
            return None
        computed[stage].add(op)
        if op == stage:
            computed.append(set())
    return in_stages(problem, computed[:-1]) if len(computed) == len(problem.ops) + 1 else None


def in_stages(problem: Problem, computed: Sequence[Collection[int]]) -> Stages | None:
    """What is held between stages in which these ops run; None if a step would read what is not there."""
    producer = [spec.producer for spec in problem.tensors]
    needed = {tensor for tensor, spec in enumerate(problem.tensors) if spec.kept}
    held = [frozenset(needed)]
    for stage in range(len(problem.ops) - 1, -1, -1):
        needed |= {tensor for op in computed[stage] for tensor in problem.ops[op].inputs}
        needed = {tensor for tensor in needed if producer[tensor] not in computed[stage]}
        if any(producer[tensor] >= stage for tensor in needed):
            return None
        held.append(frozenset(needed))
    return Stages(tuple(map(frozenset, computed)), tuple(reversed(held)))


def last_stages(problem: Problem, readers: list[list[int]]) -> tuple[list[int], list[int]]:
    """The last stage in which an op is of use, and at whose start a tensor is; readers come after what they read."""
    count = len(problem.ops)
    last_run, last_hold = [0] * count, [0] * len(problem.tensors)
    for op in range(count - 1, -1, -1):
        spec = problem.ops[op]
        for tensor in spec.outputs:
            is_kept = problem.tensors[tensor].kept
            last_hold[tensor] = count if is_kept else max((last_run[r] for r in readers[tensor]), default=-1)
        useful = min(count - 1, max((last_hold[x] for x in spec.outputs), default=op))
        last_run[op] = max(op, useful) if spec.repeatable else op
    return last_run, last_hold
