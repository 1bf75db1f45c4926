"""What a compile of a plan that says where ops run found out, told as a report."""

import msgspec

from remat_cli.compiling.placed.record import known_placement, placement_of
from remat_cli.compiling.planned import Refused, Sessions
from remat_cli.core.values.verification import SessionsSeen
from remat_cli.report.devices.placed import PlacedPlan
from remat_cli.report.devices.sessions import SessionsReport, sessions_report
from remat_cli.report.solution import SolutionReport


def placed_report(planned: Sessions | Refused, solution: SolutionReport, seen: SessionsSeen | None) -> SessionsReport:
    """What is known before anything is written; files, snippet and warnings are for the caller to add."""
    question = planned.answer.question
    if isinstance(planned, Refused):
        placement = msgspec.structs.replace(known_placement(planned), single=planned.single)
    else:
        placement = placement_of(planned)
    placed = PlacedPlan(planned.platform.graph, question.problem, placement, planned.answer.plan)
    return sessions_report(
        model=str(planned.whole.source.path),
        budget=question.text,
        solution=solution,
        ops=len(planned.whole.graph.ops),
        placed=placed,
        seen=seen,
    )
