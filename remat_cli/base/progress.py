"""How a long run tells somebody how far it is, and learns that it should stop."""

from __future__ import annotations

from typing import Final, Protocol

READING: Final = "reading the model"
DIFFERENTIATING: Final = "writing gradients"
OPTIMISING: Final = "optimising"
PROFILING: Final = "profiling"
COMPILING_KERNELS: Final = "compiling kernels (once per machine)"
SPLITTING: Final = "searching for splits"
SOLVING: Final = "solving"
COMPARING: Final = "comparing"
REWRITING: Final = "rewriting"
VERIFYING: Final = "verifying"
RUNNING: Final = "running the plan"

STOPPABLE: Final = frozenset({SPLITTING, SOLVING, COMPARING})  # stages that keep what they have when asked to stop


class Progress(Protocol):
    """Listener of a run. Calls may come from any thread, and cost next to nothing."""

    def stage(self, text: str) -> None:
        """A stage begins; the constants of this module are the usual ones. STOPPABLE ones may be stopped early."""
        ...

    def advance(self, done: int, total: int) -> None:
        """So many of so many units of the current stage are done."""
        ...

    def detail(self, text: str) -> None:
        """How far the current stage is, in a few words; for stages of few, long parts."""
        ...

    def incumbent(self, overhead_percent: float | None, bound_percent: float | None) -> None:
        """A better plan or a better proved bound; None for what is not known yet."""
        ...

    def note(self, text: str) -> None:
        """One line the user should read, such as a warning."""
        ...

    def should_stop(self) -> bool:
        """Whether the user asked to stop searching and go on with the best so far."""
        ...


class SilentProgress:
    """Tells nobody and never stops: for scripts and tests."""

    def stage(self, text: str) -> None:
        """Ignore."""

    def advance(self, done: int, total: int) -> None:
        """Ignore."""

    def detail(self, text: str) -> None:
        """Ignore."""

    def incumbent(self, overhead_percent: float | None, bound_percent: float | None) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore."""

    def should_stop(self) -> bool:
        """Never."""
        return False


class AsideProgress:
    """A part of a run whose plans are not those of the whole: what it finds is not told, but it can be stopped."""

    def __init__(self, whole: Progress) -> None:
        """Listen for somebody who listens to the whole run."""
        self._whole = whole

    def stage(self, text: str) -> None:
        """The whole run's."""
        self._whole.stage(text)

    def advance(self, done: int, total: int) -> None:
        """Ignore."""

    def detail(self, text: str) -> None:
        """Ignore."""

    def incumbent(self, overhead_percent: float | None, bound_percent: float | None) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """The whole run's."""
        self._whole.note(text)

    def should_stop(self) -> bool:
        """Whether the whole run is to stop."""
        return self._whole.should_stop()


class PartialProgress:
    """One of several equal parts of a stage, in units of all parts."""

    def __init__(self, whole: Progress, number: int, parts: int, units: int) -> None:
        """Listen for somebody who listens to all `parts`, of `units` each."""
        self._whole, self._number, self._parts, self._units = whole, number, parts, units

    def stage(self, text: str) -> None:
        """The same stage."""
        self._whole.stage(text)

    def advance(self, done: int, total: int) -> None:
        """So much of this part's share."""
        done_here = self._number * self._units + done * self._units // max(1, total)
        self._whole.advance(done_here, self._parts * self._units)

    def detail(self, text: str) -> None:
        """The same words."""
        self._whole.detail(text)

    def incumbent(self, overhead_percent: float | None, bound_percent: float | None) -> None:
        """The same."""
        self._whole.incumbent(overhead_percent, bound_percent)

    def note(self, text: str) -> None:
        """The same line."""
        self._whole.note(text)

    def should_stop(self) -> bool:
        """The same answer."""
        return self._whole.should_stop()
