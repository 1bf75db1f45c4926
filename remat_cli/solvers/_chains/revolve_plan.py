"""Plans of the unit-slot model played on the blocks of a training step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from remat_cli.solvers._chains.actions import Action
from remat_cli.solvers._chains.unit_slots import SlotAction

MOST_FORWARDS = 100_000  # longer sequences, in the fewest slots on very long branches, are not worth judging


def chain_actions(actions: Iterable[SlotAction]) -> Iterator[Action]:
    """One branch: each layer a stage, its forward run again, keeping everything, just before its backward."""
    is_copy = False
    for action in actions:
        if action.kind == "advance":
            yield Action("keep" if is_copy else "move", action.layer)
        elif action.kind == "back":
            yield Action("all", action.layer)
            yield Action("back", action.layer)
        is_copy = action.kind == "copy"
