"""GREEDY (Shilova 2021, 3.4), a yardstick for other algorithms: page the first values, recompute nothing."""

from __future__ import annotations

from remat_cli.solvers.published._pofo.chain_plan import ChainPlan, realised
from remat_cli.solvers.published._pofo.chain_steps import keep_all_actions
from remat_cli.solvers.published._pofo.paged_chain import PagedChain


def greedy_paging(chain: PagedChain) -> ChainPlan | None:
    """Its schedule; None exactly where the budget is below what is possible without recomputation."""
    return realised(chain, *keep_all_actions(chain.stages), chain.greedy_set())
