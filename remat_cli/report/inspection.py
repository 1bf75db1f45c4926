"""What `inspect` reports of a model or of a plan file."""

from __future__ import annotations

from pathlib import Path

from remat_cli.core.floor import working_set_floor
from remat_cli.core.graph import Graph
from remat_cli.core.plan_file import PlanFile
from remat_cli.core.problem import NO_BUDGET, Problem
from remat_cli.core.profile import Profile
from remat_cli.core.simulate import baseline
from remat_cli.report.explain import alive_at, peak_step, recomputes, step_name
from remat_cli.report.inspection_devices import inspect_placed
from remat_cli.report.regions import planned_regions, step_times_ns
from remat_cli.report.report import InspectReport
from remat_cli.report.solution import difference


def inspect_model(
    path: Path, graph: Graph, profile: Profile, problem: Problem, budget: str | None = None
) -> InspectReport:
    """Where the memory of a model goes as it is; `budget` is that of the problem as the user wrote it."""
    plan = baseline(problem)
    step = peak_step(plan)
    floor, budget_bytes = working_set_floor(problem), problem.memories[0].budget_bytes
    return InspectReport(
        path=str(path),
        kind="model",
        device=profile.device,
        ops=len(graph.ops),
        fixed_bytes=profile.fixed_bytes,
        floor_bytes=floor.bytes[0],
        blocking_op=None if floor.ops[0] is None else graph.ops[floor.ops[0]].name,
        peak_bytes=plan.peak,
        peak_step=step,
        peak_op=step_name(graph, plan, step),
        memory_bytes=plan.memory_bytes[0],
        alive=alive_at(graph, plan, step),
        workspace_bytes=plan.memory_bytes[0][step] - plan.live_bytes[0][step],
        time=plan.time_ns,
        budget=budget,
        budget_bytes=None if budget_bytes == NO_BUDGET else budget_bytes,
    )


def inspect_plan(path: Path, file: PlanFile, warnings: tuple[str, ...] = ()) -> InspectReport:
    """Where the memory of a written model goes, beside its original's, and what its splits and recomputes buy.

    The figures are those of the written model, gates included; who is alive is worked out from the schedule. The
    original is the whole model, and so is the floor's.

    Raises:
        ModelError: the plan contradicts itself.
    """
    if file.placement is not None:
        return inspect_placed(path, file, warnings)
    problem, plan, promise, splitting = file.problem(), file.plan(), file.promise, file.splitting
    floor = working_set_floor(problem)
    whole_floor = splitting.whole_floor_bytes if splitting else file.solved.floor_bytes
    is_blocking = splitting is None and floor.ops[0] is not None and floor.bytes[0] == whole_floor
    peak_at = promise.memory_bytes.index(max(promise.memory_bytes))
    gates = set(promise.gates)
    step = max(0, sum(name not in gates for name in promise.order[: peak_at + 1]) - 1)
    is_gate = promise.order[peak_at] in gates
    workspace = 0 if is_gate else plan.memory_bytes[0][step] - plan.live_bytes[0][step]
    alive = alive_at(file.graph, plan, step)
    overhead, bound = file.solved.overhead_percent, file.solved.lower_bound_percent
    return InspectReport(
        path=str(path),
        kind="plan",
        device=file.device,
        ops=len(file.graph.ops),
        fixed_bytes=promise.fixed_bytes,
        floor_bytes=whole_floor,
        floor_with_splitting_bytes=file.solved.floor_with_splitting_bytes,
        blocking_op=file.graph.ops[floor.ops[0]].name if is_blocking and floor.ops[0] is not None else None,
        peak_bytes=promise.peak_bytes,
        peak_step=peak_at,
        peak_op=promise.order[peak_at],
        memory_bytes=promise.memory_bytes,
        alive=alive,
        workspace_bytes=workspace,
        gate_bytes=max(0, promise.peak_bytes - promise.fixed_bytes - workspace - sum(t.bytes for t in alive)),
        time=file.solved.time_ns,
        budget=file.request.budget,
        budget_bytes=file.request.budget_bytes,
        baseline_memory_bytes=promise.baseline_memory_bytes,
        baseline_peak_bytes=promise.baseline_peak_bytes,
        recomputes=recomputes(file.graph, problem, plan),
        overhead_percent=overhead,
        lower_bound_percent=bound,
        gap_percent=difference(overhead, bound),
        space=file.solved.space,
        regions=planned_regions(file),
        step_times_ns=step_times_ns(file) if splitting else (),
        baseline_step_times_ns=tuple(cost.time_ns for cost in splitting.whole_profile.ops) if splitting else (),
        warnings=warnings,
    )
