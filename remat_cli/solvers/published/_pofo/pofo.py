"""POFO: recomputation and paging together on a chain (Shilova 2021, ch. 4, corrected): the best plan of its class.

Once all that a backward needs is stored, nothing before it runs until that backward; only what the forward sweep keeps
is paged, out before the instant between the forward and the backward of the loss, back after it. Symbols are those of
the thesis: `C` is the least duration of a block's backwards, `OC` that of everything from a stage on; `Ak` are bytes
kept, `D`, `DF` and `DB` backlogs in ticks of link time.

Corrected: a run of the forward sweep may end at the stage before the loss, no gradient waits in the forward sweep, and
in `C` only the stages that run are asked for room.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from remat_cli.solvers.base import never
from remat_cli.solvers.chains.actions import Action
from remat_cli.solvers.published._pofo.paged_chain import PagedChain
from remat_cli.solvers.published._pofo.pofo_kernels import NEVER
from remat_cli.solvers.published._pofo.pofo_tables import PofoFigures, PofoTables, fill_tables

Variant: TypeAlias = Literal["corrected", "printed"]
Forward: TypeAlias = tuple[bool, int, int, int, int]
"""Whether the stage before is stored whole, the stage, bytes kept, backlogs of writes and reads."""
Block: TypeAlias = tuple[int, int, int, int]
"""First and last stage, bytes kept, backlog of reads."""


class ForwardChoice(NamedTuple):
    """How the forward sweep goes on: `last` is the end of a run that keeps its input alone (0: all of one stage)."""

    ticks: int
    last: int = 0
    is_paged: bool = False


class BlockChoice(NamedTuple):
    """How a block is done: 0 for all of its first stage, otherwise where its first part ends."""

    ticks: int
    last: int = 0


@dataclass(frozen=True)
class PofoPlan:
    """A plan, the makespan in ticks that the program promises, and the stages whose kept copies are paged."""

    ticks: int
    forward: tuple[Action, ...]
    backward: tuple[Action, ...]
    paged: tuple[int, ...]


def pofo(chain: PagedChain, variant: Variant = "corrected", quantum_bytes: int = 0) -> PofoPlan | None:
    """The best plan, None where there is none; `printed` has no run of the forward sweep that ends before the loss.

    Without a quantum every state that comes up is one: exact, for a dozen stages or so. With one, bytes are rounded to
    multiples of it, backlogs to what it takes on the link, and all states are gone through in compiled loops. What is
    promised is then near, and whether the plan fits is to be seen.

    Raises:
        ModelError: the tables that the quantum makes are too large.
    """
    return PofoRecurrences(chain, variant, (False, True), quantum_bytes).plan()


def pofo_plans(chain: PagedChain, quantum_bytes: int, is_over: Callable[[], bool] = never) -> Iterator[PofoPlan]:
    """Plans for the chain's budget and each that is some quanta less, the largest first, from the same tables.

    None when it was over before the tables were filled.

    Raises:
        ModelError: the tables are too large.
    """
    search = PofoRecurrences(chain, "corrected", (False, True), quantum_bytes)
    if not search.fill(is_over):
        return
    for spare in range(0, search.budget - search.a[0] + 1, quantum_bytes):
        plan = search.plan(spare)
        if plan is None:
            return
        yield plan


@dataclass
class PofoRecurrences:
    """The tables of one chain, filled as far as they are asked for."""

    chain: PagedChain
    variant: Variant
    may_page: tuple[bool, ...]
    quantum_bytes: int
    blocks: dict[Block, BlockChoice] = field(default_factory=dict)
    forwards: dict[Forward, ForwardChoice] = field(default_factory=dict)
    tables: PofoTables | None = None

    def __post_init__(self) -> None:
        """The chain's figures under short names, bytes rounded."""
        chain, figures = self.chain, self.chain.chain
        self.n = chain.stages
        unit = max(1, self.quantum_bytes)
        self.budget = chain.budget_bytes // unit * unit
        self.write, self.read = chain.link.write_ticks, chain.link.read_ticks
        self.uF, self.uB = chain.forward_ticks, chain.backward_ticks
        self.a, self.A = self._near(figures.value_bytes), self._near(chain.kept_bytes)
        self.d = self._near(figures.gradient_bytes)
        self.all_extra = self._near(figures.saving_extra_bytes)
        self.bare_extra = self._near(figures.forward_extra_bytes)
        self.back_extra = self._near(figures.backward_extra_bytes)

    def _near(self, row: tuple[int, ...]) -> tuple[int, ...]:
        unit = self.quantum_bytes
        return tuple((2 * size + unit) // (2 * unit) * unit for size in row) if unit else tuple(row)

    def _ticks(self, backlog: int, per_byte: int) -> int:
        """A backlog that is left, rounded."""
        unit = self.quantum_bytes * per_byte
        return ((2 * backlog + unit) // (2 * unit) * unit if unit else backlog) if backlog > 0 else 0

    def plan(self, spare: int = 0) -> PofoPlan | None:
        """Fill the tables from the question, and unwind what was chosen; `spare` bytes are left free all through."""
        if self.budget < self.a[0]:
            return None
        if self.quantum_bytes and self.tables is None:
            self.fill(never)
        start = (False, 1, spare, 0, 0)
        ticks = self.forward_ticks(start)
        if ticks >= NEVER:
            return None
        # What was chosen, as actions.
        forward: list[Action] = []
        returns: list[list[Action]] = []
        paged: list[int] = []
        key: Forward | None = start
        while key is not None:
            choice, s = self.forward(key), key[1]
            if choice.is_paged:
                paged.append(s - 1)
            if choice.last:
                forward += _run(s, choice.last)
                _, key, block = self._run_forward(key, choice.last, choice.is_paged)
                assert block is not None
                returns.append(list(self._block_actions(block)))
            else:
                forward.append(Action("all", s))
                returns.append([Action("back", s)])
                _, key = self._all_forward(key, choice.is_paged)
        backward = [action for actions in reversed(returns) for action in actions]
        return PofoPlan(ticks, tuple(forward), tuple(backward), tuple(paged))

    def fill(self, is_over: Callable[[], bool]) -> bool:
        """Fill the tables of a quantum with all states; whether that was done before it was over."""
        if self.budget < self.a[0]:
            return False
        stages = range(1, self.n + 1)
        figures = PofoFigures(
            budget=self.budget,
            quantum=self.quantum_bytes,
            write=self.write,
            read=self.read,
            last=self.last,
            may_page=True in self.may_page,
            forward_ticks=self.uF,
            backward_ticks=self.uB,
            whole_bytes=self.A,
            value_bytes=self.a,
            gradient_bytes=self.d,
            bare_extra=self.bare_extra,
            save_need=(0, *map(self.saving_need, stages)),
            back_need=(0, *map(self.backward_need, stages)),
        )
        self.tables = fill_tables(figures, is_over)
        return self.tables is not None

    @property
    def last(self) -> int:
        """Where a run of the forward sweep may end at the latest."""
        return self.n - 1 if self.variant == "corrected" else self.n - 2

    def block_ticks(self, key: Block) -> int:
        """C: the least duration of the backwards of a block."""
        return self.block(key).ticks if self.tables is None else self.tables.block(*key)

    def forward_ticks(self, key: Forward) -> int:
        """OC: the least duration of all from a stage on."""
        return self.forward(key).ticks if self.tables is None else self.tables.forward(*key[:3], key[3:])

    def backward_need(self, s: int) -> int:
        """W: what the backward of s holds besides its input."""
        return self.A[s] + self.d[s] + self.d[s - 1] + self.back_extra[s]

    def saving_need(self, s: int) -> int:
        """R: what a forward of s that keeps all holds besides its input, with no gradient waiting."""
        return self.A[s] + self.all_extra[s]

    @cached_property
    def rows(self) -> dict[tuple[int, int], tuple[int, int]]:
        """For a run s..e that keeps its input: the most its forwards hold besides it, no gradient waiting.

        In bytes; and in ticks of reads, where each forward's need is less what is read from its end to the run's.
        """
        rows = {}
        for s in range(1, self.n + 1):
            most, late = 0, 0
            for k in range(s, self.n + 1):
                need = self.a[k] + self.bare_extra[k] + (0 if k == s else self.a[k - 1])
                most, late = max(most, need), max(late - self.uF[k], need * self.read)
                rows[s, k] = most, late
        return rows

    def block(self, key: Block) -> BlockChoice:
        """C: the least duration of the backwards of a block, from its first stage's input and its last gradient."""
        if key not in self.blocks:
            s, t, kept, _ = key
            room, waiting = self.budget - kept, self.d[t]
            found = []
            if max(waiting + self.saving_need(s), self.backward_need(s)) <= room:
                found.append(BlockChoice(self._all_parts(key)[0]))
            for end in range(s, t):
                if waiting + self.rows[s, end][0] > room:
                    break
                found.append(BlockChoice(self._run_parts(key, end)[0], end))
            self.blocks[key] = min(found, default=BlockChoice(NEVER))
        return self.blocks[key]

    def _all_parts(self, key: Block) -> tuple[int, Block | None]:
        """Duration of a block whose first stage keeps all, and the block that is left."""
        s, t, kept, backlog = key
        room = self.budget - kept
        stay = max(0, (self.backward_need(s) - room) * self.read + backlog)
        after = self._ticks(backlog - self.uB[s] - stay, self.read)
        inner = (s + 1, t, kept + self.A[s], after) if s < t else None
        ticks = self.block_ticks(inner) if inner else 0
        if ticks >= NEVER:
            return NEVER, None
        left = max(0, after - ticks)
        wait = max(0, (self.d[t] + self.saving_need(s) - room) * self.read + left)
        return self.uF[s] + ticks + self.uB[s] + stay + wait, inner

    def _run_parts(self, key: Block, end: int) -> tuple[int, Block, Block]:
        """Duration of a block that is split after `end`, and its parts, the one that runs last first."""
        s, t, kept, backlog = key
        first = (s, end, kept, backlog)
        ticks = self.block_ticks(first)
        left = self._ticks(backlog - ticks, self.read)
        second = (end + 1, t, kept + self.a[end], left)
        if ticks >= NEVER or (more := self.block_ticks(second)) >= NEVER:
            return NEVER, first, second
        left = max(0, left - more)
        late = self.rows[s, end][1] + self.d[t] * self.read
        wait = max(0, late - (self.budget - kept) * self.read + left)
        return sum(self.uF[s : end + 1]) + more + ticks + wait, first, second

    def forward(self, key: Forward) -> ForwardChoice:
        """OC: the least duration of everything from a stage on."""
        if key not in self.forwards:
            is_whole, s, kept, _, _ = key
            size = (self.A if is_whole else self.a)[s - 1]
            room = self.budget - kept - size
            found = []
            if max(self.saving_need(s), self.backward_need(s)) <= room:
                for is_paged in self.may_page if s < self.n and size else (False,):
                    found.append(ForwardChoice(self._all_forward(key, is_paged)[0], 0, is_paged))
            for is_paged in self.may_page if size else (False,):
                for end in range(s, self.last + 1):
                    need = self.a[end] + self.bare_extra[end] + (0 if end == s else self.a[end - 1])
                    if need > room + (size if is_paged and end > s else 0):
                        break
                    found.append(ForwardChoice(self._run_forward(key, end, is_paged)[0], end, is_paged))
            self.forwards[key] = min(found, default=ForwardChoice(NEVER))
        return self.forwards[key]

    def _all_forward(self, key: Forward, is_paged: bool) -> tuple[int, Forward | None]:
        """Duration when a stage keeps all, and what is left."""
        is_whole, s, kept, unwritten, unread = key
        size = (self.A if is_whole else self.a)[s - 1]
        room = self.budget - kept - size
        wait = max(0, (self.saving_need(s) - room) * self.write + unwritten)
        stay = max(0, (self.backward_need(s) - room) * self.read + unread)
        out, back = unwritten - self.uF[s] - wait, self._ticks(unread - self.uB[s] - stay, self.read)
        total = self.uF[s] + self.uB[s] + wait + stay
        if s == self.n:
            return total + max(0, out) + back, None
        rest = self._onward((True, s + 1), key, (is_paged, size), (out, back))
        return min(NEVER, total + self.forward_ticks(rest)), rest

    def _run_forward(self, key: Forward, end: int, is_paged: bool) -> tuple[int, Forward | None, Block | None]:
        """Duration when a run of stages keeps its input alone, what is left, and the block that comes back later."""
        is_whole, s, kept, unwritten, unread = key
        size = (self.A if is_whole else self.a)[s - 1]
        block = (s, end, kept + size, unread)
        ticks = self.block_ticks(block)
        if ticks >= NEVER:
            return NEVER, None, None
        early, passed = 0, 0
        for k in range(s, end + 1):
            need = self.a[k] + self.bare_extra[k] + (0 if k == s else self.a[k - 1])
            early = max(early, need * self.write - passed)
            passed += self.uF[k]
        wait = max(0, early - (self.budget - kept - size) * self.write + unwritten)
        out, back = unwritten - passed - wait, self._ticks(unread - ticks, self.read)
        rest = self._onward((False, end + 1), key, (is_paged, size), (out, back))
        return min(NEVER, passed + wait + ticks + self.forward_ticks(rest)), rest, block

    def _onward(
        self, where: tuple[bool, int], key: Forward, copy: tuple[bool, int], backlogs: tuple[int, int]
    ) -> Forward:
        """The question that is left when a stage's input was kept or paged."""
        is_paged, size = copy
        out, back = backlogs
        if is_paged:
            return *where, key[2], self._ticks(out + size * self.write, self.write), back + size * self.read
        return *where, key[2] + size, self._ticks(out, self.write), back

    def _block_actions(self, key: Block) -> Iterator[Action]:
        s, end = key[0], self.block(key).last
        if end:
            _, first, second = self._run_parts(key, end)
            yield from _run(s, end)
            yield from self._block_actions(second)
            yield from self._block_actions(first)
            return
        yield Action("all", s)
        inner = self._all_parts(key)[1]
        if inner is not None:
            yield from self._block_actions(inner)
        yield Action("back", s)


def _run(first: int, last: int) -> Iterator[Action]:
    """Forwards that keep the input of the first and the output of the last alone."""
    yield Action("keep", first)
    yield from (Action("move", stage) for stage in range(first + 1, last + 1))
