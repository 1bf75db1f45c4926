"""Schedules of any graph's steps by simple rules: which gaps to page, when to move what. Starts for the exact model.

A transfer is given the step after which it may start, as in a plan that runs without a clock: a write the step that
makes the tensor, a read the last one that leaves enough time and has room from there on. Then steps and transfers start
in this order, each as soon as the link and the room are free.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from remat_cli.base.present import present
from remat_cli.core.paging.paging import PagedProblem, PagedSchedule, PageTransfer
from remat_cli.solvers.paging.hot import hot_gaps
from remat_cli.solvers.published._pofo.two_phases import first_room, two_phases


class Choice(NamedTuple):
    """A gap that is to be paged, between uses `gap` and `gap` + 1 of a tensor: the steps `since` and `until`."""

    tensor: int
    gap: int
    since: int
    until: int


Rule = Callable[[PagedProblem, Choice], float]
"""How much a gap is worth paging: the one with the most goes first."""


RULES: tuple[Rule, ...] = (
    lambda problem, choice: choice.until,  # needed again last
    lambda problem, choice: -problem.tensors[choice.tensor].uses[0],  # made first
    lambda problem, choice: problem.tensors[choice.tensor].size_bytes,  # the largest
    lambda problem, choice: (  # time of the steps in the gap, less that of moving the tensor twice
        sum(problem.durations[choice.since + 1 : choice.until])
        - sum(problem.transfer_ticks(choice.tensor, way) for way in ("write", "read"))
    ),
)
LEADS = (1, 2)  # how many times what it takes a read starts ahead


def list_schedules(problem: PagedProblem) -> Iterator[PagedSchedule]:
    """A few schedules; each is legal and within the budget if the problem is possible at all."""
    held = problem.held_bytes()
    hottest = max(range(len(held)), key=held.__getitem__)
    for rule in RULES:
        chosen = choose_gaps(problem, rule)
        for lead in LEADS:
            yield timed(problem, place_reads(problem, chosen, lead))
        # Where each tensor is written before that step and read after it.
        if all(c.since < hottest <= c.until and not problem.tensors[c.tensor].is_hosted for c in chosen):
            found = two_phases(problem, hottest, {choice.tensor: choice.gap for choice in chosen})
            if found is not None:
                yield found


def choose_gaps(problem: PagedProblem, rule: Rule) -> list[Choice]:
    """Gaps to page until every step has room, by the rule; those that turn out not to be needed are left out."""
    held = list(problem.held_bytes())
    across: list[list[Choice]] = [[] for _ in held]
    worth: dict[Choice, tuple[float, Choice]] = {}
    for tensor, gap in hot_gaps(problem):
        uses = problem.tensors[tensor].uses
        choice = Choice(tensor, gap, uses[gap], uses[gap + 1])
        worth[choice] = rule(problem, choice), choice
        for step in range(choice.since + 1, choice.until):
            across[step].append(choice)
    chosen: list[Choice] = []
    for step in range(len(held)):
        if held[step] <= problem.budget_bytes:
            continue
        spare = sorted(set(across[step]).difference(chosen), key=worth.__getitem__)
        while held[step] > problem.budget_bytes:
            chosen.append(spare.pop())
            _hold(held, chosen[-1], -problem.tensors[chosen[-1].tensor].size_bytes)
    for choice in tuple(chosen):
        size = problem.tensors[choice.tensor].size_bytes
        if all(held[step] + size <= problem.budget_bytes for step in range(choice.since + 1, choice.until)):
            chosen.remove(choice)
            _hold(held, choice, size)
    return chosen


def _hold(held: list[int], choice: Choice, size: int) -> None:
    for step in range(choice.since + 1, choice.until):
        held[step] += size


@dataclass(frozen=True)
class Placed:
    """Gaps with the step before which each read may start; `held` is what steps then hold once all writes are over."""

    reads: tuple[tuple[int, Choice], ...]
    held: tuple[int, ...]


def place_reads(problem: PagedProblem, chosen: list[Choice], lead: int) -> Placed:
    """The last step that leaves `lead` times what a read takes, if there is room from there on; the last use first."""
    held = list(problem.held_bytes((problem.tensors[choice.tensor], choice.gap) for choice in chosen))
    begins = [0, *accumulate(problem.durations)]
    reads, busy = [], begins[-1]
    for choice in sorted(chosen, key=lambda each: -each.until):
        size = problem.tensors[choice.tensor].size_bytes
        busy = min(busy, begins[choice.until]) - lead * problem.transfer_ticks(choice.tensor, "read")
        step = choice.until
        while step > choice.since + 1 and begins[step] > busy and held[step - 1] + size <= problem.budget_bytes:
            step -= 1
            held[step] += size
        reads.append((step, choice))
    return Placed(tuple(reads), tuple(held))


@dataclass
class _Clock:
    """What has been given its time: when each lane of the link is free, and bytes on their way out until when."""

    problem: PagedProblem
    free: dict[str, int] = field(default_factory=dict)
    leaving: list[tuple[int, int]] = field(default_factory=list)
    gone: dict[int, int] = field(default_factory=dict)
    transfers: list[PageTransfer] = field(default_factory=list)

    def move(self, transfer: PageTransfer) -> int:
        """Start a transfer at its time or when the link is free, and say when it is over."""
        lane = transfer.direction if self.problem.link.is_duplex else "both"
        start = max(transfer.start, self.free.get(lane, 0))
        self.free[lane] = start + self.problem.transfer_ticks(transfer.tensor, transfer.direction)
        self.transfers.append(PageTransfer(transfer.tensor, transfer.direction, start, transfer.gap))
        return self.free[lane]

    def room(self, held: int, now: int) -> int:
        """When what is still on its way out fits beside `held`, from now on."""
        return present(first_room(self.problem.budget_bytes - held, now, self.leaving), "room for a step")


def timed(problem: PagedProblem, placed: Placed) -> PagedSchedule:
    """Steps, writes and reads in their order, each as soon as it may."""
    clock, starts, now = _Clock(problem), [], 0
    ready = [0] * len(problem.durations)
    chosen = {choice.tensor for _, choice in placed.reads}
    for step, duration in enumerate(problem.durations):
        for tensor in sorted(chosen):
            spec = problem.tensors[tensor]
            if spec.uses[spec.final] == step - 1 and not spec.is_hosted:
                clock.gone[tensor] = clock.move(PageTransfer(tensor, "write", now))
        for _, choice in placed.reads:
            if choice.since == step - 1 and choice.tensor in clock.gone:
                clock.leaving.append((max(now, clock.gone[choice.tensor]), problem.tensors[choice.tensor].size_bytes))
        now = clock.room(placed.held[step], now)
        for _, choice in sorted(item for item in placed.reads if item[0] == step):
            away = max(now, clock.gone.get(choice.tensor, 0))
            ready[choice.until] = max(
                ready[choice.until], clock.move(PageTransfer(choice.tensor, "read", away, choice.gap))
            )
        starts.append(max(now, ready[step]))
        now = starts[-1] + duration
    return PagedSchedule(tuple(starts), tuple(clock.transfers))
