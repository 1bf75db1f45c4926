"""Whether what was promised was kept, and what follows from that: the one place that decides, for every measure.

Who measures something hands over two figures and the measure's name. Rooms to be above a promise, and what a broken one
means for the exit code, are in tables here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal

import msgspec

Figure = bool | int | float | None
"""Bytes or percent, or whether something is so; None: not known."""
Bounds = Literal["live", "process"]
"""What a budget bounds: what is live at once in a memory, or what a process holds."""
Consequence = Literal["none", "told", "memory", "broken"]
"""Of a promise: kept, or only to be told, or memory is not as promised, or bits or order are not those of the plan."""

PROCESS_SHARE, PROCESS_ROOM_BYTES = 0.03, 2 * 2**20
"""How far a process may be above what was predicted of it."""
KEPT_BYTES = 4096
"""What a session may hold more when it has run other sizes before: kernels keep small buffers."""
RATCHET_SHARE, RATCHET_ROOM_BYTES = 0.10, 4 * 2**20
"""Above what the largest size leaves resident: what any sequence of sizes may leave, the larger of the two."""
DEAR_PERCENT = 30.0
"""More time than this is said first."""

PHASES: Final = ("loading", "loaded", "first_run", "later_runs")
"""Of a process, in the order in which they come; each is predicted and measured by itself."""
BITS_AND_ORDER: Final = frozenset({"outputs", "order", "outputs_at_sizes", "order_at_sizes"})
ONLY_TOLD: Final = frozenset({*PHASES, "max_overhead"})
SEVERITY: Final[tuple[Consequence, ...]] = ("none", "told", "memory", "broken")


class MeasuredPromise(msgspec.Struct, frozen=True):
    """One promise beside what was measured of it; `kept` is None where it was not measured, or noise hides it.

    Measures are `outputs` and `order` (and both `_at_sizes`, of a model for many), `live` (bytes under exact options,
    equal to the byte), `default_session`, `runs_at_sizes` and `after_all_sizes`, the phases of a process (`loading`,
    `loaded`, `first_run`, `later_runs`), `process` (a budget on all of it), `max_overhead` (percent of time), and of
    plans that are cut into sessions `placement`, `budgets` and `memory NAME`.
    """

    measure: str
    promised: Figure
    measured: Figure
    kept: bool | None


class Check(msgspec.Struct, frozen=True):
    """A promise, and the line that people read where it was not kept."""

    promise: MeasuredPromise
    line: str

    @property
    def consequence(self) -> Consequence:
        """What follows from it."""
        return consequence_of(self.promise)


def broken_lines(checks: Iterable[Check]) -> tuple[str, ...]:
    """One line per broken promise of bits, order, or memory that was asked for."""
    return tuple(check.line for check in checks if check.consequence in ("memory", "broken"))


def told_lines(checks: Iterable[Check]) -> tuple[str, ...]:
    """One line per prediction that was not kept, of what nobody asked to be kept."""
    return tuple(check.line for check in checks if check.consequence == "told")


def judged(measure: str, promised: Figure, measured: Figure) -> MeasuredPromise:
    """A promise with the verdict on it."""
    return MeasuredPromise(measure, promised, measured, is_kept(measure, promised, measured))


def is_kept(measure: str, promised: Figure, measured: Figure) -> bool | None:
    """Whether what was measured keeps the promise; None where one of them is not known."""
    if promised is None or measured is None:
        return None
    if isinstance(promised, bool) or measure == "live":
        return measured == promised
    return measured <= LIMITS.get(measure, float)(promised)


def consequence_of(promise: MeasuredPromise) -> Consequence:
    """What follows from a promise: nothing from one that was kept or not measured.

    A process that is above its prediction, but above no budget of its own, is told; so is time.
    """
    if promise.kept is not False:
        return "none"
    if promise.measure in BITS_AND_ORDER:
        return "broken"
    return "told" if promise.measure in ONLY_TOLD else "memory"


def worst(promises: Iterable[MeasuredPromise]) -> Consequence:
    """What follows from all of them together."""
    return max(map(consequence_of, promises), key=SEVERITY.index, default="none")


def fits(needed_bytes: int, budget_bytes: int) -> bool:
    """Whether what is needed is within a budget that bounds just that."""
    return needed_bytes <= budget_bytes


def is_dear(*overheads_percent: float | None) -> bool:
    """Whether a plan costs so much time, as predicted or as measured, that its price is said first."""
    return any(each is not None and each > DEAR_PERCENT for each in overheads_percent)


class CheaperBudget(msgspec.Struct, frozen=True):
    """A larger budget for which a plan is known that takes less time: a share of what planning can change."""

    share_percent: int
    overhead_percent: float


class ProcessTerm(msgspec.Struct, frozen=True):
    """A part of what a process holds; `is_live`: which plans make smaller, and no other part."""

    name: str
    bytes: int
    is_live: bool = False


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked beside a budget of live bytes, and what is known to answer it with; None where there is none.

    `process_budget_bytes` bounds a process, of which `process_bytes` were predicted, inputs included: of the plan, and
    without one of the model as it is. Time was to be at most `max_overhead_percent` more, and the search was to end
    after `time_limit_seconds`; `search_was_cut`: it did, before all was tried. `run_seconds` is how long runs of the
    model took meanwhile that compare and measure splits, which the limit does not count. `cheaper` is the next larger
    budget with a plan that takes less time, looked for where `is_looked_up`. `memory_budgets` are those of a plan that
    is cut into sessions, by memory.
    """

    process_budget_bytes: int | None = None
    process_bytes: int | None = None
    max_overhead_percent: float | None = None
    time_limit_seconds: float | None = None
    search_was_cut: bool = False
    run_seconds: float = 0.0
    cheaper: CheaperBudget | None = None
    is_looked_up: bool = False
    memory_budgets: dict[str, int] = {}

    def promises(
        self, kept: tuple[MeasuredPromise, ...], overhead_percent: float | None, noise_percent: float = 0.0
    ) -> tuple[MeasuredPromise, ...]:
        """The same with what only a request knows: the most time, and a budget on a process that nobody watched.

        Within `noise_percent` a measured time decides nothing.
        """
        more = []
        if self.process_budget_bytes is not None and all(each.measure != "process" for each in kept):
            more.append(judged("process", self.process_budget_bytes, None))
        if self.max_overhead_percent is not None:
            more.append(_judged_time(self.max_overhead_percent, overhead_percent, noise_percent))
        return (*kept, *more)

    def warned(self, overhead_percent: float | None, noise_percent: float = 0.0) -> tuple[str, ...]:
        """What is told of the time where it is more than was asked for, by the verdict on `max_overhead`."""
        most = self.max_overhead_percent
        if most is None or overhead_percent is None:
            return ()
        if _judged_time(most, overhead_percent, noise_percent).kept is not False:
            return ()
        return (f"{overhead_percent:+.1f} % time, at most {most:+g} % was asked for",)


def _judged_time(most_percent: float, overhead_percent: float | None, noise_percent: float) -> MeasuredPromise:
    """The promise on time with its verdict; undecided where times may be off by more than the difference."""
    found = judged("max_overhead", most_percent, overhead_percent)
    is_open = overhead_percent is not None and abs(overhead_percent - most_percent) < noise_percent
    return msgspec.structs.replace(found, kept=None) if is_open else found


LIMITS: Final[Mapping[str, Callable[[float], float]]] = MappingProxyType(
    {
        **dict.fromkeys(PHASES, lambda promised: promised * (1 + PROCESS_SHARE) + PROCESS_ROOM_BYTES),
        "runs_at_sizes": lambda promised: promised + KEPT_BYTES,
        "after_all_sizes": lambda promised: max(promised * (1 + RATCHET_SHARE), promised + RATCHET_ROOM_BYTES),
    }
)
"""The most that keeps a promise, by measure; as promised where it is not listed."""
