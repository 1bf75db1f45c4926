"""Run a plan that pages beside the plain model, and compare with its promises: also what it stalls, and its process."""

from dataclasses import replace
from pathlib import Path

import msgspec

from remat_cli.base.progress import Progress
from remat_cli.compiling.placed.verify import PlacedRun, ProgramRuns, verify_placed
from remat_cli.compiling.prepare import Prepared
from remat_cli.core.files.plan_file import PlanFile
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
    return PagedSeen(**msgspec.structs.asdict(seen), paging=_paging(run.plan, runs))


def _paging(plan: PlanFile, runs: ProgramRuns) -> PagingSeen:
    paging, memory = plan.paged(plan.plan()).paging, runs.program.memories[0]
    return PagingSeen(
        planned_stall_ns=paging.stall_ns,
        measured_stall_ns=runs.times.stall_ns,
        written_bytes=paging.written_bytes,
        read_bytes=paging.read_bytes,
        planned_run_bytes=paging.peak_bytes,
        resident=see_resident(runs.program, runs.feeds) if memory == HOST_MEMORY else None,
        input_bytes=sum(array.nbytes for array in runs.feeds.values()),
        budget_bytes=plan.placed().budgets[memory],
    )
