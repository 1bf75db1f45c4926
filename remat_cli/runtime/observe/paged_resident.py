"""Measures the resident memory of a process that opens and runs a paged plan, above an idle runtime."""

from collections.abc import Mapping
from typing import Any

from remat_cli.core.schedule.program import Program
from remat_cli.core.values.verification import PagedResident
from remat_cli.runtime.observe.resident import can_measure_resident, ready, resident_bytes, watch_here, watched
from remat_cli.runtime.segments.segment_run import ProgramJob, open_runner
from remat_cli.runtime.sessions._ort import Advance, pack_all, run_fresh
from remat_cli.runtime.sessions.session import SessionSettings

RUNS = 3


def see_resident(program: Program, feeds: Mapping[str, Any]) -> PagedResident | None:
    """Run a program in a fresh process and say what was resident; None where the system does not tell.

    Raises:
        RuntimeFailure: the runtime fails.
        RematError: the disk fails.
    """
    if not can_measure_resident():
        return None
    return run_fresh(see_resident_here, ProgramJob(program, pack_all(feeds), RUNS))


def see_resident_here(job: ProgramJob, advance: Advance) -> PagedResident:
    """Look in this process; the outputs of a run are let go of before the next one."""
    feeds, _tiny = ready(job.feeds, SessionSettings(exact=True))
    _, watch = watch_here()
    baseline = resident_bytes()
    with open_runner(job.program) as runner:
        opened = resident_bytes().above(baseline)
        peaks = []
        for number in range(job.repeat):
            _, peak, _ = watched(lambda: len(runner.run(feeds)), watch)
            peaks.append(peak.above(baseline).total_bytes)
            advance(number + 1, job.repeat)
    return PagedResident(opened_bytes=opened.total_bytes, peak_bytes=max(peaks))
