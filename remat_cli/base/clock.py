"""The time that a user gives to a search, which every stage of it looks at."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


class SearchOver(Exception):
    """The time for a search is over: whoever began a part of it goes on with what was found."""


def go_on() -> None:
    """Never ends anything: the look at the clock of whoever has none."""


def endless() -> float:
    """The seconds that are left to whoever has no clock."""
    return math.inf


@dataclass
class SearchClock:
    """Counts the seconds of a search since it began, but for runs of the model, which take as long as they take.

    `now` tells the time. All parts of one search share one clock, or have parts of it, whose `whole` it is. `has_cut`
    tells that some part ended, or was not begun, because time was over.
    """

    seconds: float = math.inf
    now: Callable[[], float] = time.monotonic
    whole: SearchClock | None = None
    has_cut: bool = field(init=False, default=False)
    _began: float = field(init=False)
    _ran: float = field(init=False, default=0.0)
    _is_granted: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """It runs from the first moment on."""
        self._began = self.now()

    @property
    def left(self) -> float:
        """Seconds that are left, of the whole too; never negative."""
        return max(0.0, self._rest)

    @property
    def _rest(self) -> float:
        """Seconds that are left, of the whole too; below zero once they are over."""
        return self._own_rest if self.whole is None else min(self._own_rest, self.whole._rest)

    @property
    def _own_rest(self) -> float:
        """The same, whatever is left of the whole."""
        return self.seconds - (self.now() - self._began - self._ran)

    @property
    def is_over(self) -> bool:
        """Whether none are left."""
        return self.left <= 0.0

    @property
    def run_seconds(self) -> float:
        """How long runs of the model took, which do not count."""
        return self._ran

    @property
    def was_granted(self) -> bool:
        """Whether it, or the whole, was given more than it began with."""
        return self._is_granted or (self.whole is not None and self.whole.was_granted)

    def grant(self, seconds: float) -> None:
        """Let at least so many seconds be left, of the whole too."""
        self._is_granted = True
        self.seconds += max(0.0, seconds - self._own_rest)
        if self.whole is not None:
            self.whole.grant(seconds)

    def share(self, share: float) -> SearchClock:
        """A clock from now on for a share of what is left."""
        return SearchClock(share * self.left, self.now, self)

    def cut(self) -> None:
        """Note that time was too short for something."""
        self.has_cut = True
        if self.whole is not None:
            self.whole.cut()

    def ends(self, grace_seconds: float = 0.0) -> bool:
        """Whether a part that could go on, or begin, must not, after some seconds of grace; that is noted."""
        if is_over := self._rest <= -grace_seconds:
            self.cut()
        return is_over

    def look(self) -> None:
        """Go on, as long as there is time.

        Raises:
            SearchOver: there is none.
        """
        if self.ends():
            raise SearchOver

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """While a model runs, for which the search waits, its time does not pass."""
        began = self.now()
        try:
            yield
        finally:
            self._add(self.now() - began)

    def _add(self, seconds: float) -> None:
        self._ran += seconds
        if self.whole is not None:
            self.whole._add(seconds)
