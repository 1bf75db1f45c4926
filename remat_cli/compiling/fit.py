"""A plan in the form in which it runs may need more than its schedule; then it is planned again for that much less."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from remat_cli.base.progress import Progress
from remat_cli.compiling.solve import BudgetAnswer, Search, answer_again
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import fixed_bytes_of

ATTEMPTS = 6
GRACE_SECONDS = 3.0  # after the end of a search: a plan is there, of which little is missing
MULTIPLE = 1.25  # of its budget, from which on what a form needs is no surcharge


class Form(Protocol):
    """What a plan became: a model, or sessions."""

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """What it needs of each memory under exact options."""
        ...

    @property
    def needed_bytes(self) -> tuple[int, ...]:
        """What it needs of each memory in whatever session it runs, by simulation."""
        ...


F = TypeVar("F", bound=Form)
Build = Callable[[BudgetAnswer], tuple[BudgetAnswer, F]]


def fit(first: BudgetAnswer, build: Build[F], search: Search, progress: Progress) -> tuple[BudgetAnswer, F | None]:
    """Build what a plan becomes, and where that pushes a peak over its budget, plan again; None: no plan fits.

    `build` gives the form with the answer it stands for, whose steps it may have put into a better order. One that fits
    under exact options alone is kept only where none is found that fits in every session. For `min` there is nothing to
    fit into: what the form needs is the budget. Once time is over attempts go on for a few seconds at most.
    """
    answer, slack = first, (0,) * len(first.question.problem.memories)
    exact_only: tuple[BudgetAnswer, F] | None = None
    for attempt in range(ATTEMPTS):
        if answer.plan is None:
            return exact_only or (answer, None)
        answer, form = build(answer)
        problem = answer.question.problem
        excess = excess_bytes(problem, form.needed_bytes)
        if answer.question.least or not any(excess):
            return answer, form
        if exact_only is None and not any(excess_bytes(problem, form.peak_bytes)):
            exact_only = answer, form
        if attempt and search.clock.ends(GRACE_SECONDS):
            break
        if attempt < ATTEMPTS - 1:
            # By how much budgets are to be smaller next: by what the form needs beyond its budget.
            asked, plan, found = answer.question.problem, answer.known_plan, list[int]()
            fixed_bytes = fixed_bytes_of(asked, plan.schedule)
            parts = zip(asked.memories, slack, fixed_bytes, plan.peak_bytes, form.needed_bytes, strict=True)
            for memory, before, fixed, peak, needed in parts:
                budget = memory.budget_bytes
                less = before + max(0, needed - budget)
                if needed > budget and (budget - less >= peak or needed > MULTIPLE * budget):
                    share = max(0, budget - fixed) / max(1, needed - fixed)
                    less = budget - fixed - int(share * (peak - fixed))
                found.append(less)
            slack = tuple(found)
            answer = answer_again(first, slack, search, progress)
    return exact_only or (answer.without_plan(), None)


def excess_bytes(problem: Problem, peak_bytes: Sequence[int]) -> tuple[int, ...]:
    """By how many bytes each memory is over its budget."""
    pairs = zip(peak_bytes, problem.memories, strict=True)
    return tuple(max(0, peak - memory.budget_bytes) for peak, memory in pairs)
