"""The sessions of a plan that pages: most stay open, those whose weights page are opened for their turn and closed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from remat_cli.core.schedule.program import Program
from remat_cli.runtime.segments._segment_sessions import (
    NOTHING,
    Opened,
    Opening,
    check_devices,
    open_one,
    shared_weights,
)


class SessionTurns:
    """Sessions by their place in a program."""

    def __init__(self, program: Program, opening: Opening) -> None:
        """Open those that stay.

        Raises:
            MissingDependency: a device of the plan is not here.
            RuntimeFailure: the runtime refuses a segment.
        """
        check_devices(program)
        self._program, self._opening, self._shared = program, opening, shared_weights(program)
        self._away = program.away_weights
        self._profiles: dict[int, str] = {}
        stay = (number for number in range(len(program.sessions)) if number not in self._away)
        self._opened: dict[int, Opened] = {number: self._open(number, NOTHING) for number in stay}

    def get(self, number: int) -> Opened:
        """A session that is open."""
        return self._opened[number]

    def open(self, number: int, given: Mapping[str, Any], kept: tuple[Any, ...]) -> None:
        """Open one for its turn, over values of weights; those that it does not pack are `kept` until it is closed.

        Raises:
            RuntimeFailure: the runtime refuses the segment.
        """
        opened = self._open(number, given)
        self._opened[number] = replace(opened, weights=(*opened.weights, *kept))

    def _open(self, number: int, given: Mapping[str, Any]) -> Opened:
        return open_one(self._program, number, self._shared, self._opening, given)

    def end_turn(self, number: int) -> None:
        """Close a session whose turn is over; nothing where it stays."""
        if number in self._away and number in self._opened:
            if self._opening.profile_folder is not None:
                self._profiles[number] = self._opened[number].session.end_profiling()
            del self._opened[number]

    def end_turns(self) -> None:
        """Close all that do not stay."""
        for number in self._away:
            self.end_turn(number)

    def end_profiling(self) -> tuple[str, ...]:
        """Files with the profiles of sessions that were opened for it, in order."""
        rest = {number: opened.session.end_profiling() for number, opened in self._opened.items()}
        found = {**self._profiles, **rest}
        return tuple(found[number] for number in sorted(found))
