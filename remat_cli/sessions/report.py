"""What a compile for several devices found out, told as a report."""

from remat_cli.compiling.learn.settle import Settled
from remat_cli.compiling.placed.report import placed_report
from remat_cli.compiling.planned import Refused, Sessions
from remat_cli.compiling.record import searched_solution
from remat_cli.core.values.verification import SessionsSeen
from remat_cli.report.devices.sessions import SessionsReport


def devices_report(settled: Settled[Sessions | Refused, SessionsSeen | None]) -> SessionsReport:
    """What runs where, beside what each device does alone."""
    planned = settled.planned
    peak_bytes = planned.cut.peak_bytes[0] if isinstance(planned, Sessions) else None
    return placed_report(planned, searched_solution(planned, peak_bytes), settled.seen)
