"""The one way into and out of a plan file: what was planned as a file, and a file's promises as a verification."""

import os
from collections import defaultdict
from pathlib import Path
from platform import machine
from typing import Any

import msgspec

from remat_cli import __version__
from remat_cli.base.errors import ModelError
from remat_cli.base.files import sha256
from remat_cli.base.units import format_bytes
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.planned import PlannedModel, WrittenModel
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.process.resident import process_forecast
from remat_cli.compiling.search.limits import cap_lines, cap_of
from remat_cli.core.files.plan_file import (
    ExactSession,
    FileRef,
    PlanFile,
    PlanRequest,
    Promise,
    Solved,
    graph_instances,
)
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Compute, Schedule
from remat_cli.core.schedule.problem import input_ops
from remat_cli.core.values.profile import Placement, Profile
from remat_cli.core.values.sized_plan import with_promise
from remat_cli.core.values.verification import Verification
from remat_cli.devices.provider_table import PROVIDERS, named_spec
from remat_cli.onnx_io.read.phases import annotate
from remat_cli.onnx_io.write.packed import packed_weights
from remat_cli.onnx_io.write.processor_guard import guard_for, with_lone_guards
from remat_cli.ort_rules.primers import PREFIX as PRIMERS
from remat_cli.ort_rules.primers import SMALL_COPIES_BYTES
from remat_cli.report.solution import SolutionReport, solution_report, with_paging
from remat_cli.runtime.measure.profile_cache import provenance
from remat_cli.runtime.verify.verify_request import VerifyRequest

PATTERN_OFF = "options.enable_mem_pattern = False  # else later runs take one block for all tensors{}\n"
LEANEST = (
    "# what is promised holds like this, with the arena on; another way, not part of the promise, takes {size} a run,\n"
    "# given back after it, at the price of time: start Python with MALLOC_MMAP_THRESHOLD_=65536, and set\n"
    "# options.enable_mem_pattern = options.enable_cpu_mem_arena = False\n"
)
ARENA_OFF_BYTES = 2**20  # what a session holds beyond live tensors where it has no arena
UNVERIFIED = "not verified: run `remat verify` on the plan"
NO_GAIN = (
    "no gain in the runtime's arena: no hard cap was found under which this model runs and the original fails; it has "
    "fewer live tensors, but they leave gaps; a smaller --budget may help"
)


def planned_solution(planned: PlannedModel) -> SolutionReport:
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
    if planned.written is not None:
        return msgspec.structs.replace(solution, peak_bytes=planned.written.promised_bytes)
    if planned.paged is not None:
        assert planned.cut is not None
        return with_paging(solution, planned.paged.paging, planned.cut.peak_bytes[0])
    return solution if planned.cut is None else msgspec.structs.replace(solution, peak_bytes=planned.cut.peak_bytes[0])


def plan_file(planned: PlannedModel, request: CompileRequest) -> PlanFile:
    """Everything needed to rebuild, draw, run and verify a plan; `written_at` adds the files it speaks of."""
    prepared, plan, question = planned.prepared, planned.plan, planned.answer.question
    placement = None if planned.written is not None else placement_of(planned)
    found = PlanFile(
        remat_version=__version__,
        source=FileRef(str(prepared.source.path), prepared.source.sha256),
        optimized_sha256=prepared.reference_sha256,
        output=FileRef("", ""),
        request=_request(planned, request),
        splitting=planned.splitting,
        device=",".join(profile.device for profile in planned.platform.profiles),
        graph=prepared.graph,
        profile=planned.profile,
        schedule=plan.schedule,
        instances=graph_instances(prepared.graph, question.problem, plan),
        solved=_solved(planned),
        promise=_promise(planned.written, planned, request) if planned.written else _placed_promise(planned),
        snippet="",
        placement=placement,
        paging=None if planned.paged is None else planned.paged.paging,
    )
    return found if planned.dims is None else with_promise(found, planned.dims)


