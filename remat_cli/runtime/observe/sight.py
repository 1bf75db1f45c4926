"""See a model for the first time: what one run in a fresh process gives, and what its ops cost where it is long."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from remat_cli.core.schedule.graph import TensorType
from remat_cli.runtime.measure.profilers import (
    LONG_SECONDS,
    Measured,
    MeasureJob,
    ProfileRequest,
    cost_of,
    loading_peak_bytes,
    observe_in_fitting_arena,
    requests_of_bodies,
    workspace_bytes,
)
from remat_cli.runtime.sessions._ort import Advance, Array, ignore_progress, pack_all, run_fresh, unpack_all
from remat_cli.runtime.sessions.session import counted_baseline_bytes


class Sight(msgspec.Struct, frozen=True):
    """What one run in a fresh process showed: types and outputs as in `FirstSight`, costs by that run alone.

    `measured` has its ops in the order in which they ran. None: the run was too short for one to tell what it costs.
    """

    types: dict[str, tuple[TensorType, ...]]
    baseline_bytes: int | None
    outputs: dict[str, Array]
    measured: Measured | None


def look(path: Path, feeds: Mapping[str, Array], request: ProfileRequest, advance: Advance = ignore_progress) -> Sight:
    """Run a model once in a fresh process, and measure it by that where the run is long.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model.
        MissingDependency: the device cannot be used.
    """
    job = MeasureJob(str(path.resolve()), pack_all(feeds), (), request)
    return run_fresh(look_here, job, advance, request.run_seconds)


def look_here(job: MeasureJob, advance: Advance) -> Sight:
    """Look in this process, which must not have measured before."""
    path, request = Path(job.model), job.request
    loading = loading_peak_bytes(path, request.settings)
    feeds = unpack_all(job.feeds)
    seen = observe_in_fitting_arena(path, feeds, request)
    advance(1, 1)
    events = seen.run.events
    packed_bytes, measured = counted_baseline_bytes(events), None
    if seen.run_ns > 1e9 * LONG_SECONDS:
        workspace = workspace_bytes(events, seen.temporary)
        ops = tuple(cost_of(event.name, [event.duration_us], workspace.get(event.name, 0)) for event in events)
        bodies = requests_of_bodies(path, feeds, request)
        measured = Measured(ops, seen.run_ns, packed_bytes, loading, runs=1 + bool(request.wiring), bodies=bodies)
    return Sight({event.name: event.types for event in events}, packed_bytes, seen.outputs, measured)
