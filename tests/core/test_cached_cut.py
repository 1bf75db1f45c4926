"""What a provider that keeps free buffers holds of a plan in sessions: worked out by hand, in buffers of 128 bytes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from remat_cli.core.schedule.plan import Compute, Copy, Schedule
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.segments import cut_plan
from remat_cli.core.schedule.shared_session import Shared, one_session_cut
from remat_cli.core.schedule.simulate import simulate
from remat_cli.core.values.buffer_cache import BufferCache

CACHE = BufferCache(bucket_bytes=(64, 128, 512), granule_bytes=16)
ON_GPU = Schedule((Compute(0, 1), Compute(1, 1), Compute(2, 1)))
TO_AND_FRO = Schedule((Compute(0, 1), Copy(0, 1, 0), Compute(1, 0), Copy(2, 0, 1), Compute(2, 1)))


def forked_chain(workspace_bytes=0):
    """Op 0 makes tensors 0 and 1, which nobody reads; ops 1 and 2 go on from 0 to 2 and 3, the output."""
    row = (1,) * 4
    return Problem(
        ops=(
            OpSpec((), (0, 1), (1, 1), (0, 0)),
            OpSpec((0,), (2,), (1, 1), (0, workspace_bytes)),
            OpSpec((2,), (3,), (1, 1), (0, 0)),
        ),
        tensors=(TensorSpec(100, 0), TensorSpec(100, 0), TensorSpec(100, 1), TensorSpec(100, 2, None, True)),
        memories=(Memory("cpu", 2**40), Memory("gpu", 2**40)),
        devices=(Device("cpu", 0), Device("gpu", 1)),
        copy_ns=((row, row), (row, row)),
    )


def held_bytes(problem, schedule, cache=CACHE):
    cut = cut_plan(problem, simulate(problem, schedule), caches={1: cache})
    return cut.peak_bytes[1]


def test_what_nobody_reads_stays_until_its_session_ends():
    """In op 1: the output's buffer, 0, 2, and 1 which nobody reads."""
    assert held_bytes(forked_chain(), ON_GPU) == 4 * 128


def test_and_no_longer():
    """Op 0 holds 0 and 1; the session of op 2 only 2 and 3."""
    assert held_bytes(forked_chain(), TO_AND_FRO) == 2 * 128


@pytest.mark.parametrize(
    ("parts", "more"), [({}, 512), ({1: (100, 100)}, 2 * 128), ({1: (150, 50)}, 512 + 64), ({2: (100, 100)}, 512)]
)
def test_a_workspace_is_one_buffer_or_several(parts, more):
    """200 bytes take one buffer of 512, halves of them two of 128."""
    cache = replace(CACHE, parts=parts)
    problem = forked_chain(200)
    assert held_bytes(problem, ON_GPU, cache) == 4 * 128 + more
    shared = Shared(problem, simulate(problem, ON_GPU), 0, (0, 1))
    assert one_session_cut(shared, [100] * 4, {1: cache}).peak_bytes[1] == 4 * 128 + more
