"""What `inspect` reports of a plan for many sizes at some of them."""

from pathlib import Path

import msgspec

from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.report.inspection import InspectReport, inspect_plan


def inspect_at(path: Path, file: PlanFile, warnings: tuple[str, ...] = ()) -> InspectReport:
    """Where the memory goes of a plan as it runs at one of the sizes that it was made for.

    Raises:
        ModelError: the plan contradicts itself.
    """
    return msgspec.structs.replace(
        inspect_plan(path, file, warnings),
        sizes=file.request.dims,
        floor_bytes=working_set_floor(file.problem()).bytes[0],
        floor_with_splitting_bytes=None,
        baseline_memory_bytes=(),
        baseline_peak_bytes=None,
        baseline_step_times_ns=(),
        step_times_ns=(),
        time=None,
        overhead_percent=None,
    )
