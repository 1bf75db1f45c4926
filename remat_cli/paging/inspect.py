"""Where the memory of a plan goes that pages: what is away is not there."""

from pathlib import Path

import msgspec

from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.paging.paged_sessions import groups_of
from remat_cli.paging.values import PagedInspectReport, paging_report
from remat_cli.report.devices.placed import PlacedPlan, alive_in, memory_reports, step_label
from remat_cli.report.devices.placed_inspection import placed_inspection
from remat_cli.report.explain import fullest_step


def inspect_paged(path: Path, file: PlanFile, warnings: tuple[str, ...] = ()) -> PagedInspectReport:
    """What the memory holds of a plan that pages, and what pages.

    Raises:
        ModelError: the plan contradicts itself.
    """
    problem, plan = file.problem(), file.plan()
    paged, placed = file.paged(plan), PlacedPlan(file.graph, problem, file.placed(), plan)
    numbers = [session for session, group in enumerate(groups_of(plan, paged.paging.firsts)) for _ in group]
    memories = []
    for unpaged in memory_reports(placed):
        # While sessions run: what is away is not there, neither values nor weights.
        fixed = unpaged.fixed_bytes - paged.sessions.released_bytes
        curve = tuple(fixed + paged.session_bytes[session] for session in numbers)
        step = fullest_step(curve)
        away = set() if step is None else paged.away_in(numbers[step])
        gone = {id(plan.instances[number]) for number in away}
        memory = msgspec.structs.replace(
            unpaged,
            fixed_bytes=fixed,
            peak_step=step,
            peak_op=None if step is None else step_label(placed, step),
            memory_bytes=curve,
            alive=() if step is None else alive_in(placed, plan, 0, step, gone),
            workspace_bytes=0,
        )
        memories.append(memory)
    report = placed_inspection(path, file, placed, memories, warnings)
    told = paging_report(file.graph, problem, plan, paged)
    return PagedInspectReport(**(msgspec.structs.asdict(report) | {"paging": told}))
