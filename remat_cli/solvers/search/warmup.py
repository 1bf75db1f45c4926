"""Loading the search kernels ahead of need, so that a caller can say what it waits for."""

import subprocess
import sys

import numba

from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.solvers._warmup import can_keep, is_compiled
from remat_cli.solvers.search import kernels, orders, profile, records, repair, slots
from remat_cli.solvers.search.state import make_net
from remat_cli.solvers.search.tracks import Track, make_track

# The kernels that Python calls; all others are compiled into them.
ENTRIES = (
    kernels.search,
    orders.greedy_order,
    profile.build,
    profile.uniform,
    records.load,
    records.save,
    slots.peak,
)


def warm_up() -> None:
    """Load all kernels from the cache, or compile them into it: half a minute, once per machine and version.

    Compiling goes on in two processes: another fills the cache, if there is one, with
    kernels that this one comes to late.
    """
    if is_compiled(ENTRIES) or not can_keep(ENTRIES[0]):
        _run_all()
        return
    command = [sys.executable, "-c", f"from {__name__} import compile_some; compile_some()"]
    helper = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _run_all()
    finally:
        helper.kill()
        helper.wait()


def compile_some() -> None:
    """Compile the kernels that `search` calls last, and those that it does not call."""
    table, number = numba.int64[:, ::1], numba.int64
    repair.relieve.compile((table, table, number))  # type: ignore[attr-defined]
    track = _make_track()
    track.begin_greedy(0.0, 0.0)
    track.peak_bytes()


def _run_all() -> None:
    track = _make_track()
    track.improve(5)
    track.reorder(5, 0.01)
    track.begin_greedy(0.0, 0.0)
    track.peak_bytes()
    track.random()


def _make_track() -> Track:
    ops = tuple(OpSpec(tuple(range(v)), (v,), (1,), (0,)) for v in range(3))
    tensors = tuple(TensorSpec(1, v) for v in range(3))
    net = make_net(Problem(ops, tensors, (Memory("cpu", 3),), (Device("cpu", 0),)))
    return make_track(net, 2, 0, is_pinned=False)
