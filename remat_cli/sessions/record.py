"""A plan for several devices as a plan file, and the model that it speaks of."""

from pathlib import Path

import msgspec

from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.placed.limits import cap_of
from remat_cli.compiling.placed.record import placed_promise, placement_of, save_noted
from remat_cli.compiling.planned import Sessions
from remat_cli.compiling.record import plan_request, recorded, searched_solution
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.values.runs_on import RunsOn


def record_sessions(planned: Sessions, request: CompileRequest) -> PlanFile:
    """The plan as a file: where each op runs, and the most bytes that a device's tensors may have."""
    asked = msgspec.structs.replace(plan_request(planned, request), max_tensor_bytes=cap_of(request))
    solution = searched_solution(planned, planned.cut.peak_bytes[0])
    found = recorded(planned, asked, solution, placed_promise(planned))
    return msgspec.structs.replace(found, placement=placement_of(planned))


def save_sessions(planned: Sessions, path: Path, request: CompileRequest) -> RunsOn:
    """Write the model from which sessions are cut."""
    return save_noted(planned, path, external=request.files.external)
