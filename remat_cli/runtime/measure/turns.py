"""Runs models in fresh processes: one model with all its figures, and two models in turns, compared and timed."""

import contextlib
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from remat_cli.core.values.noise import TimeNoise, are_sure, multiple_in_turn, ratios_in_turn, scatter_percent
from remat_cli.ort_rules.lessons import MeasuredCurve
from remat_cli.runtime.measure.busy import cpu_clock
from remat_cli.runtime.observe._events import ProfiledRun
from remat_cli.runtime.sessions._ort import (
    Advance,
    Array,
    PackedArray,
    ignore_progress,
    pack,
    pack_all,
    run_fresh,
    run_session,
    running,
    runtime_errors,
    share_arena,
    unpack_all,
)
from remat_cli.runtime.sessions.session import (
    SessionSettings,
    in_turn_options,
    observation,
    open_session,
    profiled_session,
    session_options,
    wait_without_spinning,
)
from remat_cli.runtime.verify.likeness import Likeness, likeness, worst

LEAST_SECONDS = 0.5
"""Timing goes on beyond the rounds asked for while another one ends within this time, as long as turns do not agree."""
MOST_ROUNDS = 8


class SessionRuns(msgspec.Struct, frozen=True):
    """A session and what it is run on, one after the other: places of inputs in a job's `feeds`."""

    settings: SessionSettings
    on: tuple[int, ...]


class RunJob(msgspec.Struct, frozen=True):
    """Run one model in one session after the other."""

    model: str
    feeds: tuple[tuple[PackedArray, ...], ...]
    sessions: tuple[SessionRuns, ...]


class TurnsJob(msgspec.Struct, frozen=True):
    """Run two models in turn on the same inputs, each in a session of its own, then `rounds` more against the clock.

    Rounds go on while they end within LEAST_SECONDS and do not agree; with none nothing is timed. With `compares` the
    outputs of each turn are held against each other. With `second_only` there are figures of the second model alone:
    the ops of a user's file need no names of their own.
    """

    models: tuple[str, str]
    feeds: tuple[tuple[PackedArray, ...], ...]
    session: SessionRuns
    rounds: int = 0
    compares: bool = False
    second_only: bool = False


class OutputPrint(msgspec.Struct, frozen=True):
    """A hash of an output's type, shape and every bit, and whether all its elements are equal."""

    name: str
    sha256: str
    is_constant: bool


class RunFigures(msgspec.Struct, frozen=True):
    """What one session showed; bytes as in `Observation`. `prints` has the outputs of each run.

    `grown_bytes` is by how many bytes each op made what is in use grow, `later_bytes` the most that runs after the
    first had in use beyond the baseline (None: there was one run).
    """

    executed: tuple[str, ...]
    live_bytes: tuple[int, ...]
    grown_bytes: tuple[int, ...]
    nested_bytes: dict[str, int]
    baseline_bytes: int
    in_use_peak_bytes: int
    peak_op: str
    peak_workspace_bytes: int | None
    later_bytes: int | None
    prints: tuple[tuple[OutputPrint, ...], ...]
    runtime_version: str

    @property
    def curve(self) -> MeasuredCurve:
        """The same figures by op."""
        pairs = (zip(self.executed, bytes_, strict=True) for bytes_ in (self.live_bytes, self.grown_bytes))
        return MeasuredCurve(*map(dict, pairs))

    @property
    def peak_live_bytes(self) -> int:
        """Most bytes of live tensors at the end of any op."""
        return max(self.live_bytes, default=0)

    def peak_with_workspace(self, workspace: dict[str, int]) -> int:
        """Most bytes of live tensors and workspace together during any op."""
        pairs = zip(self.executed, self.live_bytes, strict=True)
        return max((live + workspace.get(name, 0) for name, live in pairs), default=0)


class TurnFigures(msgspec.Struct, frozen=True):
    """What two models showed that ran in turn: figures, times, likeness (None: not asked for), and runs.

    `figures` are those of both or of the second, `prints` what came out of each in its runs. `runs` counts those of
    both models. Times are the least of the first, and as many times as long as the second took in turn with it, without
    the first turn; `noise` says how far they may be off (None: nothing was timed).
    """

    figures: tuple[RunFigures, ...]
    prints: tuple[tuple[tuple[OutputPrint, ...], ...], ...]
    times_ns: tuple[int, int] | None
    likeness: Likeness | None
    runs: int
    noise: TimeNoise | None = None


