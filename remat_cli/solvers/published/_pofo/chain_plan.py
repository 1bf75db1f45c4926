"""Plans on a chain, recomputation and paging both, as schedules that the judge has seen."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remat_cli.core.paging.paging import PagedRun, PagedSchedule
from remat_cli.core.paging.paging_judge import follow_paging
from remat_cli.solvers.chains.actions import Action
from remat_cli.solvers.published._pofo.chain_steps import ChainSteps, chain_steps
from remat_cli.solvers.published._pofo.paged_chain import PagedChain
from remat_cli.solvers.published._pofo.two_phases import two_phases


@dataclass(frozen=True)
class ChainPlan:
    """A plan with its schedule; `paged` are the stages whose copies, kept by the forward sweep, are away meanwhile."""

    forward: tuple[Action, ...]
    backward: tuple[Action, ...]
    paged: tuple[int, ...]
    steps: ChainSteps
    schedule: PagedSchedule
    run: PagedRun


def realised(
    chain: PagedChain, forward: Sequence[Action], backward: Sequence[Action], paged: Iterable[int]
) -> ChainPlan | None:
    """The schedule of a plan by the rules of the judge; None where it does not fit."""
    stages = tuple(sorted(paged))
    steps = chain_steps(chain, forward, backward)
    schedule = two_phases(steps.problem, steps.turn, steps.gaps(stages))
    if schedule is None:
        return None
    run = follow_paging(steps.problem, schedule)
    return ChainPlan(tuple(forward), tuple(backward), stages, steps, schedule, run)


def at_the_loss(actions: Sequence[Action]) -> tuple[Sequence[Action], Sequence[Action]]:
    """A plan's two sweeps: the backward one begins with the backward of the loss."""
    turn = next(number for number, action in enumerate(actions) if action.kind == "back")
    return actions[:turn], actions[turn:]
