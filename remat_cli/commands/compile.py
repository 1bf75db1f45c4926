"""The compiler on one page: load, optimise, profile, plan, rewrite, verify. Values in, reports out."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.progress import Progress
from remat_cli.commands.compile_devices import compile_on_devices, spans_devices
from remat_cli.core.plan_file import write_plan
from remat_cli.core.problem import tensor_ids
from remat_cli.core.verification import Verification
from remat_cli.onnx_io.load import save
from remat_cli.report.device_compile import DeviceCompileReport
from remat_cli.report.explain import LiveTensor, recomputes, working_set
from remat_cli.report.regions import region_reports
from remat_cli.report.report import CompileReport, SolverRun
from remat_cli.runtime.verify import verify
from remat_cli.settings.config import Config, output_paths, require_budget
from remat_cli.stages.plan import Planned, plan_model
from remat_cli.stages.prepare import (
    Prepared,
    only_device,
    prepare,
    profile_prepared,
    remember_cap,
    work_folder,
)
from remat_cli.stages.record import (
    Outcome,
    plan_file,
    planned_solution,
    snippet,
    verify_request,
    warnings,
)
from remat_cli.stages.solve import check_solver, prepare_kernels
from remat_cli.stages.write import with_budget, write_with_room

MOST_ROOM = 1.01  # of the least budget: more is no matter of small buffers


def compile_model(model: Path, config: Config, progress: Progress) -> CompileReport | DeviceCompileReport:
    """Rewrite a model so that it runs within a budget; the output is written only once it is verified.

    For several devices it is a plan of where everything runs, and the model stays as the runtime optimises it.

    Raises:
        InputError: the model, the inputs or the settings cannot be used.
        MissingDependency: a device is not here.
        RuntimeFailure: ONNX Runtime refuses the model.
    """
    if spans_devices(config):
        return compile_on_devices(model, config, progress)
    return compile_for_one(model, config, progress)


def compile_for_one(model: Path, config: Config, progress: Progress) -> CompileReport:
    """Rewrite a model for one device.

    Raises:
        InputError: the model, the inputs or the settings cannot be used.
        RuntimeFailure: ONNX Runtime refuses the model.
    """
    started = time.monotonic()
    device = only_device(config)
    require_budget(config)
    check_solver(config)
    targets = output_paths(model, config)
    prepare_kernels(config.solver, progress)
    with work_folder(config) as work:
        prepared = prepare(model, config, work, progress)
        profile = profile_prepared(prepared, config, device, progress)
        planned = plan_model(prepared, profile, config, work, progress)
        if planned.written is None:
            report = _report(model, prepared, planned)
            return msgspec.structs.replace(report, seconds=time.monotonic() - started)
        outcome, verification = _verified(Outcome.of(prepared, profile, planned), config, work, progress)
        report = msgspec.structs.replace(
            _report(model, prepared, outcome.planned),
            verification=verification,
            warnings=warnings(verification),
            gates=outcome.written.rewritten.gates,
            snippet=snippet(targets.model, config),
        )
        if verification is not None and not verification.passed:
            save(outcome.written.rewritten.model, targets.failed)
            report = msgspec.structs.replace(report, failed_output=str(targets.failed))
        else:
            save(outcome.written.rewritten.model, targets.model)
            write_plan(targets.plan, plan_file(outcome, config, targets.model, targets.plan, verification))
            report = msgspec.structs.replace(report, output=str(targets.model), plan=str(targets.plan))
        return msgspec.structs.replace(report, seconds=time.monotonic() - started)


def _verified(outcome: Outcome, config: Config, work: Path, progress: Progress) -> tuple[Outcome, Verification | None]:
    """Verify the rewritten model before anything is written where the user will look.

    Where all holds but the runtime's arena leaves such gaps that no cap tells the models apart, a plan with splits
    is made tighter, once.
    """
    if not config.verify:
        return outcome, None
    found = _verify_fresh(outcome, config, work, progress)
    if found.lacks_only_room:
        return _verified_with_room(outcome, found, config, work, progress)
    if found.passed or not found.lacks_only_cap:
        return outcome, found
    tighter = outcome.planned.tighter()
    if tighter is None or tighter.written is None:
        return outcome, found
    again = Outcome.of(outcome.whole, outcome.whole_profile, tighter)
    return again, _verify_fresh(again, config, work, progress)


def _verified_with_room(
    outcome: Outcome, found: Verification, config: Config, work: Path, progress: Progress
) -> tuple[Outcome, Verification]:
    """Make room for small buffers that a default session holds a little longer, because it knows their shapes.

    For `min` the budget becomes what such a session was measured to need, if that is nearly the same.
    """
    planned, answer = outcome.planned, outcome.answer
    least, budget_bytes = found.measured_peak_default_session_bytes, answer.question.budget_bytes
    if answer.question.least and least > budget_bytes * MOST_ROOM:
        return outcome, found
    if answer.question.least:
        answer, written = with_budget(answer, outcome.written, least)
        found = msgspec.structs.replace(found, within_budget=True)
    else:
        room_bytes = least - budget_bytes
        answer, fresh = write_with_room(planned.prepared, planned.profile, answer, room_bytes, config, progress)
        if fresh is None:
            return outcome, found
        written = fresh
    again = Outcome.of(outcome.whole, outcome.whole_profile, replace(planned, answer=answer, written=written))
    return again, found if found.passed else _verify_fresh(again, config, work, progress)


def _verify_fresh(outcome: Outcome, config: Config, work: Path, progress: Progress) -> Verification:
    progress.stage(stages.VERIFYING)
    path = work / "rewritten.onnx"
    save(outcome.written.rewritten.model, path)
    found = verify(verify_request(outcome, path, config), progress.advance)
    remember_cap(outcome.whole, found, config, outcome.profile.device)
    return found


def _report(model: Path, whole: Prepared, planned: Planned) -> CompileReport:
    """What is known before anything is written; `blockers` only where the budget is out of reach."""
    solved, prepared = planned.answer, planned.prepared
    problem = solved.question.problem
    blocking = solved.run.floor_op if solved.plan is None else None
    return CompileReport(
        model=str(model),
        device=problem.devices[0].name,
        budget=solved.question.text,
        solution=planned_solution(planned),
        ops=len(whole.graph.ops),
        recomputes=recomputes(prepared.graph, problem, solved.plan) if solved.plan else (),
        regions=region_reports(planned.splitting) if planned.splitting else (),
        split_obstacle=planned.obstacle,
        blocking_op=prepared.graph.ops[blocking].name if blocking is not None else None,
        is_blocked_by_many=blocking is not None and bool(solved.run.floor_held),
        blockers=_blockers(prepared, solved.run, blocking) if blocking is not None else (),
        blocking_workspace_bytes=problem.ops[blocking].workspace_bytes[0] if blocking is not None else 0,
    )


def _blockers(prepared: Prepared, run: SolverRun, op: int) -> tuple[LiveTensor, ...]:
    """What stands in the way of a smaller budget: what `op` works on, and what must be held meanwhile."""
    number = tensor_ids(prepared.graph)
    return working_set(prepared.graph, op, tuple(number[tensor] for tensor in run.floor_held))
