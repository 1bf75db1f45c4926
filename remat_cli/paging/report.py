"""What a compile that may page found out, told as a report."""

import msgspec

from remat_cli.compiling.learn.settle import Settled
from remat_cli.compiling.placed.report import placed_report
from remat_cli.compiling.planned import Refused
from remat_cli.compiling.record import searched_solution
from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.values.verification import PagedSeen
from remat_cli.paging.planned import Paged
from remat_cli.paging.record import paged_solution_of
from remat_cli.paging.values import PagedReport, paging_report
from remat_cli.report.devices.sessions import SessionsReport


def pages_report(settled: Settled[Paged | Refused, PagedSeen | None]) -> SessionsReport:
    """What pages; where there is no plan, an op that fits nowhere."""
    planned = settled.planned
    if isinstance(planned, Refused):
        report = placed_report(planned, searched_solution(planned, None), None)
        obstacle = report.obstacle
        if obstacle is not None:
            # Without what is no part of the proof: weights that may be away.
            problem, floor = planned.answer.question.problem, planned.answer.run.floor
            uncounted = working_set_floor(problem).bytes[0] - floor.bytes
            needs = {name: need - uncounted for name, need in obstacle.needs.items()}
            is_one = min(needs.values()) > problem.memories[0].budget_bytes
            obstacle = msgspec.structs.replace(obstacle, needs=needs) if is_one else None
        return msgspec.structs.replace(report, obstacle=obstacle)
    report = placed_report(planned, paged_solution_of(planned), settled.seen)
    graph, problem = planned.platform.graph, planned.answer.question.problem
    told = paging_report(graph, problem, planned.plan, planned.paged, planned.without_paging_ns)
    return PagedReport(**(msgspec.structs.asdict(report) | {"links": ()}), paging=told)
