"""What a problem refuses when it is made."""

import pytest

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.problem import MOST_BYTES, MOST_NS, Device, Memory, OpSpec, Problem, TensorSpec


def problem_of(sizes, times, workspace=0):
    ops = tuple(OpSpec((), (op,), (time,), (workspace,)) for op, time in enumerate(times))
    tensors = tuple(TensorSpec(size, op) for op, size in enumerate(sizes))
    return Problem(ops, tensors, (Memory("cpu", 8),), (Device("cpu", 0),))


@pytest.mark.parametrize(
    ("sizes", "times", "workspace", "what"),
    [
        ((MOST_BYTES // 2, MOST_BYTES // 2), (1, 1), 0, "sizes of all tensors and workspaces"),
        ((1, 1), (1, 1), MOST_BYTES, "sizes of all tensors and workspaces"),
        ((1, 1), (MOST_NS - 1, 1), 0, "times of all ops"),
    ],
)
def test_figures_that_would_overflow_are_refused(sizes, times, workspace, what):
    with pytest.raises(ModelError, match=what):
        problem_of(sizes, times, workspace)


def test_the_largest_figures_are_taken():
    assert problem_of((MOST_BYTES - 2, 1), (MOST_NS - 2, 1)).baseline_time_ns == MOST_NS - 1
