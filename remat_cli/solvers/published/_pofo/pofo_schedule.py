"""POFO's plans as schedules: of the budget as slots count it, and of others near it, whose plans may fit in bytes."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from remat_cli.core.paging.paging import Link
from remat_cli.solvers.base import Limits, never
from remat_cli.solvers.chains.actions import Chain
from remat_cli.solvers.chains.rotor_slots import make_slots
from remat_cli.solvers.chains.rotor_tables import build_table
from remat_cli.solvers.published._pofo.chain_plan import ChainPlan, at_the_loss, realised
from remat_cli.solvers.published._pofo.paged_chain import PagedChain
from remat_cli.solvers.published._pofo.pofo import pofo, pofo_plans
from remat_cli.solvers.published._pofo.pofo_tables import can_add_up

EXACT_STAGES = 8  # within a second, whatever the figures are
SLOTS = 50  # as in the source
FEW_SLOTS = 10  # at first, to have a plan, and to see how fast tables are filled here
MORE = 10  # slots beyond the budget's, and as many fewer: what rounding may hide
FILL_SHARE = 0.75  # of the time that is left, for tables of more slots: the rest is for their plans
RECOMPUTE_SLOTS = 500
UNITS = 100_000  # that all times together come to where nanoseconds are too many to be added up


def pofo_schedule(chain: PagedChain, slots: int = SLOTS, limits: Limits | None = None) -> ChainPlan | None:
    """The fastest schedule of POFO's plans within the budget; None: none of them fits, or the limits ended too early.

    Exact where there are few stages. Otherwise plans for budgets near the given one, and that of recomputation alone,
    whose table has finer slots: it is one of POFO's class. Tables are filled for few slots first, then for as many of
    those asked for as there is time for. The schedule may be later than POFO promises, since room is held until a write
    ends and from where a read starts, or earlier, since transfers need not pause at the loss.

    Raises:
        ModelError: tables of so many slots are too large for so many stages.
    """
    if chain.stages <= EXACT_STAGES:
        plan = pofo(_summable(chain, 1)[0])
        return None if plan is None else realised(chain, plan.forward, plan.backward, plan.paged)
    is_over = never if limits is None else lambda: limits.is_over
    search = _Search(chain, is_over, recomputed(chain, is_over))
    tried = slots if limits is None else min(slots, FEW_SLOTS)
    spent = search.try_slots(tried)
    while limits is not None and tried < slots and not limits.is_over:
        most = affordable_slots(tried, spent, FILL_SHARE * limits.seconds_left)
        if most <= tried:
            break
        tried = min(slots, most)
        spent = search.try_slots(tried)
    return search.best


def affordable_slots(tried: int, spent_seconds: float, seconds: float) -> int:
    """Slots that tables can be filled for in that time, where so many took so long: work grows with the cube."""
    growth = (seconds / max(1e-3, spent_seconds)) ** (1 / 3)
    return int(growth * (tried + MORE + 1)) - MORE - 1


@dataclass
class _Search:
    """The best schedule of a chain so far."""

    chain: PagedChain
    is_over: Callable[[], bool]
    best: ChainPlan | None

    def try_slots(self, slots: int) -> float:
        """Plans for budgets near the given one, counted in so many slots: the seconds until the first of them."""
        begin, spent = time.monotonic(), None
        quantum = max(1, -(-self.chain.budget_bytes // slots))
        larger, quantum = _summable(replace(self.chain, budget_bytes=quantum * (slots + MORE)), quantum)
        for number, plan in enumerate(pofo_plans(larger, quantum, self.is_over)):
            spent = time.monotonic() - begin if spent is None else spent
            if number > 2 * MORE or self.is_over():
                break
            found = realised(self.chain, plan.forward, plan.backward, plan.paged)
            if found is not None and (self.best is None or found.run.makespan < self.best.run.makespan):
                self.best = found
        return time.monotonic() - begin if spent is None else spent


def _summable(chain: PagedChain, quantum_bytes: int) -> tuple[PagedChain, int]:
    """The chain and its quantum, or one whose times can be added up."""
    link = chain.link
    ticks = chain.compute_ticks + chain.budget_bytes * (link.write_ticks + link.read_ticks)
    return (chain, quantum_bytes) if can_add_up(ticks, chain.stages) else (counted(chain, quantum_bytes), 1)


def counted(chain: PagedChain, quantum_bytes: int) -> PagedChain:
    """The same chain with quanta for bytes and a time of some UNITS, for tables whose entries would be too large.

    A quantum is moved in a thousandth of a unit at the least, and in as long as everything takes at the most.
    """
    figures, work_ns = chain.chain, chain.compute_ticks // chain.link.ticks
    unit_ns = max(1, -(-work_ns // UNITS))

    def times(row: tuple[int, ...]) -> tuple[int, ...]:
        return tuple((2 * time_ns + unit_ns) // (2 * unit_ns) for time_ns in row)

    def quanta(row: tuple[int, ...]) -> tuple[int, ...]:
        return tuple((2 * size + quantum_bytes) // (2 * quantum_bytes) for size in row)

    def speed(bytes_: int) -> float:
        return 1e9 * min(1000, max(1 / UNITS, bytes_ / chain.link.per_ns * unit_ns / quantum_bytes))

    link = Link.measured(speed(chain.link.write_bytes), speed(chain.link.read_bytes), chain.link.is_duplex)
    return PagedChain(
        Chain(
            times(figures.forward_ns),
            times(figures.backward_ns),
            quanta(figures.value_bytes),
            quanta(figures.saved_bytes),
            quanta(figures.gradient_bytes),
            quanta(figures.forward_extra_bytes),
            quanta(figures.saving_extra_bytes),
            quanta(figures.backward_extra_bytes),
        ),
        chain.budget_bytes // quantum_bytes,
        link,
    )


def recomputed(chain: PagedChain, is_over: Callable[[], bool] = never) -> ChainPlan | None:
    """The best plan without paging, as rotor's table has it; None: none fits, or it was over before."""
    budget = chain.budget_bytes
    table = build_table(chain.chain, "persistent", make_slots(chain.chain, budget, budget, RECOMPUTE_SLOTS), is_over)
    actions = None if table is None else table.actions(budget)
    return None if actions is None else realised(chain, *at_the_loss(actions), ())
