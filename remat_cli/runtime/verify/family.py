"""Runs a model at many sizes in one session of a fresh process: outputs, order, peaks, and what it then holds."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from remat_cli.core.values.family import SizeSeen
from remat_cli.runtime.measure.turns import OutputPrint, RunFigures, figures_of, prints_of
from remat_cli.runtime.observe.resident import can_measure_resident, resident_bytes
from remat_cli.runtime.sessions._ort import (
    Advance,
    ignore_progress,
    run_fresh,
    run_session,
    running,
    runtime_errors,
)
from remat_cli.runtime.sessions.feeds import Feeds
from remat_cli.runtime.sessions.session import (
    SessionSettings,
    baseline_bytes,
    in_turn_options,
    open_session,
    profiled_session,
)


class SizesJob(msgspec.Struct, frozen=True):
    """Run a model on each of the inputs, in turn."""

    model: str
    feeds: tuple[Feeds, ...]
    settings: SessionSettings


class AtSizes(msgspec.Struct, frozen=True):
    """What a session showed; `figures` are of its first run, and have what came out of each.

    By run: the most that was held above what there was before the first, and whether ops ran in the same order as in
    the first. `first_ns` is how long the first run took, `first_resident_bytes` what the process came to hold of its
    own for it (None: the system does not tell).
    """

    figures: RunFigures
    peak_bytes: tuple[int, ...]
    is_in_order: tuple[bool, ...]
    first_ns: int
    first_resident_bytes: int | None


def see_at_sizes(
    model: Path,
    feeds: Sequence[Feeds],
    settings: SessionSettings,
    advance: Advance = ignore_progress,
) -> AtSizes:
    """Run a model on several inputs in one session of a fresh process.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model.
    """
    return run_fresh(see_at_sizes_here, _job(model, feeds, settings), advance, settings.run_seconds)


def _job(model: Path, feeds: Sequence[Feeds], settings: SessionSettings) -> SizesJob:
    return SizesJob(str(model.resolve()), tuple(feeds), settings)


def see_at_sizes_here(job: SizesJob, advance: Advance) -> AtSizes:
    """Run in this process; of outputs only prints are kept."""
    path, prints = Path(job.model), list[tuple[OutputPrint, ...]]()
    groups = (each.arrays() for each in job.feeds)
    first_ns, resident = 0, None
    with (
        profiled_session(path, job.settings, in_turn_options(job.settings)) as (session, runs),
        runtime_errors(running(path, " at several sizes")),
    ):
        for number, feeds in enumerate(groups):
            before, start = _resident() if number == 0 else None, time.perf_counter_ns()
            outputs = run_session(session, feeds)
            if number == 0:
                first_ns, after = time.perf_counter_ns() - start, _resident()
                resident = None if before is None or after is None else max(0, after - before)
            prints.append(prints_of(outputs))
            del outputs  # the session's own memory, which would count as held by the next run
            advance(number + 1, len(job.feeds))
    orders = [tuple(event.name for event in run.events) for run in runs]
    figures = figures_of(path, runs, prints)
    # What was in use at most in each run, above what was before the first.
    base = baseline_bytes(runs[0].events)
    in_use = ([max(event.requested_bytes, event.nested_bytes) for event in run.events] for run in runs)
    peaks = tuple(max(each, default=base) - base for each in in_use)
    return AtSizes(figures, peaks, tuple(order == orders[0] for order in orders), first_ns, resident)


def _resident() -> int | None:
    return resident_bytes().anonymous_bytes if can_measure_resident() else None


def sizes_seen(all_sizes: Sequence[Mapping[str, int]], original: AtSizes, ours: AtSizes) -> tuple[SizeSeen, ...]:
    """What each size showed of two models."""
    prints = zip(original.figures.prints, ours.figures.prints, strict=True)
    rows = zip(all_sizes, prints, ours.is_in_order, ours.peak_bytes, original.peak_bytes, strict=True)
    return tuple(
        SizeSeen(dict(sizes), one == other, peak, original_peak, is_in_order)
        for sizes, (one, other), is_in_order, peak, original_peak in rows
    )


def resident_after(
    model: Path, feeds: Sequence[Feeds], settings: SessionSettings, advance: Advance = ignore_progress
) -> int | None:
    """What a fresh process came to hold of its own for runs on several inputs, one after the other.

    None where the system does not tell.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model.
    """
    if not can_measure_resident():
        return None
    return run_fresh(resident_after_here, _job(model, feeds, settings), advance, settings.run_seconds)


def resident_after_here(job: SizesJob, advance: Advance) -> int:
    """What this process comes to hold of its own for the runs."""
    with runtime_errors("ONNX Runtime fails to run a model at several sizes"):
        session = open_session(Path(job.model), job.settings)
        groups = [each.arrays() for each in job.feeds]
        before = resident_bytes().anonymous_bytes
        for number, feeds in enumerate(groups):
            run_session(session, feeds)
            advance(number + 1, len(groups))
        return max(0, resident_bytes().anonymous_bytes - before)
