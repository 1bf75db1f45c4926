"""Two models at many sizes: outputs and peaks side by side in one session each, and what a process comes to hold."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from remat_cli.runtime._events import ProfiledRun
from remat_cli.runtime._ort import (
    Advance,
    Array,
    PackedArray,
    ignore_progress,
    pack_all,
    run_fresh,
    run_session,
    runtime_errors,
    unpack,
)
from remat_cli.runtime.likeness import have_same_bits
from remat_cli.runtime.resident import can_measure_resident, resident_bytes
from remat_cli.runtime.session import SessionSettings, baseline_bytes, open_session, profiled_session


class SizesJob(msgspec.Struct, frozen=True):
    """Run two models on each of the inputs, in turn."""

    models: tuple[str, str]
    feeds: tuple[tuple[PackedArray, ...], ...]
    settings: SessionSettings


class SizesSeen(msgspec.Struct, frozen=True):
    """By inputs: whether outputs were the same bits, and the most that each of the models held while it ran."""

    same_bits: tuple[bool, ...]
    peak_bytes: tuple[tuple[int, ...], tuple[int, ...]]


def see_sizes(
    models: tuple[Path, Path],
    feeds: Sequence[Mapping[str, Array]],
    settings: SessionSettings,
    advance: Advance = ignore_progress,
) -> SizesSeen:
    """Run two models on several inputs in a fresh process, each in one session.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run a model.
    """
    job = SizesJob((str(models[0].resolve()), str(models[1].resolve())), tuple(map(pack_all, feeds)), settings)
    return run_fresh(_see_sizes, job, advance, settings.run_seconds)


def _see_sizes(job: SizesJob, advance: Advance) -> SizesSeen:
    same: list[bool] = []
    first, second = (Path(model) for model in job.models)
    with (
        runtime_errors("ONNX Runtime fails to run a model at several sizes"),
        profiled_session(first, job.settings) as (one, one_runs),
        profiled_session(second, job.settings) as (other, other_runs),
    ):
        for number, group in enumerate(job.feeds):
            feeds = {packed.name: unpack(packed) for packed in group}
            same.append(have_same_bits(run_session(one, feeds), run_session(other, feeds)))
            advance(number + 1, len(job.feeds))
    return SizesSeen(tuple(same), (_peaks(one_runs), _peaks(other_runs)))


def _peaks(runs: Sequence[ProfiledRun]) -> tuple[int, ...]:
    """What was in use at most in each run, above what was before the first."""
    base = baseline_bytes(runs[0].events)
    return tuple(max((max(e.requested_bytes, e.nested_bytes) for e in run.events), default=base) - base for run in runs)


def resident_after(
    model: Path, feeds: Sequence[Mapping[str, Array]], settings: SessionSettings, advance: Advance = ignore_progress
) -> int | None:
    """What a fresh process came to hold of its own for runs on several inputs, one after the other.

    None where the system does not tell.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model.
    """
    if not can_measure_resident():
        return None
    job = SizesJob((str(model.resolve()), ""), tuple(map(pack_all, feeds)), settings)
    return run_fresh(_resident_after, job, advance, settings.run_seconds)


def _resident_after(job: SizesJob, advance: Advance) -> int:
    with runtime_errors("ONNX Runtime fails to run a model at several sizes"):
        session = open_session(Path(job.models[0]), job.settings)
        groups = [{packed.name: unpack(packed) for packed in group} for group in job.feeds]
        before = resident_bytes().anonymous_bytes
        for number, feeds in enumerate(groups):
            run_session(session, feeds)
            advance(number + 1, len(groups))
        return max(0, resident_bytes().anonymous_bytes - before)
