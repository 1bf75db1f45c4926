"""Rotor: optimal persistent schedules of chains of unequal stages, from one table for all budgets."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers._sharing import Condensed, condense
from remat_cli.solvers.base import Limits, Reason, Solution, several_devices
from remat_cli.solvers.chains.actions import Action, periodic
from remat_cli.solvers.chains.blocks import Blocks, find_blocks, spell_out
from remat_cli.solvers.chains.candidates import best_within, cleaned
from remat_cli.solvers.chains.rotor_tables import RotorTable, Variant, build_table, plans, size_table, table_bytes


class Rotor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Least time of a chain of stages with times and sizes of their own, by dynamic programming over memory slots.

    Shilova 2021, chapter 2 (Beaumont et al., "Optimal checkpointing for heterogeneous chains", 2019). A training step
    is viewed as a chain of blocks, each with a forward and a backward; a checkpoint is a block's output or all that its
    backward needs. The table is optimal for the blocks under its rules, to a slot; ops inside blocks run together.
    O(S N^3) time and O(S N^2) memory for N stages and S slots.

    Attributes:
        variant: `persistent`, which uses a checkpoint where it was kept; `drop`, which may also keep all that a
            backward needs without the stage's input (twice the table); `floating`, in which checkpoints may move on
            (O(S N^4) time, O(S N^3) memory); `no-fall`, which only keeps outputs, as in automatic differentiation;
            `periodic`, no table but checkpoints at equal distances, every distance tried.
        slots: parts that the budget is counted in, unless a common divisor of all sizes needs fewer: then exact.
        close_gaps: afterwards keep what the rest of the budget has room for.
        inflate: also judge plans for larger budgets, since plans may take less than the table thinks; where none fits,
            those of variant `no-fall` too, which hold least (the fact `also` says so).
    """

    name: ClassVar[str] = "rotor"
    summary: ClassVar[str] = "optimal checkpoints of a chain of unequal blocks (Beaumont et al. 2019)"
    takes: ClassVar[str] = "A training step on one device that is a chain of blocks, not too long for the table."
    proves: ClassVar[str] = "nothing beyond that the baseline is fastest where it fits"

    variant: Literal["persistent", "drop", "floating", "no-fall", "periodic"] = "persistent"
    slots: Annotated[int, msgspec.Meta(ge=1)] = 500
    close_gaps: bool = True
    inflate: bool = True

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        if (reason := several_devices(problem)) is not None:
            return reason
        condensed = condense(problem)
        blocks = find_blocks(condensed.problem, "free")
        if isinstance(blocks, Reason):
            return condensed.in_original_terms(blocks)
        if self.variant == "periodic":
            return None
        sizing = size_table(blocks.chain, self.variant, room_of(blocks), self.slots, self.inflate)
        return sizing if isinstance(sizing, Reason) else None

    def kernels(self, problem: Problem) -> tuple[str, ...]:
        """Those that fill the tables; equal distances need none."""
        return () if self.variant == "periodic" else ("chains.rotor_warmup",)

    def solve(self, problem: Problem, limits: Limits, start: Schedule | None = None) -> Solution:
        """The fastest within the budget of the plans for it and for larger budgets."""
        session = _Session(self, limits)
        found = best_within(problem, session.propose, self.close_gaps, limits, start)
        return replace(found, facts={**found.facts, **session.facts})


def room_of(blocks: Blocks) -> int:
    """What the budget leaves for the chain."""
    return blocks.problem.memories[0].free_bytes - blocks.resident_bytes


@dataclass
class _Session:
    """One call of `Rotor.solve`."""

    options: Rotor
    limits: Limits
    facts: dict[str, Any] = field(default_factory=dict)
    has_fitting: bool = False

    def propose(self, condensed: Condensed) -> Iterator[list[int]]:
        """Propose plans on blocks, spelled out as schedules."""
        blocks = find_blocks(condensed.problem, self.limits.order)
        if isinstance(blocks, Reason):
            self.facts["refused"] = str(condensed.in_original_terms(blocks))
            return
        self.facts["stages"] = blocks.chain.stages
        variant = self.options.variant
        if variant == "periodic":
            for segments in range(1, min(blocks.chain.stages, 2 * math.isqrt(blocks.chain.stages) + 1) + 1):
                yield spell_out(blocks, periodic(blocks.chain.stages, segments))
            return
        # A table takes the fastest plan of each budget as it counts, which need not be the one that really holds least:
        # where none fits and larger budgets are asked for, those that only keep outputs too.
        table = self._table(blocks, variant, self.facts)
        if table is None:
            return
        self.facts["chain_time_ns"] = table.least_ns(room_of(blocks))
        yield from self._plans(blocks, table)
        if self.has_fitting or not self.options.inflate or variant == "no-fall":
            return
        self.facts["also"] = {"variant": "no-fall"}
        del table  # as large as the next
        sparing = self._table(blocks, "no-fall", self.facts["also"])
        if sparing is not None:
            yield from self._plans(blocks, sparing)

    def _table(self, blocks: Blocks, variant: Variant, facts: dict[str, Any]) -> RotorTable | None:
        """A table for the budget and, if asked for, larger ones; None where it is too large or time is over."""
        slots = size_table(blocks.chain, variant, room_of(blocks), self.options.slots, self.options.inflate)
        if isinstance(slots, Reason):
            facts["refused"] = str(slots)
            return None
        size = table_bytes(blocks.chain.stages, variant, slots.most)
        facts |= {"slots": slots.most, "is_exact": slots.is_exact, "table_bytes": size}
        table = build_table(blocks.chain, variant, slots, lambda: self.limits.is_over)
        if table is None:
            facts["refused"] = "the time was over before the table was"
        return table

    def _plans(self, blocks: Blocks, table: RotorTable) -> Iterator[list[int]]:
        """The plans of a table that are worth judging; notes whether one of them fits."""
        problem, room = blocks.problem, room_of(blocks)
        self.has_fitting |= table.least_ns(room) is not None

        def spell(actions: Sequence[Action]) -> list[int]:
            return spell_out(blocks, actions)

        def fits(ops: list[int]) -> bool:
            schedule = cleaned(problem, ops, self.limits.order)
            is_within = self.limits.judge(problem, schedule).peak <= problem.memories[0].budget_bytes
            self.has_fitting |= is_within
            return is_within

        yield from plans(table, room, spell, fits)
