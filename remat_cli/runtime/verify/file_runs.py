"""Runs a compiled file beside the model that it was made from, in ordinary sessions, and says what they give and take.

A job and what it showed are plain values, so that a job can be done wherever there is a runtime.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from remat_cli.runtime.measure.turns import OutputPrint, prints_of
from remat_cli.runtime.observe._events import ProfiledRun
from remat_cli.runtime.sessions._ort import (
    Advance,
    Array,
    PackedArray,
    run_session,
    running,
    runtime_errors,
    unpack_all,
)
from remat_cli.runtime.sessions.guard import guarded
from remat_cli.runtime.sessions.session import (
    SessionSettings,
    counted_baseline_bytes,
    profiled_session,
    runtime_version,
)


class FileJob(msgspec.Struct, frozen=True):
    """A compiled file, the original, and what both are fed; `settings` are those of an ordinary session."""

    file: str
    original: str
    feeds: tuple[tuple[PackedArray, ...], ...]
    settings: SessionSettings = SessionSettings(exact=False)


class SessionSeen(msgspec.Struct, frozen=True):
    """What a session showed: outputs of each run, and of the first one the ops in their order.

    `baseline_bytes` is what lies in the arena before the first op, `live_bytes` the most that tensors take beyond it;
    None where the runtime counts no memory.
    """

    prints: tuple[tuple[OutputPrint, ...], ...]
    executed: tuple[str, ...]
    baseline_bytes: int | None
    live_bytes: int | None


class FileRuns(msgspec.Struct, frozen=True):
    """The original in an ordinary session, and the file in one and under the exact options; `runs` of both together."""

    original: SessionSeen
    file: SessionSeen
    exact: SessionSeen
    runtime_version: str

    @property
    def runs(self) -> int:
        """How many there were."""
        return sum(len(each.prints) for each in (self.original, self.file, self.exact))


def run_file(job: FileJob, advance: Advance) -> FileRuns:
    """Run both, one after the other; to be called in a process of its own.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run one of them.
    """
    feeds = [unpack_all(group) for group in job.feeds]
    exact = msgspec.structs.replace(job.settings, exact=True)
    plans = ((job.original, feeds, job.settings), (job.file, feeds, job.settings), (job.file, feeds[:1], exact))
    found = []
    for number, (path, fed, settings) in enumerate(plans, 1):
        found.append(_seen(Path(path), fed, settings))
        advance(number, len(plans))
    return FileRuns(found[0], found[1], found[2], runtime_version())


def _seen(path: Path, feeds: Sequence[dict[str, Array]], settings: SessionSettings) -> SessionSeen:
    """What a session shows, which is gone when this returns, before another one is opened."""
    doing = running(path)
    prints = []
    with profiled_session(path, settings) as (session, runs), runtime_errors(doing):
        for fed in feeds:
            prints.append(prints_of(guarded(partial(run_session, session, fed), settings.run_seconds, doing)))
    return session_seen(prints, runs[0])


def session_seen(prints: Sequence[tuple[OutputPrint, ...]], run: ProfiledRun) -> SessionSeen:
    """What the first run of a session says, beside the outputs of all."""
    baseline_bytes = counted_baseline_bytes(run.events)
    live = (event.requested_bytes - (baseline_bytes or 0) for event in run.events)
    return SessionSeen(
        prints=tuple(prints),
        executed=tuple(event.name for event in run.events),
        baseline_bytes=baseline_bytes,
        live_bytes=None if baseline_bytes is None else max(live, default=0),
    )
