"""Run a plan that pages beside the plain model, and compare with its promises: also what it stalls, and its process."""

from dataclasses import replace
from pathlib import Path

import msgspec

from remat_cli.base.progress import Progress
from remat_cli.compiling.placed.verify import PlacedRun, verify_placed
from remat_cli.compiling.prepare import Prepared
from remat_cli.core.values.profile import HOST_MEMORY
from remat_cli.core.values.verification import Checks, PagedSeen, PagingSeen
from remat_cli.paging.paged_program import paged_program
from remat_cli.runtime.observe.paged_resident import see_resident


def verify_paged(run: PlacedRun, whole: Prepared, work: Path, checks: Checks, progress: Progress) -> PagedSeen:
    """What runs showed of sessions and of paging.

    Raises:
        RuntimeFailure: ONNX Runtime fails to run a part of it.
    """
    seen, runs = verify_placed(replace(run, make_program=paged_program), whole, work, checks, progress)
    planned, memory = run.plan.paged(run.plan.plan()).paging, runs.program.memories[0]
    paging = PagingSeen(
        planned_stall_ns=planned.stall_ns,
        measured_stall_ns=runs.times.stall_ns,
        written_bytes=planned.written_bytes,
        read_bytes=planned.read_bytes,
        planned_run_bytes=planned.peak_bytes,
        resident=see_resident(runs.program, runs.feeds) if memory == HOST_MEMORY else None,
        input_bytes=sum(array.nbytes for array in runs.feeds.values()),
        budget_bytes=run.plan.placed().budgets[memory],
    )
    return PagedSeen(**msgspec.structs.asdict(seen), paging=paging)
