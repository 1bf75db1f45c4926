"""A plan that spans devices as files: the optimised model with notes on its ops, and the plan beside it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec

from remat_cli import __version__
from remat_cli.core.device_problem import input_ops
from remat_cli.core.device_verification import DeviceVerification
from remat_cli.core.placement import Placement, Reference
from remat_cli.core.plan import Plan
from remat_cli.core.plan_file import FileRef, PlanFile, Promise, Request, SessionSettings, Solved, graph_instances
from remat_cli.core.problem import Problem
from remat_cli.core.schedule import Compute
from remat_cli.core.segments import Cut
from remat_cli.onnx_io.annotate import annotate
from remat_cli.report.report import SolutionReport, solution_report
from remat_cli.settings.config import Config
from remat_cli.stages.place import DevicePlan, Platform
from remat_cli.stages.prepare import Prepared, sha256
from remat_cli.stages.record import relative


def noted_model(prepared: Prepared, platform: Platform, planned: DevicePlan) -> Any:
    """The optimised model, which says of each op where and when it runs; the plan's schedule indexes it."""
    problem, plan = planned.answer.question.problem, planned.answer.plan
    assert plan is not None
    first = input_ops(platform.graph, problem)
    runs: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for number, step in enumerate(plan.schedule.steps):
        if isinstance(step, Compute) and step.op >= first:
            runs[platform.graph.ops[step.op - first].name].append((problem.devices[step.device].name, number))
    about = {
        "remat.version": __version__,
        "remat.source_sha256": prepared.source.sha256,
        "remat.devices": ",".join(device.name for device in problem.devices),
        "remat.budget_bytes": ",".join(f"{memory.name}={memory.budget_bytes}" for memory in problem.memories),
    }
    return annotate(prepared.reference, runs, about)


def device_plan_file(prepared: Prepared, platform: Platform, planned: DevicePlan, config: Config) -> PlanFile:
    """Everything needed to run and explain the plan; `output` and `warnings` are set once the files are written."""
    problem, plan, cut = planned.answer.question.problem, planned.answer.plan, planned.cut
    assert plan is not None
    assert cut is not None
    solution = solution_report(planned.answer.run, problem, planned.answer.question.baseline, plan)
    return PlanFile(
        remat_version=__version__,
        source=FileRef(str(prepared.source.path), prepared.source.sha256),
        optimized_sha256=prepared.reference_sha256,
        output=FileRef("", ""),
        request=_request(planned, config),
        device=",".join(spec.name for spec in platform.specs),
        graph=prepared.graph,
        profile=platform.profiles[0],
        schedule=plan.schedule,
        instances=graph_instances(prepared.graph, problem, plan),
        solved=_solved(planned, solution),
        promise=_promise(platform, planned),
        snippet="",
        placement=placement_of(platform, planned, plan, cut),
    )


def placed_at(
    plan: PlanFile, output: Path, path: Path, verification: DeviceVerification | None, warnings: tuple[str, ...]
) -> PlanFile:
    """The plan with the files that it speaks of, relative to where it is written."""
    return msgspec.structs.replace(
        plan,
        source=FileRef(relative(Path(plan.source.path), path), plan.source.sha256),
        output=FileRef(relative(output, path), sha256(output)),
        snippet=device_snippet(path),
        warnings=warnings,
        device_verification=verification,
    )


def device_snippet(plan: Path) -> str:
    """Python that runs the plan, ready to paste."""
    return (
        "import remat_cli\n\n"
        f'plan = remat_cli.load("{plan.as_posix()}")\n'
        "outputs = plan.run(inputs)  # inputs and outputs: dicts of numpy arrays by name\n"
    )


def _request(planned: DevicePlan, config: Config) -> Request:
    question = planned.answer.question
    return Request(
        budget=question.text,
        budget_bytes=question.budget_bytes,
        budget_scope=config.budget_scope,
        order=config.order,
        portable=config.portable,
        dims=config.dims,
        input_shapes=config.input_shapes,
    )


def _solved(planned: DevicePlan, solution: SolutionReport) -> Solved:
    assert solution.time is not None
    return Solved(
        solver=solution.solver,
        options=solution.options,
        seed=solution.seed,
        space=solution.space,
        status=solution.status,
        time_ns=solution.time,
        baseline_time_ns=solution.baseline_time,
        bound_ns=planned.answer.run.bound,
        overhead_percent=solution.overhead_percent,
        lower_bound_percent=solution.lower_bound_percent,
        floor_bytes=solution.floor_bytes,
        seconds=solution.seconds,
        seconds_to_best=solution.seconds_to_best,
    )


def _promise(platform: Platform, planned: DevicePlan) -> Promise:
    """What a run does, in figures of the first memory; those of the others are in the placement."""
    question, plan, cut = planned.answer.question, planned.answer.plan, planned.cut
    assert plan is not None
    assert cut is not None
    names = [_name(platform, question.problem, step.op) for step in plan.schedule.steps if isinstance(step, Compute)]
    fixed = question.problem.memories[0].fixed_bytes
    return Promise(
        order=tuple(name for name in names if name),
        gates=(),
        peak_bytes=cut.peak_bytes[0],
        live_peak_bytes=plan.live_peak - fixed,
        fixed_bytes=fixed,
        baseline_peak_bytes=question.baseline.peak,
        memory_bytes=plan.memory_bytes[0],
        baseline_memory_bytes=question.baseline.memory_bytes[0],
        exact_session=SessionSettings(),
        holds_by_default=False,
    )


def _name(platform: Platform, problem: Problem, op: int) -> str:
    """Name of an op of a problem in the model; empty for one that stands for a model input."""
    first = input_ops(platform.graph, problem)
    return "" if op < first else platform.graph.ops[op - first].name


def unplaced(platform: Platform, problem: Problem, single: tuple[Reference, ...]) -> Placement:
    """What is known of devices where no plan was found."""
    return Placement(
        devices=platform.specs,
        profiles=platform.profiles,
        links=platform.links,
        budgets={memory.name: memory.budget_bytes for memory in problem.memories},
        overlap=problem.overlap,
        peak_bytes={},
        single=single,
        session_bytes=dict(platform.session_bytes),
    )


def placement_of(platform: Platform, planned: DevicePlan, plan: Plan, cut: Cut) -> Placement:
    """All that a plan across devices holds besides its schedule."""
    problem = planned.answer.question.problem
    names = [memory.name for memory in problem.memories]
    has_power = any(profile.power_watts is not None for profile in platform.profiles)
    energy = {device.name: nj for device, nj in zip(problem.devices, plan.energy_nj, strict=True)}
    return msgspec.structs.replace(
        unplaced(platform, problem, planned.single),
        peak_bytes=dict(zip(names, cut.peak_bytes, strict=True)),
        memory_bytes=dict(zip(names, cut.memory_bytes, strict=True)),
        segments=cut.segments,
        energy_nj=energy if has_power else {},
    )