def run_model(job: RunJob, advance: Advance) -> tuple[RunFigures, ...]:
    """Run a model in each of the sessions, one after the other; the first one gets the tight arena."""
    feeds = _unpacked(job.feeds)
    figures = []
    for number, session in enumerate(job.sessions):
        options = session_options(session.settings)
        wait_without_spinning(options)
        if number == 0 and session.settings.device == "cpu":
            share_arena(options)
        figures.append(_run_session(Path(job.model), [feeds[place] for place in session.on], session.settings, options))
        advance(number + 1, len(job.sessions))
    return tuple(figures)


def run_in_turns(job: TurnsJob, advance: Advance) -> TurnFigures:
    """Run two models in turn, profiled first, then against the clock; nothing else should run meanwhile."""
    before = cpu_clock()  # from here on: few short runs take less than a tick of it
    feeds = _unpacked(job.feeds)
    turns = [feeds[place] for place in job.session.on]
    total = 2 * (len(turns) + job.rounds)
    paths = [Path(model) for model in job.models]
    prints: list[list[tuple[OutputPrint, ...]]] = [[], []]
    times: list[list[int]] = [[], []]
    alike: list[Likeness] = []
    with contextlib.ExitStack() as stack, runtime_errors("ONNX Runtime fails to run two models in turn"):
        profiled = [stack.enter_context(profiled_session(path, *_in_turn(job.session.settings))) for path in paths]
        sessions = [session for session, _ in profiled]
        for number, group in enumerate(turns):
            outputs = [_timed_run(*pair, group) for pair in zip(sessions, times, strict=True)]
            for made, found in zip(outputs, prints, strict=True):
                found.append(prints_of(made))
            if job.compares and prints[0][-1] != prints[1][-1]:
                alike.append(likeness(*outputs))
            advance(2 * (number + 1), total)
    warm = [first[1:] for first in times]
    timed = _timed_rounds(
        sessions, feeds[0], job.rounds, lambda done: advance(2 * (len(turns) + done), total), before=warm
    )
    all_times = [first + more for first, more in zip(warm, timed, strict=True)]
    noise = TimeNoise(scatter_percent(*all_times), *cpu_clock().since(before)) if job.rounds else None
    shown = list(zip(paths, profiled, prints, strict=True))
    return TurnFigures(
        figures=tuple(figures_of(path, runs, found) for path, (_, runs), found in shown[job.second_only :]),
        prints=tuple(map(tuple, prints)),
        times_ns=_as_in_turn(*all_times) if job.rounds else None,
        likeness=worst(alike) if job.compares else None,
        runs=2 * (len(turns) + len(timed[0])),
        noise=noise,
    )


def _unpacked(feeds: Sequence[Sequence[PackedArray]]) -> list[dict[str, Array]]:
    return [unpack_all(group) for group in feeds]


def _run_session(path: Path, feeds: list[dict[str, Array]], settings: SessionSettings, options: Any) -> RunFigures:
    """What a session shows, which is gone when this returns, before another one is opened."""
    with (
        profiled_session(path, settings, options) as (session, runs),
        runtime_errors(running(path)),
    ):
        prints = [prints_of(run_session(session, group)) for group in feeds]
    return figures_of(path, runs, prints)


def figures_of(path: Path, runs: Sequence[ProfiledRun], prints: Sequence[tuple[OutputPrint, ...]]) -> RunFigures:
    """What the runs of one session showed; the figures of ops are those of the first."""
    first = observation(runs[0], {}, path.name)
    peak_op, workspace = op_at_peak(runs[0])
    later = [max((event.requested_bytes for event in run.events), default=0) for run in runs[1:]]
    return RunFigures(
        executed=first.executed,
        live_bytes=first.live_bytes,
        grown_bytes=tuple(event.growth_bytes for event in runs[0].events),
        nested_bytes=first.nested_bytes,
        baseline_bytes=first.baseline_bytes,
        in_use_peak_bytes=first.in_use_peak_bytes,
        peak_op=peak_op,
        peak_workspace_bytes=workspace,
        later_bytes=max(later) - first.baseline_bytes if later else None,
        prints=tuple(prints),
        runtime_version=first.runtime_version,
    )


def op_at_peak(run: ProfiledRun) -> tuple[str, int | None]:
    """The op during which most was in use, and how much of that was workspace; None if loading needed more.

    Of an op that ran a subgraph it is what that held: results that grow from tile to tile lie in buffers which the
    allocator had for longer ones, up to twice as large, and its counter of what is in use has those.
    """
    if not run.events:
        return "", None
    peak = run.events[-1].peak_bytes
    op = next(event for event in run.events if event.peak_bytes == peak)
    if op is run.events[0] and op.in_use_bytes < peak:
        return op.name, None  # reached in the first op or before it: the counter does not tell which
    if op.nested_bytes:
        return op.name, max(op.nested_full_bytes, op.nested_bytes) - op.requested_bytes
    return op.name, peak - op.in_use_bytes


