"""A chain whose kept values may be paged, the step rule that all algorithms on it share, and bounds.

Shilova 2021, ch. 3. Symbols of the thesis: `A[k]` is abar, with A[0] the chain's input; `mF(l)`, `mB(l)` what a
forward and a backward of stage l hold besides the kept values before it; `Ak` the bytes kept so far, `DF` and `DB` the
backlogs of writes and reads. Backlogs are in ticks of link time, so that everything is a whole number and both
directions may differ.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from remat_cli.core.paging.paging import Link
from remat_cli.solvers.chains.actions import Chain


class PagedState(NamedTuple):
    """Before a stage: bytes kept among the values before, ticks of writes left to do, ticks of reads to place.

    Where `unwritten` is negative the link has been idle so long, where `unread` is, the next read is so far away.
    """

    kept: int = 0
    unwritten: int = 0
    unread: int = 0


@dataclass(frozen=True)
class PagedChain:
    """A chain of stages 1..n, the loss among them, a budget for all that it holds, its input included, and a link.

    `hidden` are the ticks of writes that each forward hides, and of reads that each backward hides, by stage, where
    these are rounded (none: as long as they last).
    """

    chain: Chain
    budget_bytes: int
    link: Link
    hidden: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def stages(self) -> int:
        """How many stages there are, the loss among them."""
        return self.chain.stages

    @cached_property
    def kept_bytes(self) -> tuple[int, ...]:
        """Bytes of the chain's input and of what each stage keeps: A[0] to A[n]."""
        return (self.chain.value_bytes[0], *self.chain.saved_bytes[1:])

    @cached_property
    def forward_bytes(self) -> tuple[int, ...]:
        """Bytes that a forward which keeps all takes beside its input (mF), by stage."""
        return (0, *(map(sum, zip(self.kept_bytes[1:], self.chain.saving_extra_bytes[1:], strict=True))))

    @cached_property
    def backward_bytes(self) -> tuple[int, ...]:
        """Bytes that a backward takes, what it reads and makes included (mB), by stage."""
        chain, gradients = self.chain, self.chain.gradient_bytes
        return (
            0,
            *(
                chain.backward_extra_bytes[stage] + self.kept_bytes[stage] + gradients[stage] + gradients[stage - 1]
                for stage in range(1, self.stages + 1)
            ),
        )

    @cached_property
    def forward_ticks(self) -> tuple[int, ...]:
        """Time of each forward (uF), by stage."""
        return (0, *(time * self.link.ticks for time in self.chain.forward_ns[1:]))

    @cached_property
    def backward_ticks(self) -> tuple[int, ...]:
        """Time of each backward (uB), by stage."""
        return (0, *(time * self.link.ticks for time in self.chain.backward_ns[1:]))

    @property
    def compute_ticks(self) -> int:
        """The time without any stall."""
        return sum(self.forward_ticks) + sum(self.backward_ticks)

    @cached_property
    def stage_bytes(self) -> tuple[int, ...]:
        """The larger of mF and mB, by stage."""
        return tuple(map(max, self.forward_bytes, self.backward_bytes))

    @property
    def peak_bytes(self) -> int:
        """M_peak: what it takes with nothing paged."""
        before = accumulate(self.kept_bytes[:-1])
        return max(held + need for held, need in zip(before, self.stage_bytes[1:], strict=True))

    @property
    def least_bytes(self) -> int:
        """M_min: no smaller budget is met without recomputation, and this one is."""
        return max(map(sum, zip(self.kept_bytes[:-1], self.stage_bytes[1:], strict=True)))

    @property
    def forward_drain(self) -> tuple[int, ...]:
        """Ticks of writes that each forward hides."""
        return self.forward_ticks if self.hidden is None else self.hidden[0]

    @property
    def backward_drain(self) -> tuple[int, ...]:
        """Ticks of reads that each backward hides."""
        return self.backward_ticks if self.hidden is None else self.hidden[1]

    def step(self, stage: int, state: PagedState, off: int) -> tuple[PagedState, int] | None:
        """The step rule: pass a stage when `off` bytes of its input are paged; None where it cannot be.

        Gives the state before the next stage and what the stage adds to the makespan, forward and backward.
        """
        before = self.kept_bytes[stage - 1]
        room = self.budget_bytes - state.kept - before
        if self.stage_bytes[stage] > room:
            return None
        write, read = self.link.write_ticks, self.link.read_ticks
        wait = max(0, (self.forward_bytes[stage] - room) * write + max(0, state.unwritten))
        stay = max(0, (self.backward_bytes[stage] - room) * read + max(0, state.unread))
        hidden, shown = wait + self.forward_drain[stage], stay + self.backward_drain[stage]
        if off:
            unwritten = max(0, state.unwritten) + off * write - hidden
            unread = max(0, state.unread - shown) + off * read
        else:
            unwritten, unread = state.unwritten - hidden, state.unread - shown
        cost = self.forward_ticks[stage] + self.backward_ticks[stage] + wait + stay
        return PagedState(state.kept + before - off, unwritten, unread), cost

    def gap(self, state: PagedState) -> int:
        """Idle time between the forward and the backward of the loss, from the state after it."""
        kept, unwritten, unread = state
        if unwritten > 0 and unread > 0:
            return unwritten + unread
        last = kept + self.kept_bytes[-1] - self.budget_bytes
        if unwritten > 0:
            gradients, extra = self.chain.gradient_bytes, self.chain.backward_extra_bytes
            needs = [0, *(gradients[j - 1] + gradients[j] + extra[j] for j in range(1, self.stages + 1))]
            return self._overhang(unwritten, -unread, (self.link.write_ticks, last), (needs, self.backward_drain))
        if unread > 0:
            needs = list(self.chain.saving_extra_bytes)
            return self._overhang(unread, -unwritten, (self.link.read_ticks, last), (needs, self.forward_drain))
        return 0

    def _overhang(
        self, backlog: int, free: int, held: tuple[int, int], beyond: tuple[Sequence[int], Sequence[int]]
    ) -> int:
        """How long to wait for a backlog that goes on beyond the loss, where the link is free for so long."""
        per_byte, excess = held
        needs, ticks = beyond
        wait, passed = max(0, backlog - free), 0
        for stage in range(self.stages, 0, -1):
            if passed >= free:
                break
            wait = max(wait, (needs[stage] + excess) * per_byte + backlog - passed)
            passed += ticks[stage]
            excess -= self.kept_bytes[stage]
        return wait

    def follow(self, offs: Sequence[int]) -> int | None:
        """Makespan in ticks when so many bytes of A[0], A[1], ... are paged; None where that does not fit."""
        state, total = PagedState(), 0
        for stage, off in enumerate(offs, 1):
            passed = self.step(stage, state, off)
            if passed is None:
                return None
            state, cost = passed
            total += cost
        return total + self.gap(state)

    def follow_set(self, paged: Iterable[int]) -> int | None:
        """The same where the values of these stages are paged whole."""
        chosen = set(paged)
        return self.follow([size if k in chosen else 0 for k, size in enumerate(self.kept_bytes[:-1])])

    def greedy_bytes(self) -> list[int]:
        """Bytes to page of A[0], A[1], ...: the first ones, until what is too much is out."""
        missing, offs = max(0, self.peak_bytes - self.budget_bytes), []
        for size in self.kept_bytes[:-1]:
            offs.append(min(size, missing))
            missing -= offs[-1]
        return offs

    def greedy_set(self) -> tuple[int, ...]:
        """GREEDY: the first values, each whole, that together are what is too much."""
        return tuple(k for k, off in enumerate(self.greedy_bytes()) if off)
