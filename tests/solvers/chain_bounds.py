"""What chains without recomputation take at least, as the thesis defines it, and plans of POFO that page nothing."""

from __future__ import annotations

from remat_cli.solvers.published._pofo.paged_chain import PagedChain
from remat_cli.solvers.published._pofo.pofo import PofoPlan, PofoRecurrences


def lb_volume(chain: PagedChain) -> int:
    """All steps, or what must go out and come back, whichever takes longer."""
    both = chain.link.write_ticks + chain.link.read_ticks
    return max(chain.compute_ticks, (chain.peak_bytes - chain.budget_bytes) * both)


def lb_cut(chain: PagedChain) -> int:
    """The most that any one operation asks for: what is too much then is out before it and comes back after it."""
    before, after, bound, held = 0, chain.compute_ticks, 0, 0
    operations = []
    for stage in range(1, chain.stages + 1):
        held += chain.kept_bytes[stage - 1]
        operations.append((chain.forward_ticks[stage], held + chain.forward_bytes[stage]))
    for stage in range(chain.stages, 0, -1):
        operations.append((chain.backward_ticks[stage], held + chain.backward_bytes[stage]))
        held -= chain.kept_bytes[stage - 1]
    for ticks, need in operations:
        after -= ticks
        excess = max(0, need - chain.budget_bytes)
        out, back = excess * chain.link.write_ticks, excess * chain.link.read_ticks
        bound = max(bound, max(before, out) + ticks + max(after, back))
        before += ticks
    return bound


def frac(chain: PagedChain) -> int | None:
    """LB_frac, the optimum where any part of a value may be paged (greedy, 2.1 of the thesis); None: infeasible."""
    return chain.follow(chain.greedy_bytes())


def remat_only(chain: PagedChain) -> PofoPlan | None:
    """POFO without paging: the best plan of recomputation in which what is stored stays until it is used."""
    return PofoRecurrences(chain, "corrected", (False,), 0).plan()
