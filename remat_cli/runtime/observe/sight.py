"""See a model for the first time: what runs in a fresh process give, and what its ops cost where runs are long."""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from remat_cli.base.errors import RuntimeFailure
from remat_cli.core.schedule.graph import TensorType
from remat_cli.runtime.measure.profilers import (
    LONG_ROUNDS,
    LONG_SECONDS,
    Measured,
    ProfileRequest,
    are_settled,
    cost_of,
    loading_peak_bytes,
    noise_percent,
    observe_in_fitting_arena,
    requests_of_bodies,
    warm_options,
    workspace_bytes,
)
from remat_cli.runtime.measure.turns import RunFigures, figures_of, prints_of
from remat_cli.runtime.observe._events import ProfiledRun
from remat_cli.runtime.sessions._ort import (
    Advance,
    Array,
    PackedArray,
    ignore_progress,
    pack_all,
    run_fresh,
    run_session,
    running,
    runtime_errors,
    unpack_all,
)
from remat_cli.runtime.sessions.session import counted_baseline_bytes, profiled_session

FEWEST_WARM = 2  # runs after the first, which touches fresh pages
LOOK_NS = int(1e9 * LONG_SECONDS)


class Warm(msgspec.Struct, frozen=True):
    """From which time on a run is long, and how many warm ones follow a long one, more where their times do not agree.

    They are on `others` first.
    """

    long_ns: int = LOOK_NS
    least: int = 0
    others: tuple[tuple[PackedArray, ...], ...] = ()


JUST_ONCE = Warm()


class LookJob(msgspec.Struct, frozen=True):
    """Which model is looked at, on which inputs, and what follows where that is long."""

    model: str
    feeds: tuple[PackedArray, ...]
    request: ProfileRequest
    warm: Warm


class Sight(msgspec.Struct, frozen=True):
    """What one run in a fresh process showed: types and outputs as in `FirstSight`, costs by that run alone.

    `measured` has its ops in the order in which they ran. None: the run was too short for one to tell what it costs.
    With it, where not only the longest runs are long, come `figures` of the first one (None: this runtime counts no
    memory, or two ops have one name). `more_outputs` are those on the other inputs of warm runs, if there were any.
    """

    types: dict[str, tuple[TensorType, ...]]
    baseline_bytes: int | None
    outputs: dict[str, Array]
    measured: Measured | None
    more_outputs: tuple[dict[str, Array], ...] = ()
    figures: RunFigures | None = None


def look(
    path: Path,
    feeds: Mapping[str, Array],
    request: ProfileRequest,
    warm: Warm = JUST_ONCE,
    advance: Advance = ignore_progress,
) -> Sight:
    """Run a model once in a fresh process; where the run is long, measure it by that and the warm runs asked for.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model.
        MissingDependency: the device cannot be used.
    """
    job = LookJob(str(path.resolve()), pack_all(feeds), request, warm)
    return run_fresh(look_here, job, advance, request.run_seconds)


def look_here(job: LookJob, advance: Advance) -> Sight:
    """Look in this process, which must not have measured before."""
    path, request = Path(job.model), job.request
    loading = loading_peak_bytes(path, request.settings)
    feeds = unpack_all(job.feeds)
    seen = observe_in_fitting_arena(path, feeds, request)
    advance(1, 1)
    events = seen.run.events
    types, packed_bytes = {event.name: event.types for event in events}, counted_baseline_bytes(events)
    if seen.run_ns <= job.warm.long_ns:
        return Sight(types, packed_bytes, seen.outputs, None)
    warm = _warm_runs(job, feeds) if job.warm.least else _WarmRuns([seen.run], [seen.run_ns], [])
    if min(warm.times_ns) <= job.warm.long_ns:  # the first run was slow by chance, or since it touched fresh pages
        return Sight(types, packed_bytes, seen.outputs, None, tuple(warm.outputs))
    workspace, durations = workspace_bytes(events, seen.temporary), dict[str, list[int]]()
    for run in warm.runs:
        for event in run.events:
            durations.setdefault(event.name, []).append(event.duration_us)
    ops = tuple(cost_of(event.name, durations[event.name], workspace.get(event.name, 0)) for event in events)
    measured = Measured(
        ops,
        min(warm.times_ns),
        packed_bytes,
        loading,
        run_noise_percent=noise_percent(warm.times_ns),
        runs=1 + bool(request.wiring) + (len(warm.runs) if job.warm.least else 0),
        bodies=requests_of_bodies(path, feeds, request),
    )
    figures = None
    if job.warm.long_ns < LOOK_NS:
        with contextlib.suppress(RuntimeFailure):
            figures = figures_of(path, [seen.run], [prints_of(seen.outputs)])
    return Sight(types, packed_bytes, seen.outputs, measured, tuple(warm.outputs), figures)


class _WarmRuns(msgspec.Struct, frozen=True):
    """Runs that were profiled, their wall times, and what those on other inputs gave."""

    runs: list[ProfiledRun]
    times_ns: list[int]
    outputs: list[dict[str, Array]]


def _warm_runs(job: LookJob, feeds: Mapping[str, Array]) -> _WarmRuns:
    """Runs of a session in the arena that the first one has filled, until times agree or were measured often enough."""
    path, request = Path(job.model), job.request
    others = [unpack_all(group) for group in job.warm.others]
    times: list[int] = []
    outputs: list[dict[str, Array]] = []
    with (
        profiled_session(path, request.settings, warm_options(request, request.settings)) as (session, runs),
        runtime_errors(running(path)),
    ):
        while len(times) < max(job.warm.least, len(others)) or (len(times) < LONG_ROUNDS and not are_settled(times)):
            number = len(times)
            start = time.perf_counter_ns()
            made = run_session(session, others[number] if number < len(others) else feeds)
            times.append(time.perf_counter_ns() - start)
            if number < len(others):
                outputs.append(made)
    return _WarmRuns(runs, times, outputs)
