"""What every kind of plan says in its file, and finding what a file speaks of."""

import os
from pathlib import Path

import msgspec

from remat_cli import __version__
from remat_cli.base.errors import ModelError
from remat_cli.base.files import sha256
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.planned import Answered, OneModel, Sessions
from remat_cli.compiling.ways import way
from remat_cli.core.files.plan_file import (
    FileRef,
    PlanFile,
    PlanRequest,
    Promise,
    Solved,
    graph_instances,
)
from remat_cli.core.values.profile import Profile
from remat_cli.core.values.sized_plan import with_promise
from remat_cli.core.values.verification import Verification
from remat_cli.onnx_io.read.source_names import told_names
from remat_cli.report.solution import SolutionReport, solution_report
from remat_cli.runtime.measure.profile_cache import provenance

UNVERIFIED = "not verified: run `remat verify` on the plan"
NO_GAIN = (
    "no gain in the runtime's arena: no hard cap was found under which this model runs and the original fails; it has "
    "fewer live tensors, but they leave gaps; a smaller --budget may help"
)


def searched_solution(planned: Answered, peak_bytes: int | None) -> SolutionReport:
    """The solver's claims beside the judge's figures; once in its form, the peak is that of the form."""
    answer = planned.answer
    solution = solution_report(answer.run, answer.question.problem, answer.question.baseline)
    if planned.span is not None:
        found_after = None if answer.plan is None else planned.span.seconds_to_best
        solution = msgspec.structs.replace(solution, seconds=planned.span.seconds, seconds_to_best=found_after)
    if planned.splitting is not None:
        solution = msgspec.structs.replace(
            solution,
            floor_bytes=planned.splitting.whole_floor_bytes,
            floor_with_splitting_bytes=solution.floor_bytes,
        )
    return solution if peak_bytes is None else msgspec.structs.replace(solution, peak_bytes=peak_bytes)


def recorded(
    planned: OneModel | Sessions, request: PlanRequest, solution: SolutionReport, promise: Promise
) -> PlanFile:
    """What every kind of plan says of itself; the files it speaks of, and what only its kind has, are to be added."""
    prepared, plan = planned.prepared, planned.plan
    found = PlanFile(
        remat_version=__version__,
        source=FileRef(str(prepared.source.path), prepared.source.sha256),
        optimized_sha256=prepared.reference_sha256,
        output=FileRef("", ""),
        request=request,
        splitting=planned.splitting,
        device=",".join(profile.device for profile in planned.platform.profiles),
        graph=prepared.graph,
        profile=planned.profile,
        schedule=plan.schedule,
        instances=graph_instances(prepared.graph, planned.answer.question.problem, plan),
        solved=Solved(
            solver=solution.solver,
            options=solution.options,
            seed=solution.seed,
            space=solution.space,
            status=solution.status,
            time_ns=planned.time_ns,
            baseline_time_ns=solution.baseline_time,
            bound_ns=planned.answer.run.bound_ns,
            overhead_percent=solution.overhead_percent,
            lower_bound_percent=solution.lower_bound_percent,
            floor_bytes=solution.floor_bytes,
            floor_with_splitting_bytes=solution.floor_with_splitting_bytes,
            seconds=solution.seconds,
            seconds_to_best=solution.seconds_to_best,
        ),
        promise=promise,
        snippet="",
        names=told_names(planned.whole.source.ir, planned.whole.graph),
    )
    return found if planned.dims is None else with_promise(found, planned.dims)


def plan_request(planned: Answered, request: CompileRequest) -> PlanRequest:
    """What was asked for of a plan of any kind."""
    question, conditions = planned.answer.question, request.conditions
    most = request.search.asked_overhead(question)
    return PlanRequest(
        budget=question.text,
        budget_bytes=question.budget_bytes,
        budget_scope=request.asked.bounds,
        process_budget_bytes=request.process_budget_bytes,
        count_mapped=request.count_mapped,
        external_data=request.files.external,
        packed_weights=request.files.packed,
        order=request.search.limits.order,
        portable=conditions.portable,
        target=conditions.target,
        runtimes=conditions.runtimes,
        plain=conditions.plain,
        session=conditions.session,
        dims=conditions.dims,
        summed=conditions.summed,
        input_shapes=conditions.input_shapes,
        family=conditions.family,
        custom_ops=conditions.custom_ops,
        max_overhead_percent=None if most is None else 100 * float(most),
    )


def written_at(plan: PlanFile, output: Path, path: Path, seen: Verification | None) -> PlanFile:
    """The plan with the files that it speaks of, relative to where it is written."""
    holds = plan.promise.holds_by_default and (seen is None or seen.within_budget)
    return msgspec.structs.replace(
        plan,
        source=FileRef(relative(Path(plan.source.path), path), plan.source.sha256),
        output=FileRef(relative(output, path), sha256(output)),
        promise=msgspec.structs.replace(plan.promise, holds_by_default=holds),
        snippet=way(plan.kind).snippet(plan, output, path),
        warnings=warnings(plan, seen),
        verification=seen,
    )


def whole_profile(plan: PlanFile) -> Profile:
    """The profile of the model before splitting."""
    return plan.profile if plan.splitting is None else plan.splitting.whole_profile


def whole_sha256(plan: PlanFile) -> str:
    """Hash of the optimised model before splitting."""
    return plan.optimized_sha256 if plan.splitting is None else plan.splitting.whole_sha256


def find_file(reference: FileRef, plan: Path, what: str) -> Path:
    """The file that a plan speaks of, beside the plan or where it was; its hash is for the caller to check.

    Raises:
        ModelError: it is gone.
    """
    for path in (plan.parent / reference.path, Path(reference.path)):
        if path.is_file():
            return path
    raise ModelError(f"the plan's {what} {reference.path} is not beside {plan}: put it back or compile again")


def elsewhere(plan: PlanFile) -> tuple[str, ...]:
    """What is different here from where the profiles of a plan were made, and what therefore no longer holds."""
    changed: dict[str, None] = {}
    for device, profile in zip(plan.session_devices, plan.profiles, strict=True):
        made = profile.provenance
        if not made.measured:
            continue
        here = provenance(device, made.intra_op_threads, made.optimization, made.runs, made.warmups)
        for name, what in (("cpu", "CPU"), ("runtime", "runtime"), ("runtime_version", "runtime version")):
            if getattr(here, name) != getattr(made, name):
                changed[f"{what} {getattr(here, name)} here, {getattr(made, name)} there"] = None
    if not changed:
        return ()
    return (f"the plan was made elsewhere ({'; '.join(changed)}): its times, and perhaps its peak, do not hold here",)


def warnings(plan: PlanFile, seen: Verification | None) -> tuple[str, ...]:
    """What the user should know besides the figures."""
    whole = way(plan.kind).large_lines(plan)
    if seen is not None:
        unkept = (f"not kept: {line}" for line in seen.warned)
        return (*unkept, *seen.notes, *((NO_GAIN,) if seen.is_worse_under_cap else ()), *whole)
    if absent := [profile.device for profile in plan.profiles if not profile.provenance.measured]:
        return (f"not verified: {', '.join(absent)} is not here, its costs are estimated from a description",)
    return (UNVERIFIED,)


def relative(path: Path, plan: Path) -> str:
    """A path as it is written from the folder of a plan."""
    return Path(os.path.relpath(path.resolve(), plan.resolve().parent)).as_posix()