def written_at(plan: PlanFile, output: Path, path: Path, seen: Verification | None) -> PlanFile:
    """The plan with the files that it speaks of, relative to where it is written."""
    holds = plan.promise.holds_by_default and (seen is None or seen.within_budget)
    return msgspec.structs.replace(
        plan,
        source=FileRef(relative(Path(plan.source.path), path), plan.source.sha256),
        output=FileRef(relative(output, path), sha256(output)),
        promise=msgspec.structs.replace(plan.promise, holds_by_default=holds),
        snippet=snippet(plan, output, path),
        warnings=warnings(plan, seen),
        verification=seen,
    )


def noted_model(planned: PlannedModel) -> Any:
    """The optimised model, which says of each op where and when it runs; a cut plan's schedule indexes it."""
    problem, platform = planned.answer.question.problem, planned.platform
    first = input_ops(platform.graph, problem)
    runs: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for number, step in enumerate(planned.plan.schedule.steps):
        if isinstance(step, Compute) and step.op >= first:
            runs[platform.graph.ops[step.op - first].name].append((problem.devices[step.device].name, number))
    about = {
        "remat.version": __version__,
        "remat.source_sha256": planned.prepared.source.sha256,
        "remat.devices": ",".join(device.name for device in problem.devices),
        "remat.budget_bytes": ",".join(f"{memory.name}={memory.budget_bytes}" for memory in problem.memories),
    }
    noted = annotate(planned.prepared.reference, runs, about)
    guard = guard_for(machine(), planned.prepared.layout_block)
    return noted if guard is None else with_lone_guards(noted, guard)


def model_to_write(planned: PlannedModel) -> Any:
    """The model that stands beside the plan file."""
    return noted_model(planned) if planned.written is None else planned.written.rewritten.model


def _request(planned: PlannedModel, request: CompileRequest) -> PlanRequest:
    question, conditions, splits = planned.answer.question, request.conditions, request.splits
    most = request.search.allowed_overhead(question)
    asked = PlanRequest(
        budget=question.text,
        budget_bytes=question.budget_bytes,
        budget_scope=request.asked.bounds,
        process_budget_bytes=request.process_budget_bytes,
        count_mapped=request.count_mapped,
        external_data=request.files.external,
        packed_weights=request.files.packed,
        order=request.search.limits.order,
        portable=conditions.portable,
        plain=conditions.plain,
        dims=conditions.dims,
        input_shapes=conditions.input_shapes,
        family=conditions.family,
        custom_ops=conditions.custom_ops,
        max_overhead_percent=None if most is None else 100 * float(most),
    )
    if planned.written is None:
        return msgspec.structs.replace(asked, max_tensor_bytes=cap_of(request))
    return msgspec.structs.replace(
        asked,
        split=splits.mode,
        max_tiles=splits.max_tiles,
        split_axis=splits.axis.text,
        allow_reassociation=splits.allow_reassociation,
        max_tensor_bytes=splits.max_tensor_bytes,
    )


def _solved(planned: PlannedModel) -> Solved:
    solution = planned_solution(planned)
    assert solution.time is not None
    return Solved(
        solver=solution.solver,
        options=solution.options,
        seed=solution.seed,
        space=solution.space,
        status=solution.status,
        time_ns=solution.time,
        baseline_time_ns=solution.baseline_time,
        bound_ns=planned.answer.run.bound_ns,
        overhead_percent=solution.overhead_percent,
        lower_bound_percent=solution.lower_bound_percent,
        floor_bytes=solution.floor_bytes,
        floor_with_splitting_bytes=solution.floor_with_splitting_bytes,
        seconds=solution.seconds,
        seconds_to_best=solution.seconds_to_best,
    )


def _promise(written: WrittenModel, planned: PlannedModel, request: CompileRequest) -> Promise:
    """What the written model does, gates included."""
    baseline, gates = planned.answer.question.baseline, written.rewritten.gate_ops
    return Promise(
        order=written.order,
        gates=tuple(name for name in written.order if name in gates),
        peak_bytes=written.promised_bytes,
        live_peak_bytes=written.plan.live_peak - written.fixed_bytes + written.unexplained_bytes,
        fixed_bytes=written.fixed_bytes,
        baseline_peak_bytes=baseline.peak,
        memory_bytes=tuple(min(held, written.promised_bytes) for held in written.plan.memory_bytes[0]),
        baseline_memory_bytes=baseline.memory_bytes[0],
        exact_session=ExactSession(intra_op_num_threads=request.conditions.intra_op_threads),
        holds_by_default=not request.conditions.portable,
        process=process_forecast(written, planned.prepared, request.files),
        runs=written.formed.runs,
    )


