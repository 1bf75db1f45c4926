"""What a compile found out, told as a report."""

from pathlib import Path

import msgspec

from remat_cli.compiling.learn.settle import Settled
from remat_cli.compiling.planned import PlannedModel
from remat_cli.compiling.profile import is_cut_into_sessions
from remat_cli.compiling.record import placement_of, planned_solution
from remat_cli.core.paging.paged_plan import PagedPlan
from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.problem import tensor_ids
from remat_cli.report.compile import CompileReport, on_devices
from remat_cli.report.explain import recomputes, working_set
from remat_cli.report.paged import paging_report
from remat_cli.report.placed import Obstacle, PlacedPlan
from remat_cli.report.regions import region_reports
from remat_cli.report.solution import CHEAPEST_PERCENT


def compile_report(model: Path, settled: Settled) -> CompileReport:
    """What is known before anything is written; files, snippet and warnings are for the caller to add."""
    planned = settled.planned
    report = CompileReport(
        model=str(model),
        budget=planned.answer.question.text,
        solution=planned_solution(planned),
        ops=len(planned.whole.graph.ops),
        verification=settled.seen,
        uncounted_bytes=settled.uncounted_bytes,
    )
    if is_cut_into_sessions(planned.platform.specs) or planned.platform.spill is not None:
        problem, placement = planned.answer.question.problem, placement_of(planned)
        report = on_devices(report, PlacedPlan(planned.platform.graph, problem, placement, planned.answer.plan))
        if planned.platform.spill is not None:
            report = msgspec.structs.replace(report, obstacle=_obstacle(report.obstacle, planned))
        return report if planned.paged is None else _with_paging(report, planned, planned.paged)
    return _in_one_session(report, planned)


def _obstacle(found: Obstacle | None, planned: PlannedModel) -> Obstacle | None:
    """An op that fits nowhere, without what is no part of the proof: weights that may be away; None where it fits."""
    problem, floor = planned.answer.question.problem, planned.answer.run.floor
    if found is None:
        return None
    uncounted = working_set_floor(problem).bytes[0] - floor.bytes
    needs = {name: need - uncounted for name, need in found.needs.items()}
    is_one = min(needs.values()) > problem.memories[0].budget_bytes
    return msgspec.structs.replace(found, needs=needs) if is_one else None


def _with_paging(report: CompileReport, planned: PlannedModel, paged: PagedPlan) -> CompileReport:
    problem, graph = planned.answer.question.problem, planned.platform.graph
    told = paging_report(graph, problem, planned.plan, paged, planned.without_paging_ns)
    return msgspec.structs.replace(report, paging=told, links=())


def _in_one_session(report: CompileReport, planned: PlannedModel) -> CompileReport:
    """What was split and recomputed; blockers only where the budget is out of reach."""
    answer, graph = planned.answer, planned.prepared.graph
    problem, floor = answer.question.problem, answer.run.floor
    is_out_of_reach = answer.plan is None and not answer.run.interrupted and CHEAPEST_PERCENT not in answer.run.facts
    blocking = floor.op if is_out_of_reach else None
    held = tuple(tensor_ids(graph)[tensor] for tensor in floor.held)
    return msgspec.structs.replace(
        report,
        device=problem.devices[0].name,
        recomputes=recomputes(graph, problem, answer.plan) if answer.plan else (),
        regions=region_reports(planned.splitting) if planned.splitting else (),
        split_obstacle=planned.obstacle,
        blocking_op=graph.ops[blocking].name if blocking is not None else None,
        is_blocked_by_many=blocking is not None and bool(held),
        blockers=working_set(graph, blocking, held) if blocking is not None else (),
        blocking_workspace_bytes=problem.ops[blocking].workspace_bytes[0] if blocking is not None else 0,
        gates=planned.written.rewritten.gates if planned.written is not None else 0,
    )
