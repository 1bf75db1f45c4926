"""Loading the rounding kernels ahead of need, so that a caller can say what it waits for."""

import numpy as np

from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.solvers._sharing import condense
from remat_cli.solvers.published._staged.candidates import Rounder
from remat_cli.solvers.published._staged.rounding import complete, delay, prune, settle

# The kernels that Python calls; all others are compiled into them.
ENTRIES = (complete, delay, prune, settle)


def warm_up() -> None:
    """Load all kernels from the cache, or compile them into it: some seconds, once per machine and version."""
    ops = tuple(OpSpec(tuple(range(v)), (v,), (1,), (0,)) for v in range(3))
    problem = Problem(ops, tuple(TensorSpec(1, v) for v in range(3)), (Memory("cpu", 3),), (Device("cpu", 0),))
    rounder = Rounder(condense(problem), 3)
    rounder.better(rounder.round(np.zeros((4, 3), np.uint8)))
