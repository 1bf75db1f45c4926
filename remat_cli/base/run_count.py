"""How often models run: counted where they do, in this process and in those that it starts, for whoever asks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final


@dataclass
class RunCount:
    """Runs of models since a block began; those of a block inside count for the one around it too."""

    runs: int = 0
    around: RunCount | None = None

    def add(self, runs: int) -> None:
        """So many more."""
        self.runs += runs
        if self.around is not None:
            self.around.add(runs)


CURRENT: Final[ContextVar[RunCount | None]] = ContextVar("runs of models", default=None)
"""Who counts in this thread at the moment, if anybody does."""


@contextlib.contextmanager
def counting() -> Iterator[RunCount]:
    """Count all runs of models in the block."""
    count = RunCount(around=CURRENT.get())
    token = CURRENT.set(count)
    try:
        yield count
    finally:
        CURRENT.reset(token)


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Count no runs in the block: those of a model that is no user's."""
    token = CURRENT.set(None)
    try:
        yield
    finally:
        CURRENT.reset(token)


def ran(runs: int = 1) -> None:
    """Tell whoever counts that a model has run."""
    count = CURRENT.get()
    if count is not None:
        count.add(runs)
