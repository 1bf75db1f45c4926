"""autocapper (Shilova 2021, 4.4): recompute for a larger budget, then page what is still too much; the best of many."""

from collections.abc import Callable, Sequence

from remat_cli.solvers.base import never
from remat_cli.solvers.chains.actions import Action
from remat_cli.solvers.chains.rotor_slots import make_slots
from remat_cli.solvers.chains.rotor_tables import build_table
from remat_cli.solvers.published._pofo.chain_plan import ChainPlan, at_the_loss, realised
from remat_cli.solvers.published._pofo.chain_steps import chain_steps
from remat_cli.solvers.published._pofo.paged_chain import PagedChain

BUDGETS = 40  # as in the source
SLOTS = 500


def autocapper(
    chain: PagedChain, budgets: int = BUDGETS, slots: int = SLOTS, is_over: Callable[[], bool] = never
) -> ChainPlan | None:
    """The best `capper` of budgets evenly spaced from the given one to what keeping everything takes; None: none fits.

    One table of recomputation plans serves all budgets.
    """
    low, high = chain.budget_bytes, max(chain.budget_bytes, chain.peak_bytes)
    table = build_table(chain.chain, "persistent", make_slots(chain.chain, high, high, slots), is_over)
    if table is None:
        return None
    tried = (low + (high - low) * number // max(1, budgets - 1) for number in range(budgets))
    plans = dict.fromkeys(plan for plan in map(table.actions, tried) if plan is not None)
    found = [plan for plan in (capper(chain, actions) for actions in plans) if plan is not None]
    return min(found, key=lambda plan: plan.run.makespan, default=None)


def capper(chain: PagedChain, actions: Sequence[Action]) -> ChainPlan | None:
    """A plan of recomputation with the first values paged that are there at its peak, until that is within budget."""
    forward, backward = at_the_loss(actions)
    steps = chain_steps(chain, forward, backward)
    held = list(steps.problem.held_bytes())
    gaps = {stage: steps.problem.tensors[tensor] for stage, tensor in sorted(steps.copies.items())}
    paged: list[int] = []
    while max(held) > chain.budget_bytes:
        peak = held.index(max(held))
        for stage, tensor in gaps.items():
            gap = tensor.open_gaps[0] if tensor.open_gaps else None
            if stage not in paged and gap is not None and tensor.uses[gap] < peak < tensor.uses[gap + 1]:
                paged.append(stage)
                for step in range(tensor.uses[gap] + 1, tensor.uses[gap + 1]):
                    held[step] -= tensor.size_bytes
                break
        else:
            return None
    return realised(chain, forward, backward, paged)
