"""GREEDY (Shilova 2021, 3.4): page the first values that together are what is too much, and recompute nothing."""

from remat_cli.solvers.published._pofo.chain_plan import ChainPlan, realised
from remat_cli.solvers.published._pofo.chain_steps import keep_all_actions
from remat_cli.solvers.published._pofo.paged_chain import PagedChain


def greedy_paging(chain: PagedChain) -> ChainPlan | None:
    """The schedule of greedy paging; None where the budget is below what is possible without recomputation. O(n^2)."""
    return realised(chain, *keep_all_actions(chain.stages), chain.greedy_set())
