"""A plan that pages as a plan file, and the model that it speaks of."""

from pathlib import Path

import msgspec

from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.placed.limits import cap_of
from remat_cli.compiling.placed.record import placed_promise, placement_of, save_noted
from remat_cli.compiling.record import plan_request, recorded, searched_solution
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.values.runs_on import RunsOn
from remat_cli.paging.planned import Paged
from remat_cli.report.solution import SolutionReport, with_paging


def paged_solution_of(planned: Paged) -> SolutionReport:
    """The solver's claims, with the time that stalls take and what sessions hold at most."""
    return with_paging(searched_solution(planned, None), planned.paged.paging, planned.cut.peak_bytes[0])


def record_paged(planned: Paged, request: CompileRequest) -> PlanFile:
    """The plan as a file: its sessions, and what moves when."""
    asked = msgspec.structs.replace(plan_request(planned, request), max_tensor_bytes=cap_of(request))
    found = recorded(planned, asked, paged_solution_of(planned), placed_promise(planned))
    return msgspec.structs.replace(found, placement=placement_of(planned), paging=planned.paged.paging)


def save_paged(planned: Paged, path: Path, request: CompileRequest) -> RunsOn:
    """Write the model from which sessions are cut."""
    return save_noted(planned, path, external=request.files.external)
