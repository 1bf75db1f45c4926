"""POFO's plans as schedules: of the budget as slots count it, and of others near it, whose plans may fit in bytes."""

from collections.abc import Callable

from remat_cli.solvers._chains.rotor_slots import make_slots
from remat_cli.solvers._chains.rotor_tables import build_table
from remat_cli.solvers._paging.chain_plan import ChainPlan, at_the_loss, realised
from remat_cli.solvers._paging.paged_chain import PagedChain
from remat_cli.solvers._paging.pofo import pofo, pofo_plans

EXACT_STAGES = 8  # within a second, whatever the figures are
SLOTS = 50  # as in the source
MORE = 10  # slots beyond the budget's, and as many fewer: what rounding may hide
RECOMPUTE_SLOTS = 500


def _never() -> bool:
    return False


def pofo_schedule(chain: PagedChain, slots: int = SLOTS, is_over: Callable[[], bool] = _never) -> ChainPlan | None:
    """The fastest schedule of POFO's plans within the budget; None: none of them fits.

    Exact where there are few stages. Otherwise plans for budgets near the given one, and that of recomputation alone,
    whose table has finer slots: it is one of POFO's class. The schedule may be later than POFO promises, since room is
    held until a write ends and from where a read starts, or earlier, since transfers need not pause at the loss.

    Raises:
        ModelError: tables of so many slots are too large for so many stages.
    """
    if chain.stages <= EXACT_STAGES:
        plan = pofo(chain)
        return None if plan is None else realised(chain, plan.forward, plan.backward, plan.paged)
    quantum = max(1, -(-chain.budget_bytes // slots))
    larger = PagedChain(chain.chain, quantum * (slots + MORE), chain.link)
    best = recomputed(chain)
    for number, plan in enumerate(pofo_plans(larger, quantum)):
        if number > 2 * MORE or is_over():
            break
        found = realised(chain, plan.forward, plan.backward, plan.paged)
        if found is not None and (best is None or found.run.makespan < best.run.makespan):
            best = found
    return best


def recomputed(chain: PagedChain) -> ChainPlan | None:
    """The best plan without paging, as rotor's table has it; None: none fits."""
    budget = chain.budget_bytes
    table = build_table(chain.chain, "persistent", make_slots(chain.chain, budget, budget, RECOMPUTE_SLOTS), _never)
    actions = None if table is None else table.actions(budget)
    return None if actions is None else realised(chain, *at_the_loss(actions), ())
