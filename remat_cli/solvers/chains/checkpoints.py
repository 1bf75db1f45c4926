"""Checkpoints of a training step: which forward values to keep, and the steps that this choice makes.

The heuristics of Chen et al. 2016 for chains, carried over to graphs as in Jain et al. 2020. All of it goes by the
baseline order and looks at an op's results together, as one value.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from typing import Literal, TypeAlias

from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers.base import Reason
from remat_cli.solvers.chains.blocks import cut_ops, forward_ops, marks_missing

CandidateOps: TypeAlias = Literal["both", "articulation", "linearised"]

SEARCH_SPAN = 3  # segment sizes go up to so many times the memory that square-root checkpoints take
GUESSES = 3  # rounds in which Chen's choice of a segment size settles
AROUND = 6  # steps of the search from its guess divided by the root of two to its guess times that


@dataclass(frozen=True)
class Passes:
    """A one-device problem as a forward pass and what comes after it.

    `forward` are the forward ops before the first backward op; one that comes after it runs once, at its place.
    `reads[v]` are the ops whose results op v reads, ascending, `sizes[v]` the bytes of its results together. An op in
    `held` is never let go once it ran: it must not be repeated, or all of its results stay to the end anyway.
    """

    problem: Problem
    forward: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    held: frozenset[int]

    @cached_property
    def is_forward(self) -> tuple[bool, ...]:
        """Whether each op belongs to the forward pass."""
        forward = set(self.forward)
        return tuple(op in forward for op in range(len(self.reads)))

    @cached_property
    def later(self) -> tuple[int, ...]:
        """The ops that are not forward; their index here is the place that retention is asked for."""
        return tuple(op for op, is_forward in enumerate(self.is_forward) if not is_forward)

    @cached_property
    def last_later_use(self) -> tuple[int, ...]:
        """By op: the last place in `later` that reads its results, -1 if none does."""
        last = [-1] * len(self.reads)
        for place, op in enumerate(self.later):
            for source in self.reads[op]:
                last[source] = place
        return tuple(last)


def passes_of(problem: Problem) -> Passes:
    """Split at the first op that is marked as backward; without one all but the updates is forward."""
    first = next((op for op, spec in enumerate(problem.ops) if spec.phase == "backward"), len(problem.ops))
    tensors = problem.tensors
    return Passes(
        problem=problem,
        forward=tuple(op for op in forward_ops(problem) if op < first),
        reads=tuple(tuple(sorted({tensors[t].producer for t in spec.inputs})) for spec in problem.ops),
        sizes=tuple(sum(tensors[t].size_bytes for t in spec.outputs) for spec in problem.ops),
        held=frozenset(
            op
            for op, spec in enumerate(problem.ops)
            if not spec.repeatable or all(tensors[t].kept for t in spec.outputs)
        ),
    )


def nothing_to_checkpoint(problem: Problem) -> Reason | None:
    """The reason why a problem is no training step with a forward pass on one device, or None."""
    if len(problem.devices) > 1:
        return Reason("it places every op on one device")
    if reason := marks_missing(problem):
        return reason
    if not passes_of(problem).forward:
        return Reason("no forward op comes before the first backward op, so there is nothing to checkpoint")
    return None


def candidate_ops(passes: Passes, which: CandidateOps) -> tuple[tuple[int, ...], ...]:
    """What checkpoints are chosen from, for each way asked for."""
    if which == "linearised":
        return (passes.forward,)
    cuts = cut_ops(passes.problem, passes.forward)
    return (cuts,) if which == "articulation" else (cuts, passes.forward)


def every_root(candidates: Sequence[int]) -> tuple[int, ...]:
    """Of n candidates every floor(sqrt(n))-th: segments as many as long."""
    stride = isqrt(len(candidates))
    return tuple(candidates[stride - 1 :: stride]) if stride else ()


def by_size(passes: Passes, candidates: Iterable[int], segment_bytes: int) -> tuple[int, ...]:
    """Each candidate at which more than `segment_bytes` have been made since the checkpoint before, itself included."""
    allowed = frozenset(candidates)
    chosen, made = [], 0
    for op in passes.forward:
        made += passes.sizes[op]
        if op in allowed and made > segment_bytes:
            chosen.append(op)
            made = 0
    return tuple(chosen)


def segment_sizes(passes: Passes, candidates: Sequence[int], peak_bytes: int, count: int) -> Iterator[int]:
    """Sizes worth trying: `count` even steps from 0 to a multiple of a peak, then those that Chen et al. search."""
    for step in range(count):
        yield step * SEARCH_SPAN * peak_bytes // max(1, count - 1)
    # The geometric mean of what the checkpoints take and of the largest segment, from the finest cut on.
    guess = 0
    for _ in range(GUESSES):
        chosen = by_size(passes, candidates, guess)
        # The most bytes made up to a checkpoint, itself included, since the one before, or after the last.
        ends = frozenset(chosen)
        largest_segment = made = 0
        for op in passes.forward:
            made += passes.sizes[op]
            largest_segment = max(largest_segment, made)
            made = 0 if op in ends else made
        guess = isqrt(sum(passes.sizes[op] for op in chosen) * largest_segment)
    for step in range(AROUND + 1):
        yield int(guess * 2 ** (step / AROUND - 0.5))


def steps_of(passes: Passes, checkpoints: Iterable[int]) -> list[int]:
    """The ops to run, in order, when these forward ops are checkpoints; steps that turn out useless are among them.

    The forward pass keeps checkpoints and, of the segment that is asked for first, what later ops read. An op that
    reads what is gone has it recomputed, from the checkpoint before on; a segment is let go when no later op reads it.
    """
    return _Run(passes, frozenset(checkpoints)).steps()


class _Run:
    """One run of the step: what is there, and of it `loose`, what is let go once nobody needs it soon."""

    def __init__(self, passes: Passes, checkpoints: frozenset[int]) -> None:
        self.passes = passes
        self.stays = checkpoints | passes.held
        # By op: how many checkpoints come before it in the forward pass (-1: it is not in that).
        segment = [-1] * len(passes.reads)
        before = 0
        for op in passes.forward:
            segment[op] = before
            before += op in checkpoints
        self.segment = segment
        # By place: the last segment of which this or a later one reads something that may be gone, -1: none.
        wanted = [-1] * (len(passes.later) + 1)
        for op in passes.forward:
            last = passes.last_later_use[op]
            if op not in self.stays and last >= 0:
                wanted[last] = max(wanted[last], self.segment[op])
        for place in reversed(range(len(passes.later))):
            wanted[place] = max(wanted[place], wanted[place + 1])
        self.wanted = wanted
        self.uses_left = Counter(source for op in passes.forward for source in passes.reads[op])
        self.there: set[int] = set()
        self.loose: set[int] = set()
        self.ran: list[int] = []

    def steps(self) -> list[int]:
        """Every op at its place, each later op after what it needs."""
        place = 0
        for op, sources in enumerate(self.passes.reads):
            already = len(self.ran)
            # Recompute those that are gone and what they need, lowest first, inputs before readers.
            waiting = [source for source in reversed(sources) if source not in self.there]
            while waiting:
                gone = [source for source in reversed(self.passes.reads[waiting[-1]]) if source not in self.there]
                if gone:
                    waiting += gone
                    continue
                again = waiting.pop()
                if again not in self.there:
                    self._run(again)
            self._run(op)
            touched = self.loose.intersection((*sources, *self.ran[already:]))
            if self.passes.is_forward[op]:
                for source in sources:
                    self.uses_left[source] -= 1
                self._let_go(touched, place)
                continue
            place += 1
            has_moved_on = self.wanted[place] != self.wanted[place - 1]
            self._let_go(self.loose if has_moved_on else touched, place)
        return self.ran

    def _run(self, op: int) -> None:
        self.ran.append(op)
        self.there.add(op)
        if self.passes.is_forward[op] and op not in self.stays:
            self.loose.add(op)

    def _let_go(self, ops: set[int], place: int) -> None:
        """Forget those that no forward op has yet to read and that are not of the segment wanted from `place` on."""
        passes, segment, wanted = self.passes, self.segment, self.wanted[place]
        gone = {
            op for op in ops if not self.uses_left[op] and (segment[op] != wanted or passes.last_later_use[op] < place)
        }
        self.loose -= gone
        self.there -= gone
