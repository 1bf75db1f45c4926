"""Kernels that save and load schedules, and pick steps over budget."""

from remat_cli.solvers.search import rows
from remat_cli.solvers.search.profile import build, uniform
from remat_cli.solvers.search.slots import excess
from remat_cli.solvers.search.state import Ints, kernel

# A record is a saved schedule: length, total time, excess, then the ops.
HEADER = 3


@kernel
def save(s: Ints, record: Ints) -> None:
    """Write the schedule to a record."""
    record[0], record[1], record[2] = s[rows.NUM, rows.LENGTH], s[rows.NUM, rows.COST], excess(s)
    count = HEADER
    for p in range(s[rows.NUM, rows.SLOTS]):
        if s[rows.SEQ, p] >= 0:
            record[count] = s[rows.OP, s[rows.SEQ, p]]
            count += 1


@kernel
def load(net: Ints, s: Ints, record: Ints) -> None:
    """Make the state a saved schedule; the log is empty then."""
    build(net, s, record[HEADER:], record[0])
    s[rows.NUM, rows.OVER] = excess(s)


@kernel
def pick_over(s: Ints) -> int:
    """Slot of a step over budget: the worst with probability 1/2, else any; -1 if there is none."""
    budget, shift = s[rows.NUM, rows.BUDGET], s[rows.NUM, rows.SHIFT]
    wants_worst = uniform(s) < 0.5
    most, count, found = budget, 0, -1
    for block in range(((s[rows.NUM, rows.SLOTS] - 1) >> shift) + 1):
        if s[rows.MOST, block] <= most:
            continue
        for p in range(block << shift, (block + 1) << shift):
            size = s[rows.MEM, p] + s[rows.PENDING, block]
            if size > most:
                count += 1
                if wants_worst:
                    most, found = size, p
                elif found < 0 or uniform(s) * count < 1.0:
                    found = p
    return found
