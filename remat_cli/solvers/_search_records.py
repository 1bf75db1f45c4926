"""Kernels that save and load schedules, and pick positions over budget."""

from __future__ import annotations

from remat_cli.solvers._search_profile import build, excess, uniform
from remat_cli.solvers._search_state import (
    BUDGET,
    COST,
    LENGTH,
    MEM,
    NUM,
    OP,
    SEQ,
    Ints,
    kernel,
)

# A record is a saved schedule: length, total time, excess, then the ops.
HEADER = 3


@kernel
def save(s: Ints, record: Ints) -> None:
    """Write the schedule to a record."""
    length = s[NUM, LENGTH]
    record[0], record[1], record[2] = length, s[NUM, COST], excess(s)
    for p in range(length):
        record[HEADER + p] = s[OP, s[SEQ, p]]


@kernel
def load(net: Ints, s: Ints, record: Ints) -> None:
    """Make the state a saved schedule."""
    build(net, s, record[HEADER:], record[0])


@kernel
def pick_over(s: Ints) -> int:
    """A position over budget: the worst with probability 1/2, else any; -1 if there is none."""
    budget, worst, count = s[NUM, BUDGET], -1, 0
    for p in range(s[NUM, LENGTH]):
        if s[MEM, p] > budget:
            count += 1
            if worst < 0 or s[MEM, p] > s[MEM, worst]:
                worst = p
    if count == 0 or uniform(s) < 0.5:
        return worst
    left = int(uniform(s) * count)
    for p in range(s[NUM, LENGTH]):
        if s[MEM, p] > budget:
            if left == 0:
                return p
            left -= 1
    return worst
