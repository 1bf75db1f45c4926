"""How far measured times may be off: by how runs of the same thing scatter, and by what else the machine was doing."""

from collections.abc import Sequence
from math import inf, sqrt
from statistics import median, quantiles

import msgspec

BUSY_SHARE = 0.5  # of the cores that were left: once others use as much, they are in the way
LEAST_BUSY_PERCENT, LEAST_QUIET_PERCENT = 5.0, 25.0
"""From what scatter on it is told: short runs scatter on a quiet machine too, and the least of them still holds."""


FEWEST_RATIOS, SURE_PERCENT = 3, 2.0
"""How near the middle of so many ratios at least has to be to the truth for turns to end."""
SPREAD, SPREAD_SHARE = 0.15, 0.5
"""How far estimates of an added time are off before anything was measured: of a run, and of the estimate."""


class TimeNoise(msgspec.Struct, frozen=True):
    """What was seen while runs were timed.

    `scatter_percent` is how far the median run lies above the least one, of the model where that is more (None: each
    was timed once); `other_cores`
    is how many cores other processes kept busy meanwhile, `free_cores` how many this one left.
    """

    scatter_percent: float | None
    other_cores: float
    free_cores: float

    @property
    def is_busy(self) -> bool:
        """Whether other processes were in the way."""
        return self.other_cores > BUSY_SHARE * self.free_cores

    @property
    def off_percent(self) -> float | None:
        """By how much times may be off, where that is worth telling."""
        least, scatter = LEAST_BUSY_PERCENT if self.is_busy else LEAST_QUIET_PERCENT, self.scatter_percent
        return scatter if scatter is not None and scatter >= least else None

    @property
    def margin_percent(self) -> float:
        """How small a difference of times is noise: 0 where times are exact, infinite where nothing is known."""
        if self.scatter_percent is None and self.is_busy:
            return inf
        return self.off_percent or 0.0

    @property
    def told(self) -> str:
        """The same in a few words; empty where there is nothing to tell."""
        if self.scatter_percent is None and self.is_busy:
            return "busy machine: how far times are off is not known"
        if self.off_percent is None:
            return ""
        return f"{'busy machine: ' if self.is_busy else ''}times may be off by {self.off_percent:.0f} %"


def scatter_percent(*times_ns: Sequence[int]) -> float | None:
    """How far the median of runs lies above the least, in percent, the most of several things; None: none ran twice."""
    return max((100 * (median(each) / max(1, min(each)) - 1) for each in times_ns if len(each) > 1), default=None)


def ratios_in_turn(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> list[float]:
    """How long the second of two things takes as a multiple of the first, turn by turn: the least of each in a turn."""
    return [min(ours) / max(1, min(theirs)) for theirs, ours in zip(first, second, strict=True)]


def multiple_in_turn(ratios: Sequence[float]) -> float:
    """The middle of such multiples, without the first turn: there both find memory and caches as others left them.

    What else the machine does meets neighbours in time alike, so that this is nearer to the truth than least times are.
    """
    return median(ratios[1:] or ratios)


def multiple_error(ratios: Sequence[float]) -> float | None:
    """How far `multiple_in_turn` may be off, as a standard error of the median; None: there was one turn."""
    later = ratios[1:] or ratios
    if len(later) < 2:
        return None
    low, _, high = quantiles(later, n=4, method="inclusive")
    return (high - low) / sqrt(len(later))


def weighed(measured: float, error: float | None, estimate: float) -> float:
    """A multiple as turns and an estimate say together, each weighed by how sure it is.

    Of turns that agree next to nothing is left to the estimate; where other programs were in the way, more is.
    """
    if not error:
        return measured
    spread = SPREAD + SPREAD_SHARE * abs(estimate - 1)
    trust = spread**2 / (spread**2 + error**2)
    return trust * measured + (1 - trust) * estimate


def are_sure(ratios: Sequence[float]) -> bool:
    """Whether more turns would hardly tell more, by how these scatter and how many there are."""
    later = ratios[1:]
    if len(later) < FEWEST_RATIOS:
        return False
    low, _, high = quantiles(later, n=4, method="inclusive")
    return 100 * (high - low) <= SURE_PERCENT * median(later) * sqrt(len(later))