def prints_of(outputs: Mapping[str, Any]) -> tuple[OutputPrint, ...]:
    """The outputs of a run, to be compared with those of another."""
    prints: list[OutputPrint] = []
    for name, array in outputs.items():
        if not isinstance(array, np.ndarray):  # a sequence or an optional
            prints.append(OutputPrint(name, hashlib.sha256(repr(array).encode()).hexdigest(), False))
            continue
        packed = pack(name, array)
        digest = hashlib.sha256(f"{packed.dtype}{list(packed.shape)}".encode())
        digest.update(packed.data)
        is_constant = array.size > 1 and packed.data == packed.data[: array.itemsize] * array.size
        prints.append(OutputPrint(name, digest.hexdigest(), is_constant))
    return tuple(prints)


def digest_of_outputs(outputs: Mapping[str, Any]) -> str:
    """A hash of all outputs of a run: the same where they are equal bit for bit."""
    return hashlib.sha256(repr(sorted((each.name, each.sha256) for each in prints_of(outputs))).encode()).hexdigest()


class TimeJob(msgspec.Struct, frozen=True):
    """Run two models in turn, each in a session of its own."""

    models: tuple[str, str]
    feeds: tuple[PackedArray, ...]
    settings: SessionSettings
    rounds: int
    warmups: int = 1


def time_models(job: TimeJob, advance: Advance) -> tuple[int, int]:
    """Time of a run of each model, in nanoseconds; runs alternate, so that both see the same machine."""
    (feeds,) = _unpacked([job.feeds])
    sessions = [open_session(Path(model), *_in_turn(job.settings)) for model in job.models]
    total = job.warmups + job.rounds
    warm = _timed_rounds(sessions, feeds, job.warmups, lambda done: advance(min(done, job.warmups), total), 0.0)
    timed = _timed_rounds(
        sessions, feeds, job.rounds, lambda done: advance(min(job.warmups + done, total), total), before=warm
    )
    return _as_in_turn(*(first + more for first, more in zip(warm, timed, strict=True)))


def _as_in_turn(first: Sequence[int], second: Sequence[int]) -> tuple[int, int]:
    """The least time of the first, and as many times as long as the second took in turn with it."""
    return min(first), round(min(first) * multiple_in_turn(_ratios(first, second)))


def _ratios(first: Sequence[int], second: Sequence[int]) -> list[float]:
    """How many times as long the second took, turn by turn."""
    return ratios_in_turn([[time_ns] for time_ns in first], [[time_ns] for time_ns in second])


def _in_turn(settings: SessionSettings) -> tuple[SessionSettings, Any]:
    return settings, in_turn_options(settings)


def _timed_rounds(
    sessions: Sequence[Any],
    feeds: Mapping[str, Array],
    rounds: int,
    advance: Callable[[int], None],
    least_seconds: float = LEAST_SECONDS,
    before: Sequence[Sequence[int]] = ((), ()),
) -> list[list[int]]:
    """Wall times of both sessions in turn, at least so many rounds; more while they do not agree, and one ends in time.

    Those that were timed before count for whether they agree.
    """
    times: list[list[int]] = [[] for _ in sessions]
    begin = time.monotonic()

    def goes_on(done: int) -> bool:
        if not 0 < done < MOST_ROUNDS or (time.monotonic() - begin) * (done + 1) / done > least_seconds:
            return False  # another round like those that took so long does not end in time
        return not are_sure(_ratios(*([*earlier, *found] for earlier, found in zip(before, times, strict=True))))

    with runtime_errors("ONNX Runtime fails while being timed"):
        while (done := len(times[0])) < rounds or (rounds and goes_on(done)):
            turns = list(zip(sessions, times, strict=True))
            for session, found in reversed(turns) if len(times[0]) % 2 else turns:  # neither always comes first
                _timed_run(session, found, feeds)
            advance(min(len(times[0]), rounds))
    return times


def _timed_run(session: Any, times: list[int], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of one run, whose wall time joins the times."""
    start = time.perf_counter_ns()
    outputs = run_session(session, feeds)
    times.append(time.perf_counter_ns() - start)
    return outputs


ROUNDS = 2


def time_in_turn(
    models: tuple[Path, Path], feeds: Mapping[str, Array], settings: SessionSettings, advance: Advance = ignore_progress
) -> tuple[int, int]:
    """Time of a run of each of two models, in nanoseconds, in one fresh process in which runs alternate.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run a model.
    """
    paths = (str(models[0].resolve()), str(models[1].resolve()))
    job = TimeJob(paths, pack_all(feeds), settings, ROUNDS)
    return run_fresh(time_models, job, advance, settings.run_seconds)
