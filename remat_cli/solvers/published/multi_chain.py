"""Multi-chain: optimal checkpoints for branches of equal layers that meet in a loss (Shilova 2021, ch. 1)."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers._sharing import Condensed
from remat_cli.solvers.base import Limits, Order, Reason, Solution
from remat_cli.solvers.chains.branches import Join, one_branch, several_branches, spell_out
from remat_cli.solvers.chains.candidates import best_within, why_not
from remat_cli.solvers.chains.multi_chain import SlotTable, fewest_slots, join_table, ordered_table, table_work
from remat_cli.solvers.chains.revolve import MOST_FORWARDS

MOST_WORK = 2_000_000_000  # 4 s and 0.35 GB of table: two branches of 124 blocks, three of 34, four of 14, five of 8

InputGradients: TypeAlias = Literal["dropped", "kept", "both"]


class MultiChain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Optimal schedules for join networks (Shilova 2021, ch. 1): two towers, siamese and triplet networks.

    Optimal for branches of equal layers that meet only in the loss, where the backward of a layer needs the layer's
    input alone. Any other training step with such branches is treated as if it were one: each block between two ops
    through which everything in the branch goes counts as one layer of one unit of time and memory, and runs forward
    again just before it runs backward; what runs where the branches meet, forward and backward, is the loss. The
    schedule for every number of slots is then judged with true sizes and times. A chain is one branch and its last
    block the loss. Where a step is a chain of coarse blocks and has branches too, both views are tried. The table takes
    O(m K (2L)^(K+1)) for K branches of L blocks and m slots; where that is too much the problem is refused. With order
    `keep` the best sequences whose backwards stay in baseline order are tried as well.

    Attributes:
        slots: how many values between blocks and gradients are stored at once (none: try all numbers, most first).
        input_gradients: whether the gradient of a branch's input takes a slot to the end; `both` tries it for each.
        close_gaps: afterwards keep what the rest of the budget has room for, which the published algorithm does not.
    """

    name: ClassVar[str] = "multi-chain"
    summary: ClassVar[str] = "optimal checkpoints for equal branches that meet in a loss (Shilova 2021)"
    takes: ClassVar[str] = "A training step on one device whose branches are chains of blocks, not too long."
    proves: ClassVar[str] = "nothing beyond that the baseline is fastest where it fits"

    slots: Annotated[int, msgspec.Meta(ge=1)] | None = None
    input_gradients: InputGradients = "both"
    close_gaps: bool = False

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        return why_not(problem, _joins)

    def kernels(self, problem: Problem) -> tuple[str, ...]:
        """The compiled function that fills the table."""
        return ("chains.multi_chain_warmup",)

    def solve(self, problem: Problem, limits: Limits, start: Schedule | None = None) -> Solution:
        """The cheapest within the budget of the schedules for each number of slots."""

        def schedules(condensed: Condensed) -> Iterator[list[int]]:
            joins = _joins(condensed.problem, limits.order)
            for join in () if isinstance(joins, Reason) else joins:
                for table in self._tables(join, limits.order):
                    least = fewest_slots(join.lengths)
                    for room in range(table.most_slots, least - 1, -1) if self.slots is None else [self.slots]:
                        forwards = table.forwards(room)
                        if forwards is not None and forwards <= MOST_FORWARDS:
                            yield spell_out(join, table.actions(room))

        return best_within(problem, schedules, self.close_gaps, limits, start)

    def _tables(self, join: Join, order: Order) -> Iterator[SlotTable]:
        """One for each set of branches whose input gradients are to be kept."""
        branches = len(join.lengths)
        everyone = (1 << branches) - 1
        masks = {"dropped": [0], "kept": [everyone], "both": range(everyone + 1)}[self.input_gradients]
        if order == "keep":
            yield from (ordered_table(join.backward_order, branches, mask) for mask in masks)
        yield from join_table(join.lengths, masks)


def _joins(problem: Problem, order: Order) -> list[Join] | Reason:
    """The views of a problem as branches that meet, several branches first; or the reason why there is none."""
    views = several_branches(problem, order), one_branch(problem, order)
    joins = [view for view in views if not isinstance(view, Reason)]
    if not joins:
        several, one = (view for view in views if isinstance(view, Reason))
        return one if several == one else Reason(f"{one.words}; {several.words}", (*one.ops, *several.ops))
    if table_work(joins[0].lengths) > MOST_WORK:
        lengths = " and ".join(str(length) for length in joins[0].lengths)
        return Reason(f"its branches are too long for this algorithm: {lengths} blocks")
    return [join for join in joins if table_work(join.lengths) <= MOST_WORK]
