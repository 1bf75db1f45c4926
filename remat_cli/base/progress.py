"""How a long run tells somebody how far it is, and learns that it should stop."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

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
LEARNING: Final = "planning again with what the runs showed"
WATCHING: Final = "watching resident memory"
OTHER_SIZES: Final = "running other sizes"
RUNNING: Final = "running the plan"

LEAST_TOLD_SECONDS: Final = 1.0
STOPPABLE: Final = frozenset({SPLITTING, SOLVING, COMPARING})  # stages that keep what they have when asked to stop


class Stage(msgspec.Struct, frozen=True):
    """A stage begins; the constants of this module are the usual ones. STOPPABLE ones may be stopped early."""

    text: str

    def __str__(self) -> str:
        return self.text


class Advance(msgspec.Struct, frozen=True):
    """So many of so many units of the current stage are done."""

    done: int
    total: int

    def __str__(self) -> str:
        return f"{self.done}/{self.total}"


class Detail(msgspec.Struct, frozen=True):
    """How far the current stage is, in a few words; for stages of few, long parts."""

    text: str

    def __str__(self) -> str:
        return self.text


class Incumbent(msgspec.Struct, frozen=True):
    """A better plan or a better proved bound; None for what is not known yet."""

    overhead_percent: float | None
    bound_percent: float | None

    def __str__(self) -> str:
        """`incumbent +2.76%  bound +1.90%  gap 0.86%`, leaving out what is not known."""
        overhead, bound = self.overhead_percent, self.bound_percent
        parts = ["incumbent none" if overhead is None else f"incumbent {overhead:+.2f}%"]
        if bound is not None:
            parts.append(f"bound {bound:+.2f}%")
        if overhead is not None and bound is not None:
            parts.append(f"gap {max(0.0, overhead - bound):.2f}%")
        return "  ".join(parts)


class Note(msgspec.Struct, frozen=True):
    """One line the user should read, such as a warning."""

    text: str

    def __str__(self) -> str:
        return f"note: {self.text}"


class LeftOut(Note, frozen=True):
    """What was left out though remat should have managed it, which is worth a warning in what comes of the run."""


Event = Stage | Advance | Detail | Incumbent | Note
"""What a run tells; as a text it is the line that a person would read."""


class Progress(msgspec.Struct, frozen=True):
    """Listener of a run. Calls may come from any thread, and cost next to nothing.

    `should_stop` says whether the user asked to stop searching and go on with the best so far. Whoever listens to a
    part of a run hears its events in a `tell` of their own: `msgspec.structs.replace(progress, tell=...)`.
    """

    tell: Callable[[Event], None]
    should_stop: Callable[[], bool] = lambda: False

    def stage(self, text: str) -> None:
        """A stage begins."""
        self.tell(Stage(text))

    def advance(self, done: int, total: int) -> None:
        """So much of it is done."""
        self.tell(Advance(done, total))

    def detail(self, text: str) -> None:
        """How far it is, in words."""
        self.tell(Detail(text))

    def foretell(self, work: str, seconds: float) -> None:
        """What will be done and about how long it takes, where somebody has to wait for it."""
        if seconds >= LEAST_TOLD_SECONDS:
            self.tell(Detail(f"{work}, about {seconds:.0f} s"))

    def incumbent(self, overhead_percent: float | None, bound_percent: float | None) -> None:
        """A better plan or bound."""
        self.tell(Incumbent(overhead_percent, bound_percent))

    def note(self, text: str) -> None:
        """A line for the user."""
        self.tell(Note(text))

    def leave_out(self, text: str) -> None:
        """Something failed by a fault of ours, and the run goes on without it."""
        self.tell(LeftOut(text))

    def with_left_out(self, heard: Callable[[str], None]) -> "Progress":
        """The same, where what is left out is heard by somebody else too."""

        def tell(event: Event) -> None:
            if isinstance(event, LeftOut):
                heard(event.text)
            self.tell(event)

        return msgspec.structs.replace(self, tell=tell)


def listening(on_progress: Callable[[Event], None] | None) -> Progress:
    """Tells a function every event, such as `print`, or nobody; never stops."""
    return Progress(on_progress or (lambda event: None))


def silent() -> Progress:
    """Tells nobody and never stops: for scripts and tests."""
    return listening(None)


def aside(whole: Progress) -> Progress:
    """A part of a run whose plans are not those of the whole: what it finds is not told, but it can be stopped."""

    def tell(event: Event) -> None:
        if isinstance(event, Stage | Note):
            whole.tell(event)

    return msgspec.structs.replace(whole, tell=tell)


@contextlib.contextmanager
def giving_way(progress: Progress) -> Iterator[None]:
    """Let Ctrl-C end the block only, where the search that it is a part of is told to end with what it has.

    Raises:
        KeyboardInterrupt: nobody hears of it otherwise.
    """
    try:
        yield
    except KeyboardInterrupt:
        if not progress.should_stop():
            raise


def part(whole: Progress, number: int, parts: int, units: int) -> Progress:
    """One of several equal parts of a stage: what it has done counts as its share of `parts * units`."""

    def tell(event: Event) -> None:
        if isinstance(event, Advance):
            done = number * units + event.done * units // max(1, event.total)
            event = Advance(done, parts * units)
        whole.tell(event)

    return msgspec.structs.replace(whole, tell=tell)
