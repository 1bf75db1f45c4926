"""What processes hold that load and run a model, seen in fresh ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.core.values.resident import LimitedRuns, ProcessMemory, ProcessSeen
from remat_cli.onnx_io.write.packed import packed_weights
from remat_cli.onnx_io.write.save import data_path
from remat_cli.runtime.observe.hard_limit import HardLimitJob, limit_kind, runs_under_limit
from remat_cli.runtime.observe.resident import (
    ResidentFigures,
    ResidentJob,
    can_measure_resident,
    measure_and_keep,
    measure_resident,
)
from remat_cli.runtime.sessions._ort import Advance, ignore_progress, pack_all, run_fresh
from remat_cli.runtime.sessions.session import SessionSettings

RUNS, THOROUGH_RUNS = 3, 5
SETTLING_RUNS = 8  # without an arena the system's heap goes on growing for some runs: with three it looks far smaller
LEAST_RUNS = 2  # a first one and a later one
PACKED_LOADS = 3  # processes that load packed copies
LIMITED_RUNS = 3
LEAST_BETWEEN_BYTES = 4 * 2**20  # closer than this, noise of a process decides which one dies
LIMIT_SHARES = (0.5, 0.8, 0.95)  # of the way from what ours needs to what the original needs


@dataclass(frozen=True)
class ResidentRequest:
    """Two models, how they are run, and what was predicted of the second; `is_mapped`: the first has a data file.

    `at_once` runs are under way in one session. `reference` is None where the machine cannot run the first. What is
    `known` of the first, from a process that ran just like it, is not measured again.
    """

    reference: Path | None
    rewritten: Path
    feeds: Mapping[str, Any]
    settings: SessionSettings
    predicted: ProcessMemory
    budget_bytes: int | None
    with_mapped: bool
    is_thorough: bool
    is_limited: bool
    is_traced: bool = False
    is_mapped: bool = False
    at_once: int = 1
    known: ProcessMemory | None = None


def see_processes(request: ResidentRequest, advance: Advance = ignore_progress) -> ProcessSeen | None:
    """Load and run both models in fresh processes and watch resident memory; None where the system does not tell."""
    if not can_measure_resident():
        return None
    reference, rewritten = request.reference, request.rewritten
    is_known = request.known is not None and not (request.is_thorough or request.is_limited or request.is_traced)
    before = None if reference is None or is_known else _seen(request, reference, advance)
    after = _seen(request, rewritten, advance)
    job = HardLimitJob("", pack_all(request.feeds), 0, request.settings, LIMITED_RUNS)
    original = request.known if is_known else None
    if before is not None:
        original = worst_of(before, is_mapped=request.is_mapped)
    limited = None
    if reference is not None and before is not None and request.is_limited:
        limited = limited_pair((reference, rewritten), (before, after), job)
    return ProcessSeen(
        original=original,
        rewritten=worst_of(after, is_mapped=data_path(rewritten).exists()),
        predicted=request.predicted,
        input_bytes=sum(array.nbytes for array in request.feeds.values()),
        budget_bytes=request.budget_bytes,
        with_mapped=request.with_mapped,
        limited=limited,
        traces=tuple(figures[0].trace for figures in (before, after) if figures and figures[0].trace is not None),
    )


def see_alone(
    model: Path, feeds: Sequence[Mapping[str, Any]], settings: SessionSettings, *, is_mapped: bool
) -> tuple[ProcessMemory, tuple[Mapping[str, Any], ...]]:
    """What a process holds that runs a model on all feeds, twice at least, and what it gives for each.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run it.
    """
    first, *others = map(pack_all, feeds)
    runs = max(LEAST_RUNS, len(feeds))
    job = ResidentJob(str(model.resolve()), first, settings, runs, others=tuple(others))
    figures, outputs = run_fresh(measure_and_keep, job, ignore_progress, settings.run_seconds)
    return worst_of([figures], is_mapped=is_mapped), outputs[: len(feeds)]


def _seen(request: ResidentRequest, model: Path, advance: Advance) -> list[ResidentFigures]:
    """Outputs held until the next run has ended; with thorough checks also dropped before.

    Where copies as kernels pack them are saved, in more processes: what the heap keeps of those that loading makes and
    drops may differ from one to the next.
    """
    feeds, runs = pack_all(request.feeds), THOROUGH_RUNS if request.is_thorough else RUNS
    if not request.settings.has_arena:
        runs = SETTLING_RUNS
    once = ResidentJob(str(model.resolve()), feeds, request.settings, runs, 1, request.is_traced, request.at_once)
    jobs = [once, msgspec.structs.replace(once, held=0)] if request.is_thorough else [once]
    if model == request.rewritten and packed_weights(model).copies:
        again = msgspec.structs.replace(once, runs=LEAST_RUNS, is_traced=False)
        jobs += [again] * (PACKED_LOADS - len(jobs))
    return [run_fresh(measure_resident, job, advance, request.settings.run_seconds) for job in jobs]


def worst_of(found: list[ResidentFigures], *, is_mapped: bool) -> ProcessMemory:
    """The most that processes held in each phase; `is_mapped`: weights lie in a file of their own."""
    return ProcessMemory(
        load_peak_bytes=max(each.load_peak_bytes.total_bytes for each in found),
        loaded_bytes=max(each.loaded_bytes.total_bytes for each in found),
        first_run_bytes=max(each.run_peak_bytes[0].total_bytes for each in found),
        later_runs_bytes=max(peak.total_bytes for each in found for peak in each.run_peak_bytes[1:]),
        mapped_bytes=max(each.after_bytes.mapped_bytes for each in found),
        anonymous_bytes=max(_anonymous_bytes(each, is_mapped=is_mapped) for each in found),
    )


def _anonymous_bytes(figures: ResidentFigures, *, is_mapped: bool) -> int:
    """The most that is no page of a file; what is read of a data file to be packed leaves before loading ends."""
    loading = figures.loaded_bytes if is_mapped else figures.load_peak_bytes
    return max(each.anonymous_bytes for each in (loading, *figures.run_peak_bytes))


def limited_pair(
    paths: Sequence[Path], found: Sequence[Sequence[ResidentFigures]], job: HardLimitJob
) -> LimitedRuns | None:
    """The original and our model, with their figures, under a limit between what they need; `job` says how they run.

    None where there is no room between, or no limit can be set.
    """
    kind = limit_kind()
    if kind is None:
        return None
    original, rewritten = found
    if kind == "RLIMIT_DATA":  # where no block can be had, later runs do without: the first one decides
        # The runtime maps the data file private and writable while it loads, some of it for a moment only.
        data = data_path(paths[1])
        mapped = data.stat().st_size if data.exists() else 0
        theirs, ours = (
            max(each.data_bytes[1] for each in original),
            max(_reserved_bytes(each, mapped) for each in rewritten),
        )
    else:
        theirs, ours = (
            max(_anonymous_bytes(each, is_mapped=True) for each in figures) for figures in (original, rewritten)
        )
    if theirs - ours < LEAST_BETWEEN_BYTES:
        return None
    reference, written = (msgspec.structs.replace(job, model=str(path.resolve())) for path in paths)
    for share in LIMIT_SHARES:  # loading reserves more for a moment than shows when it has ended
        limit_bytes = ours + int(share * (theirs - ours))
        first = runs_under_limit(msgspec.structs.replace(written, limit_bytes=limit_bytes))
        if first.survived:
            break
    second = runs_under_limit(msgspec.structs.replace(reference, limit_bytes=limit_bytes))
    return LimitedRuns(kind, limit_bytes, job.runs, first.survived, second.survived, second.ended)


def _reserved_bytes(figures: ResidentFigures, file_bytes: int) -> int:
    """The most that RLIMIT_DATA counts of a process, its data file too, whole, while that is mapped to be loaded."""
    loaded_bytes = figures.data_bytes[0]
    untouched_bytes = max(0, loaded_bytes - figures.loaded_bytes.anonymous_bytes)  # of it the file, where still mapped
    return max(*figures.data_bytes, loaded_bytes + max(0, file_bytes - untouched_bytes))
