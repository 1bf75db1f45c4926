"""What candidates are expected to cost: estimates, corrected by what was measured of their kin."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from remat_cli.core.values.noise import SPREAD

SAME = 0.03
"""Of the logarithm of bytes: no further apart two are the same, but for what is written beside their ops."""
FAR = 0.5
"""Of the logarithm of bytes: so far apart two candidates say little of each other."""
OTHER_FORM = 0.5
"""How much of what one form shows holds for another one."""


@dataclass(frozen=True)
class Promising:
    """A candidate by estimate: its form, what the whole run holds, and what it adds to the time, as a share."""

    form: str
    peak_bytes: int
    share: float

    def distance(self, other: "Promising") -> float:
        """How far apart the bytes of two are, as a ratio's logarithm."""
        return abs(math.log(self.peak_bytes / other.peak_bytes))

    def kinship(self, other: "Promising") -> float:
        """How much what is known of one holds for another: 1 for itself, ever less for other bytes and forms."""
        return math.exp(-max(0.0, self.distance(other) - SAME) / FAR) * (1.0 if self.form == other.form else OTHER_FORM)


@dataclass(frozen=True)
class Expected:
    """What was `measured`, as a share of time that was added, of candidates by estimate."""

    measured: Sequence[tuple[Promising, float]] = ()

    def with_measured(self, point: Promising, share: float) -> "Expected":
        """The same with one measurement more."""
        return Expected((*self.measured, (point, share)))

    def cost(self, point: Promising) -> float:
        """The share that a candidate is expected to add: its estimate, off by as much as its next of kin's was."""
        kin, share, kinship = self._next_of_kin(point)
        return point.share + kinship * (share - kin.share)

    def gain(self, point: Promising, best: float) -> float:
        """By which share a candidate is expected to be faster than the best plan that is known; 0 where it is not."""
        _, _, kinship = self._next_of_kin(point)
        spread, ahead = SPREAD * math.sqrt(max(0.0, 1 - kinship**2)), best - self.cost(point)
        if spread == 0.0:
            return max(0.0, ahead)
        place = ahead / spread
        below = 0.5 * (1 + math.erf(place / math.sqrt(2)))
        return ahead * below + spread * math.exp(-(place**2) / 2) / math.sqrt(2 * math.pi)

    def _next_of_kin(self, point: Promising) -> tuple[Promising, float, float]:
        """Of what was measured that which says most: its estimate, what it took, and how much that says."""
        if not self.measured:
            return point, point.share, 0.0
        kin, share = max(self.measured, key=lambda each: point.kinship(each[0]))
        return kin, share, point.kinship(kin)
