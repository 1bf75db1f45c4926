"""Periodic checkpointing of a chain: the practice that optimal schedules are compared with."""

from __future__ import annotations

from remat_cli.solvers._chains.actions import Action


def periodic(stages: int, segments: int) -> tuple[Action, ...]:
    """Keep the input of each of `segments` runs of stages of one length; the last takes the rest.

    Each run but the last goes forward twice: for its output, and before its backwards with all that they need.
    """
    length = stages // segments
    starts = [1 + number * length for number in range(segments)]
    actions = []
    for start in starts[:-1]:
        actions += [Action("keep", start), *(Action("move", stage) for stage in range(start + 1, start + length))]
    ends = [*(start + length - 1 for start in starts[:-1]), stages]
    for start, end in reversed(list(zip(starts, ends, strict=True))):
        actions += [Action("all", stage) for stage in range(start, end + 1)]
        actions += [Action("back", stage) for stage in range(end, start - 1, -1)]
    return tuple(actions)
