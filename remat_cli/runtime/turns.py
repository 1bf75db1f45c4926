"""What is tried in fresh processes: one model with all its figures, and two models against the clock, in turns."""

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from remat_cli.core.learning import Curve
from remat_cli.runtime._events import ProfiledRun
from remat_cli.runtime._ort import (
    Advance,
    Array,
    PackedArray,
    ignore_progress,
    pack,
    pack_all,
    run_fresh,
    run_session,
    runtime_errors,
    share_arena,
    unpack,
)
from remat_cli.runtime.session import (
    SessionSettings,
    observation,
    open_session,
    profiled_session,
    session_options,
    wait_without_spinning,
)

LEAST_SECONDS = 0.5
"""Timing goes on beyond the runs asked for while it took less than this, since short runs are noisy."""
MOST_ROUNDS = 100


class RunJob(msgspec.Struct, frozen=True):
    """Run one model in one session per settings, on each of the feeds; on the first twice where options are default.

    Only with default options are later runs different: the memory pattern.
    """

    model: str
    feeds: tuple[tuple[PackedArray, ...], ...]
    settings: tuple[SessionSettings, ...]


class OutputPrint(msgspec.Struct, frozen=True):
    """A hash of an output's type, shape and every bit, and whether all its elements are equal."""

    name: str
    sha256: str
    is_constant: bool


class RunFigures(msgspec.Struct, frozen=True):
    """What one session showed; bytes as in `Observation`. `prints` has the outputs of each run.

    `grown_bytes` is by how many bytes each op made what is in use grow, `later_bytes` the most that runs after the
    first had in use beyond the baseline.
    """

    executed: tuple[str, ...]
    live_bytes: tuple[int, ...]
    grown_bytes: tuple[int, ...]
    nested_bytes: dict[str, int]
    baseline_bytes: int
    in_use_peak_bytes: int
    peak_op: str
    peak_workspace_bytes: int | None
    later_bytes: int
    prints: tuple[tuple[OutputPrint, ...], ...]
    runtime_version: str

    @property
    def curve(self) -> Curve:
        """The same figures by op."""
        pairs = (zip(self.executed, bytes_, strict=True) for bytes_ in (self.live_bytes, self.grown_bytes))
        return Curve(*map(dict, pairs))

    @property
    def peak_live_bytes(self) -> int:
        """Most bytes of live tensors at the end of any op."""
        return max(self.live_bytes, default=0)

    def peak_with_workspace(self, workspace: dict[str, int]) -> int:
        """Most bytes of live tensors and workspace together during any op."""
        pairs = zip(self.executed, self.live_bytes, strict=True)
        return max((live + workspace.get(name, 0) for name, live in pairs), default=0)


def run_model(job: RunJob, advance: Advance) -> tuple[RunFigures, ...]:
    """Run a model under each of the settings, one after the other; the first session gets the tight arena."""
    feeds = [{packed.name: unpack(packed) for packed in group} for group in job.feeds]
    figures = []
    for number, settings in enumerate(job.settings):
        options = session_options(settings)
        wait_without_spinning(options)
        if number == 0 and settings.device == "cpu":
            share_arena(options)
        figures.append(_run_session(Path(job.model), feeds, settings, options))
        advance(number + 1, len(job.settings))
    return tuple(figures)


def _run_session(path: Path, feeds: list[dict[str, Array]], settings: SessionSettings, options: Any) -> RunFigures:
    with (
        profiled_session(path, settings, options) as (session, runs),
        runtime_errors(f"ONNX Runtime fails to run {path.name}"),
    ):
        runs_on = feeds if settings.exact else (feeds[0], *feeds)
        prints = tuple(_prints(run_session(session, group)) for group in runs_on)
    first = observation(runs[0], {}, path.name)
    peak_op, workspace = _peak_op(runs[0])
    return RunFigures(
        executed=first.executed,
        live_bytes=first.live_bytes,
        grown_bytes=tuple(event.growth_bytes for event in runs[0].events),
        nested_bytes=first.nested_bytes,
        baseline_bytes=first.baseline_bytes,
        in_use_peak_bytes=first.in_use_peak_bytes,
        peak_op=peak_op,
        peak_workspace_bytes=workspace,
        later_bytes=max((e.requested_bytes for run in runs[1:] for e in run.events), default=0) - first.baseline_bytes,
        prints=prints,
        runtime_version=first.runtime_version,
    )


def _peak_op(run: ProfiledRun) -> tuple[str, int | None]:
    """The op during which most was in use, and how much of that was workspace; None if loading needed more."""
    if not run.events:
        return "", None
    peak = run.events[-1].peak_bytes
    op = next(event for event in run.events if event.peak_bytes == peak)
    if op is run.events[0] and op.in_use_bytes < peak:
        return op.name, None  # reached in the first op or before it: the counter does not tell which
    return op.name, peak - op.in_use_bytes


def _prints(outputs: dict[str, Array]) -> tuple[OutputPrint, ...]:
    return tuple(_print_of(name, array) for name, array in outputs.items())


def _print_of(name: str, array: Any) -> OutputPrint:
    if not isinstance(array, np.ndarray):  # a sequence or an optional
        text = repr(array).encode()
        return OutputPrint(name, hashlib.sha256(text).hexdigest(), False)
    packed = pack(name, array)
    digest = hashlib.sha256(f"{packed.dtype}{list(packed.shape)}".encode())
    digest.update(packed.data)
    width = array.itemsize
    is_constant = array.size > 1 and packed.data == packed.data[:width] * array.size
    return OutputPrint(name, digest.hexdigest(), is_constant)


class TimeJob(msgspec.Struct, frozen=True):
    """Run two models in turn, each in a session of its own."""

    models: tuple[str, str]
    feeds: tuple[PackedArray, ...]
    settings: SessionSettings
    rounds: int
    warmups: int = 1


def time_models(job: TimeJob, advance: Advance) -> tuple[int, int]:
    """Least time of a run of each model, in nanoseconds; runs alternate, so that both see the same machine."""
    feeds = {packed.name: unpack(packed) for packed in job.feeds}
    sessions = [open_session(Path(model), job.settings) for model in job.models]
    times: list[list[int]] = [[], []]
    end = time.monotonic() + LEAST_SECONDS
    with runtime_errors("ONNX Runtime fails while being timed"):
        while len(times[0]) < job.warmups + job.rounds or (len(times[0]) < MOST_ROUNDS and time.monotonic() < end):
            turns = list(zip(sessions, times, strict=True))
            for session, found in turns if len(times[0]) % 2 else reversed(turns):  # neither always comes first
                start = time.perf_counter_ns()
                run_session(session, feeds)
                found.append(time.perf_counter_ns() - start)
            advance(min(len(times[0]), job.warmups + job.rounds), job.warmups + job.rounds)
    first, second = (min(found[job.warmups :]) for found in times)
    return first, second


ROUNDS = 7


def time_in_turn(
    models: tuple[Path, Path], feeds: Mapping[str, Array], settings: SessionSettings, advance: Advance = ignore_progress
) -> tuple[int, int]:
    """Least time of a run of each of two models, in nanoseconds, in one fresh process in which runs alternate.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run a model.
    """
    paths = (str(models[0].resolve()), str(models[1].resolve()))
    return run_fresh(time_models, TimeJob(paths, pack_all(feeds), settings, ROUNDS), advance)
