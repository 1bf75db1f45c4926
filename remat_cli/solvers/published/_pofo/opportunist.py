"""opportunist (Shilova 2021, 4.4): keep all of a stage, and page it, whenever the link has nothing to do."""

from remat_cli.solvers.chains.actions import Action, Chain
from remat_cli.solvers.chains.rotor_slots import make_slots
from remat_cli.solvers.chains.rotor_tables import build_table
from remat_cli.solvers.published._pofo.chain_plan import ChainPlan, realised
from remat_cli.solvers.published._pofo.paged_chain import PagedChain

SLOTS = 500


def opportunist(chain: PagedChain, slots: int = SLOTS) -> ChainPlan | None:
    """A plan and its schedule; None where it has none, as happens with little memory.

    The first stage keeps all, and its input and output are paged. Then values pass by until the link is idle, the next
    stage keeps all, and so on until what is left fits. Each group of stages that passed by gets the best plan of
    recomputation for its own backwards, within the whole budget.
    """
    forward: list[Action] = []
    returns: list[list[Action]] = []
    paged: set[int] = set()
    backlog, stage = 0, 1
    while not _rest_fits(chain, stage, is_whole=stage - 1 in paged and forward[-1].kind == "all"):
        if stage == chain.stages:
            return None
        last = stage
        if backlog > 0:
            while backlog > chain.forward_ticks[last] and last < chain.stages - 1:
                backlog -= chain.forward_ticks[last]
                last += 1
            backlog -= chain.forward_ticks[last]
            back = _group(chain, stage, last, slots)
            if back is None:
                return None
            forward += [Action("keep", stage), *(Action("move", each) for each in range(stage + 1, last + 1))]
            returns.append(back)
        else:
            # What is left to write when a stage that keeps all is over: what of its input it did not hide, and its
            # output.
            is_new = stage - 1 not in paged
            values = chain.kept_bytes if stage == 1 else chain.chain.value_bytes
            before = values[stage - 1] * chain.link.write_ticks if is_new else 0
            backlog = max(0, before - chain.forward_ticks[stage]) + chain.kept_bytes[stage] * chain.link.write_ticks
            paged |= {stage - 1, stage}
            forward.append(Action("all", stage))
            returns.append([Action("back", stage)])
        stage = last + 1
    forward += [Action("all", each) for each in range(stage, chain.stages + 1)]
    returns += [[Action("back", each)] for each in range(stage, chain.stages + 1)]
    return realised(chain, forward, [action for back in reversed(returns) for action in back], paged)


def _rest_fits(chain: PagedChain, stage: int, is_whole: bool) -> bool:
    """Whether keeping everything from a stage on, its input included, is within the budget."""
    held = (chain.kept_bytes if is_whole or stage == 1 else chain.chain.value_bytes)[stage - 1]
    for each in range(stage, chain.stages + 1):
        if held + chain.stage_bytes[each] > chain.budget_bytes:
            return False
        held += chain.kept_bytes[each]
    return True


def _group(chain: PagedChain, first: int, last: int, slots: int) -> list[Action] | None:
    """The best plan for the backwards of a group, whose input is all that the stage before it keeps."""
    figures = chain.chain

    def part(row: tuple[int, ...]) -> tuple[int, ...]:
        return row[first - 1 : last + 1]

    group = Chain(
        forward_ns=part(figures.forward_ns),
        backward_ns=part(figures.backward_ns),
        value_bytes=(chain.kept_bytes[first - 1], *figures.value_bytes[first : last + 1]),
        saved_bytes=part(figures.saved_bytes),
        gradient_bytes=part(figures.gradient_bytes),
        forward_extra_bytes=part(figures.forward_extra_bytes),
        saving_extra_bytes=part(figures.saving_extra_bytes),
        backward_extra_bytes=part(figures.backward_extra_bytes),
    )
    budget = chain.budget_bytes
    table = build_table(group, "persistent", make_slots(group, budget, budget, slots), lambda: False)
    actions = None if table is None else table.actions(budget)
    if actions is None:
        return None
    return [Action(action.kind, action.stage + first - 1) for action in actions]
