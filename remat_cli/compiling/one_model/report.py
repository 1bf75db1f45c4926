"""What a compile to one model found out, told as a report."""

from remat_cli.compiling.learn.settle import Settled
from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.compiling.record import searched_solution
from remat_cli.core.schedule.problem import tensor_ids
from remat_cli.core.values.verification import OneModelSeen
from remat_cli.report.compile import OneModelReport
from remat_cli.report.explain import recomputes, working_set
from remat_cli.report.regions import region_reports
from remat_cli.report.solution import CHEAPEST_PERCENT


def model_report(settled: Settled[OneModel | Refused, OneModelSeen | None]) -> OneModelReport:
    """What was split and recomputed; blockers only where the budget is out of reach."""
    planned = settled.planned
    answer, graph = planned.answer, planned.prepared.graph
    written = planned.written if isinstance(planned, OneModel) else None
    problem, floor = answer.question.problem, answer.run.floor
    is_out_of_reach = answer.plan is None and not answer.run.interrupted and CHEAPEST_PERCENT not in answer.run.facts
    blocking = floor.op if is_out_of_reach else None
    held = tuple(tensor_ids(graph)[tensor] for tensor in floor.held)
    return OneModelReport(
        model=str(planned.whole.source.path),
        budget=answer.question.text,
        solution=searched_solution(planned, None if written is None else written.promised_bytes),
        ops=len(planned.whole.graph.ops),
        verification=settled.seen,
        uncounted_bytes=settled.uncounted_bytes,
        device=problem.devices[0].name,
        recomputes=recomputes(graph, problem, answer.plan) if answer.plan else (),
        regions=region_reports(planned.splitting) if planned.splitting else (),
        split_obstacle=planned.obstacle,
        blocking_op=graph.ops[blocking].name if blocking is not None else None,
        is_blocked_by_many=blocking is not None and bool(held),
        blockers=working_set(graph, blocking, held) if blocking is not None else (),
        blocking_workspace_bytes=problem.ops[blocking].workspace_bytes[0] if blocking is not None else 0,
        gates=0 if written is None else written.rewritten.gates,
    )
