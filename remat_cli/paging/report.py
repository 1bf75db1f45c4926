"""What a compile that may page found out, told as a report."""

from pathlib import Path

import msgspec

from remat_cli.compiling.learn.settle import Settled
from remat_cli.compiling.placed.report import placed_report
from remat_cli.compiling.planned import Paged, Refused
from remat_cli.compiling.record import searched_solution
from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.values.verification import PagedSeen
from remat_cli.paging.record import paged_solution_of
from remat_cli.paging.values import PagedReport, paging_report
from remat_cli.report.devices.placed import Obstacle
from remat_cli.report.devices.sessions import SessionsReport


def pages_report(model: Path, settled: Settled[Paged | Refused, PagedSeen | None]) -> SessionsReport:
    """What pages; where there is no plan, an op that fits nowhere."""
    planned = settled.planned
    if isinstance(planned, Refused):
        report = placed_report(model, planned, searched_solution(planned, None), None)
        return msgspec.structs.replace(report, obstacle=_obstacle(report.obstacle, planned))
    report = placed_report(model, planned, paged_solution_of(planned), settled.seen)
    graph, problem = planned.platform.graph, planned.answer.question.problem
    told = paging_report(graph, problem, planned.plan, planned.paged, planned.without_paging_ns)
    return PagedReport(**(msgspec.structs.asdict(report) | {"links": ()}), paging=told)


def _obstacle(found: Obstacle | None, planned: Refused) -> Obstacle | None:
    """An op that fits nowhere, without what is no part of the proof: weights that may be away; None where it fits."""
    problem, floor = planned.answer.question.problem, planned.answer.run.floor
    if found is None:
        return None
    uncounted = working_set_floor(problem).bytes[0] - floor.bytes
    needs = {name: need - uncounted for name, need in found.needs.items()}
    is_one = min(needs.values()) > problem.memories[0].budget_bytes
    return msgspec.structs.replace(found, needs=needs) if is_one else None
