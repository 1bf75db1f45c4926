"""The least makespan of tiny paging problems by exhaustive search in unit time; shares no code with the solvers.

Breadth first over what is where at each nanosecond. A state knows the step that runs or comes next, what is on the
device, what is in the larger memory, and the transfer on each lane. Between two nanoseconds anything may be dropped
that is safe elsewhere and not used by the step that runs, a transfer may start on a free lane, and the next step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from remat_cli.core.paging.paging import PagedProblem


class Moment(NamedTuple):
    """`left` is how long step `step` still runs (0: it has not begun); a lane holds (tensor, is a read, ticks left)."""

    step: int
    left: int
    here: frozenset[int]
    there: frozenset[int]
    lanes: tuple[tuple[int, bool, int] | None, ...]


def least_makespan(problem: PagedProblem) -> int | None:
    """In ticks, of which each duration and transfer takes a whole number; None where it never ends."""
    steps, tensors = len(problem.durations), problem.tensors
    given = frozenset(t for t, spec in enumerate(tensors) if spec.uses[0] < 0)
    hosted = frozenset(t for t in given if tensors[t].is_hosted)
    lanes = (None, None) if problem.link.is_duplex else (None,)
    level = {Moment(0, 0, given, hosted, lanes)}
    seen, now = set(level), 0
    while level:
        after = set()
        for moment in level:
            for begun in _begun(problem, moment):
                if _bytes(problem, begun) <= problem.budget_bytes:
                    ticked = _tick(problem, begun)
                    if ticked.step == steps:
                        return now + 1
                    after.add(ticked)
        level, now = after - seen, now + 1
        seen |= level
    return None


def _used(problem: PagedProblem, step: int) -> frozenset[int]:
    return frozenset(t for t, spec in enumerate(problem.tensors) if step in spec.uses)


def _begun(problem: PagedProblem, moment: Moment) -> Iterator[Moment]:
    """Every way to go on at this instant."""
    busy = {lane[0] for lane in moment.lanes if lane}
    used = _used(problem, moment.step) if moment.left else frozenset()
    loose = [t for t in moment.here & moment.there if t not in used and not problem.tensors[t].is_kept]
    for count in range(len(loose) + 1):
        for dropped in itertools.combinations(loose, count):
            here = moment.here - set(dropped)
            for lanes in itertools.product(*_lanes(problem, moment, here, busy)):
                if len({lane[0] for lane in lanes if lane}) == sum(lane is not None for lane in lanes):
                    after = moment._replace(here=here, lanes=lanes)
                    yield after
                    if not after.left and _inputs(problem, after.step) <= here - {t for t, r, _ in _on(lanes) if r}:
                        made = frozenset(t for t, s in enumerate(problem.tensors) if s.uses[0] == after.step)
                        yield after._replace(left=problem.durations[after.step], here=here | made)


def _on(lanes: tuple[tuple[int, bool, int] | None, ...]) -> list[tuple[int, bool, int]]:
    return [lane for lane in lanes if lane]


def _inputs(problem: PagedProblem, step: int) -> frozenset[int]:
    return frozenset(t for t in _used(problem, step) if problem.tensors[t].uses[0] != step)


def _lanes(problem: PagedProblem, moment: Moment, here: frozenset[int], busy: set[int]) -> Iterator[list]:
    """What each lane may carry now: what it carries, nothing, or something that begins."""
    made = frozenset(t for t in here if not (moment.left and problem.tensors[t].uses[0] == moment.step))
    ready = {t for t in made - moment.there if _is_final(problem, t, moment.step)}
    writes = [(t, False, problem.transfer_ticks(t, "write")) for t in ready if t not in busy]
    reads = [(t, True, problem.transfer_ticks(t, "read")) for t in moment.there - here if t not in busy]
    fresh = [writes, reads] if problem.link.is_duplex else [writes + reads]
    for lane, new in zip(moment.lanes, fresh, strict=True):
        yield [lane] if lane else [None, *(item for item in new if problem.tensors[item[0]].size_bytes)]


def _is_final(problem: PagedProblem, tensor: int, step: int) -> bool:
    """Whether no step from this one on changes its bytes."""
    spec = problem.tensors[tensor]
    return spec.uses[spec.final] < step


def _bytes(problem: PagedProblem, moment: Moment) -> int:
    coming = {t for t, is_read, _ in _on(moment.lanes) if is_read}
    held = sum(problem.tensors[t].size_bytes for t in moment.here | coming)
    return held + (problem.workspace_bytes[moment.step] if moment.left else 0)


def _tick(problem: PagedProblem, moment: Moment) -> Moment:
    """One tick later; what nobody needs any more is gone."""
    step, left = moment.step, max(0, moment.left - 1)
    if moment.left == 1:
        step += 1
    here, there = set(moment.here), set(moment.there)
    lanes = []
    for lane in moment.lanes:
        if lane and lane[2] == 1:
            (here if lane[1] else there).add(lane[0])
        lanes.append((lane[0], lane[1], lane[2] - 1) if lane and lane[2] > 1 else None)
    dead = {t for t, s in enumerate(problem.tensors) if s.uses[-1] < step and not s.is_kept}
    return Moment(step, left, frozenset(here - dead), frozenset(there - dead), tuple(lanes))
