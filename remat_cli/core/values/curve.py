"""The trade-off curve of a model: what plans of it hold and take, and which of them answers a question."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Rank = Literal["time", "live", "process"]
"""What a question is after: the least time, the least live bytes, or the smallest process."""
NEAR_SHARE = 0.03
"""Of a limit: one that differs by less is about the same, and no other step of a ladder."""
CHEAP_TIME = 1.05
"""Of the baseline: a plan within its budget that takes no longer needs no search for a better one."""


class CurvePoint(msgspec.Struct, frozen=True):
    """A plan that was built and judged, by the name of its `key`.

    `live_bytes` are promised under exact options; a budget of `budget_bytes` is kept in sessions with default options
    too, and one that is a share of what planning can change need not hold the `on_top_bytes` among them. A process
    needs `process_bytes`. It takes `relative_time` times as long as the model in its own order.
    """

    key: str
    live_bytes: int
    budget_bytes: int
    process_bytes: int
    relative_time: float
    on_top_bytes: int = 0
    is_split: bool = False

    @property
    def share_bytes(self) -> int:
        """The least budget that is a share."""
        return self.budget_bytes - self.on_top_bytes

    @property
    def overhead_percent(self) -> float:
        """How much longer than the baseline it takes."""
        return 100 * (self.relative_time - 1)

    @property
    def objectives(self) -> tuple[float, ...]:
        """All that is better when it is less."""
        return self.relative_time, self.process_bytes, self.budget_bytes, self.live_bytes, self.share_bytes

    def dominates(self, other: CurvePoint) -> bool:
        """Whether it is as good in all, and better in something."""
        pairs = tuple(zip(self.objectives, other.objectives, strict=True))
        return all(one <= two for one, two in pairs) and any(one < two for one, two in pairs)


class CurveQuestion(msgspec.Struct, frozen=True):
    """What a plan may hold and take at most (None: anything), and what it is to have least of.

    `is_share`: the bytes are a share of what planning can change, so that what a form adds comes on top.
    """

    rank: Rank = "time"
    most_bytes: int | None = None
    most_process_bytes: int | None = None
    most_time: float | None = None
    is_share: bool = False

    def admits(self, point: CurvePoint) -> bool:
        """Whether a plan is within all limits."""
        needed_bytes = point.share_bytes if self.is_share else point.budget_bytes
        pairs = (
            (needed_bytes, self.most_bytes),
            (point.process_bytes, self.most_process_bytes),
            (point.relative_time, self.most_time),
        )
        return all(most is None or value <= most for value, most in pairs)

    def order(self, point: CurvePoint) -> tuple[float, ...]:
        """Less is better; of equals a smaller process, so that no point that is dominated comes first."""
        rest = point.objectives
        first = {"time": point.relative_time, "live": point.live_bytes, "process": point.process_bytes}
        return first[self.rank], *rest

    def is_covered_by(self, wider: CurveQuestion) -> bool:
        """Whether the other one is after the same within limits that are as wide, and hardly wider."""
        pairs = (
            (self.most_bytes, wider.most_bytes),
            (self.most_process_bytes, wider.most_process_bytes),
            (self.most_time, wider.most_time),
        )
        is_alike = (self.rank, self.is_share) == (wider.rank, wider.is_share)
        return is_alike and all(
            own == most or (own is not None and most is not None and most * (1 - NEAR_SHARE) <= own <= most)
            for own, most in pairs
        )


class Searched(msgspec.Struct, frozen=True):
    """A question that a search was made for, with so much time and `effort`: all else that it depends on."""

    question: CurveQuestion
    seconds: float
    effort: str = ""


class TradeOff(msgspec.Struct, frozen=True):
    """Plans of which none is dominated by another, and what has been searched for."""

    points: tuple[CurvePoint, ...] = ()
    searched: tuple[Searched, ...] = ()

    def with_point(self, fresh: CurvePoint) -> TradeOff:
        """The curve with one plan more, which takes the place of what was known of it."""
        others = self.without(fresh.key).points
        if any(point.dominates(fresh) or point.objectives == fresh.objectives for point in others):
            return msgspec.structs.replace(self, points=others)
        kept = tuple(point for point in others if not fresh.dominates(point))
        return msgspec.structs.replace(self, points=(*kept, fresh))

    def without(self, key: str) -> TradeOff:
        """The curve without a plan that did not keep what it promised."""
        return msgspec.structs.replace(self, points=tuple(point for point in self.points if point.key != key))

    def ranked(self, question: CurveQuestion) -> tuple[CurvePoint, ...]:
        """All plans within the limits of a question, the best first."""
        return tuple(sorted(filter(question.admits, self.points), key=question.order))

    def best(self, question: CurveQuestion) -> CurvePoint | None:
        """The best plan within the limits of a question; it is dominated by none of those."""
        return next(iter(self.ranked(question)), None)

    def answer(self, asked: Searched) -> CurvePoint | None:
        """The best plan, where a search like the one that is asked for need not be made; else None.

        Either the plan costs hardly anything, or such a search was made for about the same limits and led to the very
        same one. A search for far more memory looked elsewhere: that it led to a plan that fits says little.
        """
        best = self.best(asked.question)
        if best is None:
            return None
        if asked.question.rank == "time" and best.relative_time <= CHEAP_TIME:
            return best
        for before in self.searched:
            is_enough = before.effort == asked.effort and before.seconds >= asked.seconds
            if is_enough and asked.question.is_covered_by(before.question) and self.best(before.question) == best:
                return best
        return None


class LadderStep(msgspec.Struct, frozen=True):
    """A budget that a model fits in, and what that costs: by a plan that is kept, or by estimate."""

    budget_bytes: int
    overhead_percent: float
    is_estimate: bool = False


def ladder_of(curve: TradeOff, guesses: Iterable[LadderStep], most_percent: float) -> tuple[LadderStep, ...]:
    """Ever smaller budgets at ever higher prices: of plans that are kept, with estimates between and below them.

    A guess says nothing where a kept plan holds as little for no more, or about as much.
    """
    kept = [LadderStep(point.budget_bytes, point.overhead_percent) for point in curve.points]
    near = [
        guess
        for guess in guesses
        if all(abs(guess.budget_bytes - each.budget_bytes) > NEAR_SHARE * each.budget_bytes for each in kept)
    ]
    found: list[LadderStep] = []
    for step in sorted((*kept, *near), key=lambda each: (each.overhead_percent, each.budget_bytes)):
        is_less = not found or step.budget_bytes < found[-1].budget_bytes * (1 - NEAR_SHARE)
        if is_less and step.overhead_percent <= most_percent:
            found.append(step)
    return tuple(found)
