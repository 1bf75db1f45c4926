"""Paging as a fluid: a linear program whose value no schedule beats (room is counted at instants).

Slots are, in turn, a stall before each step, of free length, and the step. Room is counted when a step starts and when
it ends: bytes written until then have gone, bytes read until then are there. The printed program counts writes until
the start and reads until the end at one time, so that it forbids what a schedule may do: a write that ends and a read
that starts while one step runs. On chains both have the value of FRAC.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from remat_cli.core.paging.paging import PagedProblem
from remat_cli.solvers.base import Limits
from remat_cli.solvers.milp.process import Reply, ask_highs_in_turn, proved_value, safe_units
from remat_cli.solvers.paging.hot import cut_bound, hot_gaps, is_possible

MOST_VARIABLES = 200_000  # more than this HiGHS takes minutes for
_MOST = 1_000.0  # what sizes and times are scaled to: floating point needs numbers of moderate size

Term: TypeAlias = tuple[float, int]


def fluid_bounds(problems: Sequence[PagedProblem], limits: Limits) -> list[int]:
    """A bound on the makespan of each problem in ticks, that of its cuts where the program is too large or time is up.

    All problems must be possible. In one process, one after the other.
    """
    programs = [_Fluid(problem) for problem in problems]
    asked = [program for program in programs if program.variables <= MOST_VARIABLES]
    replies = iter(ask_highs_in_turn([program.as_dict() for program in asked], limits)) if asked else iter(())
    answers = (item for item in replies if isinstance(item, Reply))
    bounds = []
    for program in programs:
        bound = cut_bound(program.problem)
        reply = next(answers, None) if program.variables <= MOST_VARIABLES else None
        if reply is not None and reply.duals is not None:
            bound = max(bound, program.ticks(proved_value(program.as_dict(), reply.duals)))
        bounds.append(bound)
    return bounds


@dataclass(frozen=True)
class _Share:
    """The part of a tensor that is away in a gap, and what of it was read before each slot, from the gap's first on."""

    tensor: int
    gap: int
    away: int
    read: dict[int, int]


@dataclass
class _Fluid:
    """The program of one problem; sizes are parts of `byte_unit`, times of `tick_unit`."""

    problem: PagedProblem
    upper: list[float] = field(default_factory=list)
    cost: list[int] = field(default_factory=list)
    rows: list[tuple[list[Term], float | None, float | None]] = field(default_factory=list)
    written: dict[int, dict[int, int]] = field(default_factory=dict)
    shares: list[_Share] = field(default_factory=list)
    stalls: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Add all variables, then all rows."""
        problem = self.problem
        assert is_possible(problem)
        self.tick_unit = max(1.0, problem.compute_ticks / _MOST)
        self.byte_unit = max(1.0, problem.budget_bytes / _MOST)
        gaps = list(hot_gaps(problem))
        both = problem.link.write_ticks + problem.link.read_ticks
        most = sum(problem.tensors[tensor].size_bytes for tensor, _ in gaps) * both / self.tick_unit
        self.stalls = [self._variable(most, cost=1) for _ in problem.durations]
        for tensor, gap in gaps:
            # Reads bring back what is away, and never more than was written.
            spec, size = self.problem.tensors[tensor], self._size(tensor)
            first, last = 2 * spec.uses[gap] + 2, 2 * spec.uses[gap + 1] + 1
            share = _Share(tensor, gap, self._variable(size), {})
            self._sums(share.read, first, last, size)
            self.shares.append(share)
            self.rows.append(([(1.0, share.away), (-1.0, share.read[last])], 0.0, 0.0))
            if not spec.is_hosted:
                written = self.written.setdefault(tensor, {})
                self._sums(written, 2 * spec.uses[spec.final] + 2, last, size)
                for slot in range(first + 1, last + 1):
                    self.rows.append(([(1.0, written[slot]), (-1.0, share.read[slot])], 0.0, None))
        # What moves in a slot, in time.
        link = self.problem.link
        scale = self.byte_unit / self.tick_unit
        moved: dict[tuple[int, str], list[Term]] = defaultdict(list)
        for sums in self.written.values():
            _add_moves(moved, sums, scale * link.write_ticks, "write")
        for share in self.shares:
            _add_moves(moved, share.read, scale * link.read_ticks, "read" if link.is_duplex else "write")
        for (slot, _), terms in moved.items():
            step, is_step = divmod(slot, 2)
            if is_step:
                self.rows.append((terms, None, self.problem.durations[step] / self.tick_unit))
            else:
                self.rows.append(([*terms, (-1.0, self.stalls[step])], None, 0.0))
        self._room_rows()

    @property
    def variables(self) -> int:
        """How many variables there are."""
        return len(self.upper)

    def as_dict(self) -> dict[str, Any]:
        """The program as the worker's process takes it."""
        return {
            "cost": self.cost,
            "integral": [False] * len(self.upper),
            "lower": [0.0] * len(self.upper),
            "upper": self.upper,
            "rows": self.rows,
            "duals": True,
        }

    def ticks(self, stall: float) -> int:
        """The makespan that so much stall makes, with a margin for floating point, in ticks."""
        return self.problem.compute_ticks + safe_units(stall * self.tick_unit)

    def _variable(self, upper: float, cost: int = 0) -> int:
        self.upper.append(upper)
        self.cost.append(cost)
        return len(self.upper) - 1

    def _size(self, tensor: int) -> float:
        return self.problem.tensors[tensor].size_bytes / self.byte_unit

    def _sums(self, sums: dict[int, int], first: int, last: int, size: float) -> None:
        """A variable for what was moved before each slot, up to the last; nothing before the first, then never less."""
        for slot in range(max(first, *sums) + 1 if sums else first, last + 1):
            sums[slot] = self._variable(size if slot > first else 0.0)
            if slot > first:
                self.rows.append(([(1.0, sums[slot]), (-1.0, sums[slot - 1])], 0.0, None))

    def _room_rows(self) -> None:
        """When a step starts and when it ends, what it does not use takes no more than is left."""
        problem, budget = self.problem, self.problem.budget_bytes
        across: list[list[_Share]] = [[] for _ in problem.durations]
        for share in self.shares:
            uses = problem.tensors[share.tensor].uses
            for step in range(uses[share.gap] + 1, uses[share.gap + 1]):
                across[step].append(share)
        for step, held in enumerate(problem.held_bytes()):
            for slot in (2 * step + 1, 2 * step + 2) if held > budget else ():
                gone: list[Term] = []
                for share in across[step]:
                    # What is away when a slot starts: no more than is to be away, and no more than was written.
                    away = self._variable(self._size(share.tensor))
                    gone.append((1.0, away))
                    back = [(-1.0, share.read[slot]), (-1.0, away)]
                    self.rows.append(([(1.0, share.away), *back], 0.0, None))
                    if not problem.tensors[share.tensor].is_hosted:
                        self.rows.append(([(1.0, self.written[share.tensor][slot]), *back], 0.0, None))
                self.rows.append((gone, (held - budget) / self.byte_unit, None))


def _add_moves(moved: dict[tuple[int, str], list[Term]], sums: dict[int, int], ticks: float, lane: str) -> None:
    """What each slot adds to a sum, in time, on a lane of the link."""
    for slot, after in sums.items():
        if slot - 1 in sums:
            moved[slot - 1, lane] += [(ticks, after), (-ticks, sums[slot - 1])]