def _placed_promise(planned: PlannedModel) -> Promise:
    """What a run does, in figures of the first memory; those of the others are in the placement."""
    question, plan, cut = planned.answer.question, planned.plan, planned.cut
    assert cut is not None
    graph, first = planned.platform.graph, input_ops(planned.platform.graph, question.problem)
    computes = (step.op for step in plan.schedule.steps if isinstance(step, Compute))
    fixed = question.problem.memories[0].fixed_bytes
    return Promise(
        order=tuple(graph.ops[op - first].name for op in computes if op >= first),
        gates=(),
        peak_bytes=cut.peak_bytes[0],
        live_peak_bytes=plan.live_peak - fixed,
        fixed_bytes=fixed,
        baseline_peak_bytes=question.baseline.peak,
        memory_bytes=plan.memory_bytes[0],
        baseline_memory_bytes=question.baseline.memory_bytes[0],
        exact_session=ExactSession(),
        holds_by_default=False,
    )


def placement_of(planned: PlannedModel) -> Placement:
    """All that a plan across devices holds besides its schedule, as far as it is known."""
    platform, problem = planned.platform, planned.answer.question.problem
    known = Placement(
        devices=platform.specs,
        profiles=platform.profiles,
        links=platform.links,
        budgets=planned.answer.question.budgets,
        overlap=problem.overlap,
        peak_bytes={},
        single=planned.single,
        session_bytes=dict(platform.session_bytes),
        way=planned.way,
    )
    if planned.cut is None:
        return known
    names = [memory.name for memory in problem.memories]
    has_power = any(profile.power_watts is not None for profile in platform.profiles)
    energy = {device.name: nj for device, nj in zip(problem.devices, planned.plan.energy_nj, strict=True)}
    return msgspec.structs.replace(
        known,
        peak_bytes=dict(zip(names, planned.cut.peak_bytes, strict=True)),
        memory_bytes=dict(zip(names, planned.cut.memory_bytes, strict=True)),
        segments=planned.cut.segments,
        energy_nj=energy if has_power else {},
    )


def request_of(plan: PlanFile, whole: Prepared, rewritten: Path) -> VerifyRequest:
    """What verification must find for the rewritten model of a plan; `whole` is the model before splitting."""
    profile, promise = plan.profile, plan.promise
    order = tuple(name for name in promise.order if name not in set(promise.gates))
    copies = packed_weights(rewritten)
    packed = copies.without(PRIMERS)  # whose weights count as nothing
    primers_bytes = SMALL_COPIES_BYTES if packed != copies else 0
    return VerifyRequest(
        reference=whole.reference_path,
        rewritten=rewritten,
        feeds=whole.feeds,
        more_feeds=whole.more_feeds,
        expected_order=order,
        predicted_live_peak_bytes=promise.live_peak_bytes,
        fixed_bytes=promise.fixed_bytes,
        reference_fixed_bytes=_whole_profile(plan).fixed_bytes,
        outside_bytes=profile.fixed_bytes - profile.packed_bytes + packed.total_bytes - primers_bytes,
        largest_copy_bytes=packed.largest_bytes,
        budget_bytes=plan.request.budget_bytes,
        gate_ops=frozenset(promise.gates),
        workspace=_workspace(_whole_profile(plan)) | _workspace_by_name(profile, plan.graph, order, plan.schedule),
        predicted_overhead_percent=plan.solved.overhead_percent,
        portable=plan.request.portable,
        intra_op_threads=profile.provenance.intra_op_threads,
        run_seconds=whole.conditions.run_seconds,
        device=plan.device,
        custom_ops=plan.request.custom_ops,
        original_cap_bytes=whole.facts.smallest_cap_bytes,
        may_reassociate=plan.request.allow_reassociation and plan.splitting is not None,
        has_block=promise.runs is None or promise.runs.ballast_bytes is None,
        original=whole.original.path if whole.conditions.may_be_alone and not plan.request.portable else None,
        compared_with=whole.original.name,
    )


