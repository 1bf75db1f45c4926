"""A bound for any order of first computations, from what the graph alone forces.

If the producer of x comes before op t in every order, and a reader of x after it, then at the first computation of t
tensor x is in memory or it is recomputed before that reader runs first. Two such recomputes are two when a reader of x
lies on a path between the two ops. Strong where the graph is nearly a chain, as in training; zero on wide graphs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from remat_cli.solvers._bounds_milp import Milp
from remat_cli.solvers._bounds_pressure import Pressure
from remat_cli.solvers._moccasin_time import relatives


def free_order_milp(pressure: Pressure) -> Milp:
    """Cost in time units; one row per op that is over budget when all that is forced to be there stays."""
    builder = _Builder(pressure)
    for event in range(len(pressure.problem.ops)):
        builder.cover(event)
    builder.count_runs()
    return builder.milp


@dataclass
class _Builder:
    """`missing[x][t]` is the literal "x is not in memory at the first computation of t"."""

    pressure: Pressure
    milp: Milp = field(default_factory=Milp)
    missing: dict[int, dict[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ancestors, self.descendants = relatives(self.pressure.problem)
        self.readers = [sum(1 << op for op in ops) for ops in self.pressure.readers]

    def cover(self, event: int) -> None:
        """Working set and what stays in memory around an event fit together."""
        pressure = self.pressure
        forced = self._forced(event)
        most = pressure.capacity - pressure.working[event] - sum(pressure.weight[root] for root in forced)
        if most >= 0:
            return
        terms = []
        for root, tensors in forced.items():
            if all(pressure.problem.ops[pressure.producer(tensor)].repeatable for tensor in tensors):
                terms.append((-pressure.weight[root], self._absent(event, tensors)))
        self.milp.at_most(terms, most)

    def _forced(self, event: int) -> dict[int, list[int]]:
        """Per class with weight the tensors made before and needed after an event in every order."""
        pressure = self.pressure
        found: dict[int, list[int]] = {}
        for tensor, root in enumerate(pressure.class_of):
            is_made = self.ancestors[event] >> pressure.producer(tensor) & 1
            is_needed = self.readers[tensor] & self.descendants[event] or pressure.problem.tensors[tensor].kept
            if is_made and is_needed and pressure.weight[root] > 0 and root not in pressure.own[event]:
                found.setdefault(root, []).append(tensor)
        return found

    def _absent(self, event: int, tensors: list[int]) -> int:
        """Whether none of the tensors of a storage is in memory at an event."""
        literals = [self.missing.setdefault(tensor, {}).setdefault(event, self.milp.add()) for tensor in tensors]
        if len(literals) == 1:
            return literals[0]
        absent = self.milp.add(integral=False)
        for literal in literals:
            self.milp.at_most([(1, absent), (-1, literal)], 0)
        return absent

    def count_runs(self) -> None:
        """Recomputes of an op: for each result at least the longest chain of misses with readers between."""
        runs: dict[int, int] = {}
        for tensor, literals in self.missing.items():
            op = self.pressure.producer(tensor)
            if op not in runs:
                runs[op] = self.milp.add(len(self.readers), self.pressure.times[op], integral=False)
            self._add_chains(tensor, literals, runs[op])

    def _add_chains(self, tensor: int, literals: dict[int, int], runs: int) -> None:
        """`longest[t]` is at least the number of misses of a chain that ends at t."""
        longest: dict[int, int] = {}
        before: dict[int, int] = {}
        for event, literal in sorted(literals.items()):
            earlier = [e for e in longest if self.descendants[e] & self.readers[tensor] & self.ancestors[event]]
            before[event] = sum(1 << e for e in earlier)
            covered = 0
            for e in earlier:
                covered |= before[e]
            longest[event] = self.milp.add(len(self.readers), integral=False)
            self.milp.at_least([(1, longest[event]), (-1, literal)], 0)
            for e in earlier:
                if not covered >> e & 1:
                    self.milp.at_least([(1, longest[event]), (-1, longest[e]), (-1, literal)], 0)
            self.milp.at_least([(1, runs), (-1, longest[event])], 0)
