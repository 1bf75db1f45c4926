"""Loading the placement kernels ahead of need, so that a caller can say what it waits for."""

from remat_cli.core.schedule.placing import one_device_schedule
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.solvers.placing.search import begin, search
from remat_cli.solvers.placing.state import capacity, make_net
from remat_cli.solvers.placing.tracks import make_track

# The kernels that Python calls; all others are compiled into them.
ENTRIES = (begin, capacity, search)


def warm_up() -> None:
    """Load all kernels from the cache, or compile them into it: a quarter of a minute, once per machine and version."""
    ops = tuple(OpSpec(tuple(range(v)), (v,), (1, 2), (0, 0)) for v in range(3))
    tensors = tuple(TensorSpec(1, v) for v in range(3))
    times = (1,) * 3
    problem = Problem(
        ops,
        tensors,
        (Memory("cpu", 3), Memory("other", 3)),
        (Device("cpu", 0), Device("other", 1)),
        ((times, times), (times, times)),
    )
    track = make_track(problem, make_net(problem), 0)
    track.begin(one_device_schedule(problem, 0))
    track.improve(1, 0.1)
