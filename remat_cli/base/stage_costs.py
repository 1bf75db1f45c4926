"""What each stage of a command costs: seconds, and runs of models."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from remat_cli.base.progress import Event, Progress, Stage
from remat_cli.base.run_count import RunCount

BETWEEN = "between stages"


class StageCost(msgspec.Struct, frozen=True):
    """A stage, all of its parts together: how long it took, and how often a model ran in it, in any process."""

    name: str
    seconds: float
    runs: int


@dataclass
class StageCosts:
    """Adds up what stages cost, by their names in the order in which they first came; `now` tells the time."""

    count: RunCount
    now: Callable[[], float] = time.monotonic
    _found: dict[str, tuple[float, int]] = field(default_factory=dict)
    _stage: str = BETWEEN
    _began: float = field(init=False)
    _ran: int = field(init=False)

    def __post_init__(self) -> None:
        """The first stage begins now."""
        self._began, self._ran = self.now(), self.count.runs

    def listening(self, progress: Progress) -> Progress:
        """Progress whose stages are counted on the way."""

        def tell(event: Event) -> None:
            if isinstance(event, Stage) and event.text != self._stage:
                self._end(event.text)
            progress.tell(event)

        return msgspec.structs.replace(progress, tell=tell)

    def ended(self) -> tuple[StageCost, ...]:
        """What all stages have cost by now."""
        self._end(self._stage)
        return tuple(StageCost(name, round(seconds, 3), runs) for name, (seconds, runs) in self._found.items())

    def _end(self, following: str) -> None:
        now, ran = self.now(), self.count.runs
        seconds, runs = self._found.get(self._stage, (0.0, 0))
        self._found[self._stage] = (seconds + now - self._began, runs + ran - self._ran)
        self._stage, self._began, self._ran = following, now, ran