def _workspace_by_name(profile: Profile, graph: Graph, step_ops: tuple[str, ...], schedule: Schedule) -> dict[str, int]:
    """Workspace in bytes of every op of the original, and of every step of the rewritten model by its op's name."""
    workspace = _workspace(profile)
    return workspace | {
        name: workspace[graph.ops[op].name] for name, op in zip(step_ops, schedule.op_ids(), strict=True)
    }


def _workspace(profile: Profile) -> dict[str, int]:
    """Workspace in bytes of every op of a profiled model."""
    return {cost.name: cost.workspace_bytes for cost in profile.ops}


def _whole_profile(plan: PlanFile) -> Profile:
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
    profiles = (plan.profile,) if plan.placement is None else plan.placement.profiles
    names = (plan.device,) if plan.placement is None else tuple(s.session_device for s in plan.placement.devices)
    changed = dict.fromkeys(line for pair in zip(names, profiles, strict=True) for line in _moved(*pair))
    if not changed:
        return ()
    return (f"the plan was made elsewhere ({'; '.join(changed)}): its times, and perhaps its peak, do not hold here",)


def _moved(device: str, profile: Profile) -> list[str]:
    """What is different here from where a profile was made; an estimate was made nowhere."""
    made = profile.provenance
    if not made.measured:
        return []
    here = provenance(device, made.intra_op_threads, made.optimization, made.runs, made.warmups)
    return [
        f"{what} {getattr(here, field)} here, {getattr(made, field)} there"
        for field, what in (("cpu", "CPU"), ("runtime", "runtime"), ("runtime_version", "runtime version"))
        if getattr(here, field) != getattr(made, field)
    ]


def snippet(plan: PlanFile, output: Path, path: Path) -> str:
    """Python that runs the result, ready to paste."""
    if plan.placement is not None:
        return (
            "import remat_cli\n\n"
            f'plan = remat_cli.load("{path.as_posix()}")\n'
            "outputs = plan.run(inputs)  # inputs and outputs: dicts of numpy arrays by name\n"
        )
    provider = PROVIDERS[named_spec(plan.device).provider].runtime_name
    count = plan.promise.exact_session.intra_op_num_threads
    threads = f"options.intra_op_num_threads = {count}\n" if count else ""
    libraries = "".join(f'options.register_custom_ops_library("{path}")\n' for path in plan.request.custom_ops)
    return (
        "import onnxruntime as ort\n\n"
        "options = ort.SessionOptions()\n"
        f"{threads}"
        f"{libraries}"
        f"{_options(plan)}"
        f'session = ort.InferenceSession("{output.as_posix()}", options, providers=["{provider}"])\n'
        "outputs = session.run(None, inputs)  # inputs: a dict of numpy arrays by name\n"
    )


def _options(plan: PlanFile) -> str:
    """Lines for who owns the session: what keeps later runs small, unless the file does, and what is leanest."""
    runs, promise = plan.promise.runs, plan.promise
    leanest = LEANEST.format(size=format_bytes(promise.peak_bytes - promise.fixed_bytes + ARENA_OFF_BYTES))
    if runs is not None and runs.ballast_bytes is not None:
        return leanest
    block = f": {format_bytes(runs.block_bytes)}" if runs is not None and runs.block_bytes else ""
    return PATTERN_OFF.format(block) + leanest


def warnings(plan: PlanFile, seen: Verification | None) -> tuple[str, ...]:
    """What the user should know besides the figures."""
    whole = cap_lines(plan)
    if seen is not None:
        unkept = (f"not kept: {line}" for line in seen.warned)
        return (*unkept, *seen.notes, *((NO_GAIN,) if seen.is_worse_under_cap else ()), *whole)
    profiles = plan.placement.profiles if plan.placement is not None else ()
    if absent := [profile.device for profile in profiles if not profile.provenance.measured]:
        return (f"not verified: {', '.join(absent)} is not here, its costs are estimated from a description",)
    return (UNVERIFIED,)


def relative(path: Path, plan: Path) -> str:
    """A path as it is written from the folder of a plan."""
    return Path(os.path.relpath(path.resolve(), plan.resolve().parent)).as_posix()
