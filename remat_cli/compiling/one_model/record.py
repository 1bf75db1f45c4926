"""A plan that is one model as a plan file, and that file's promises as what verification must find."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from remat_cli.base.processes import has_glibc
from remat_cli.base.units import format_bytes
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.planned import OneModel
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.process.forecast import forecast_of
from remat_cli.compiling.record import plan_request, recorded, searched_solution, whole_profile
from remat_cli.core.files.plan_file import ExactSession, PlanFile, Promise
from remat_cli.core.values.profile import Profile
from remat_cli.core.values.session import AskedSession
from remat_cli.devices.provider_table import PROVIDERS, named_spec
from remat_cli.onnx_io.write.packed import packed_weights
from remat_cli.ort_rules.primers import PREFIX as PRIMERS
from remat_cli.ort_rules.primers import SMALL_COPIES_BYTES
from remat_cli.runtime.sessions._ort import installed_rules
from remat_cli.runtime.verify.verify_request import VerifyRequest

NO_PATTERN = "options.enable_mem_pattern = False"
PATTERN_OFF = NO_PATTERN + "  # else later runs take one block for all tensors{}\n"
LEANEST = (
    "# what is promised holds like this, with the arena on; another way, not part of the promise, takes {size} a run,\n"
    "# given back after it, at the price of time: start Python with MALLOC_MMAP_THRESHOLD_=65536, and set\n"
    "# options.enable_mem_pattern = options.enable_cpu_mem_arena = False\n"
)


def record_model(planned: OneModel, request: CompileRequest) -> PlanFile:
    """The plan of a model as a file, splits that were asked for with it."""
    splits = request.splits
    asked = msgspec.structs.replace(
        plan_request(planned, request),
        split=splits.mode,
        max_tiles=splits.max_tiles,
        split_axis=splits.axis.text,
        allow_reassociation=splits.allow_reassociation,
        max_tensor_bytes=splits.max_tensor_bytes,
    )
    solution = searched_solution(planned, planned.written.promised_bytes)
    return recorded(planned, asked, solution, _promise(planned, request))


def _promise(planned: OneModel, request: CompileRequest) -> Promise:
    """What the written model does, gates included."""
    written = planned.written
    forecast = forecast_of(written, planned.prepared, request.files)
    baseline, gates = planned.answer.question.baseline, written.rewritten.gate_ops
    is_known = request.conditions.session.arena or has_glibc()
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
        process=forecast.process if is_known else None,
        runs=forecast.runs if is_known else None,
    )


def request_of(plan: PlanFile, whole: Prepared, rewritten: Path) -> VerifyRequest:
    """What verification must find for the rewritten model of a plan; `whole` is the model before splitting."""
    profile, promise = plan.profile, plan.promise
    order = tuple(name for name in promise.order if name not in set(promise.gates))
    copies = packed_weights(rewritten)
    packed = copies.without(PRIMERS)  # whose weights count as nothing
    primers_bytes = SMALL_COPIES_BYTES if packed != copies else 0
    workspace, steps = _workspace(profile), zip(order, plan.schedule.op_ids(), strict=True)
    step_workspace = {name: workspace[plan.graph.ops[op].name] for name, op in steps}
    return VerifyRequest(
        reference=whole.reference_path,
        rewritten=rewritten,
        feeds=whole.feeds,
        more_feeds=whole.more_feeds,
        expected_order=order,
        predicted_live_peak_bytes=promise.live_peak_bytes,
        fixed_bytes=promise.fixed_bytes,
        reference_fixed_bytes=whole_profile(plan).fixed_bytes,
        outside_bytes=profile.fixed_bytes - profile.packed_bytes + packed.total_bytes - primers_bytes,
        largest_copy_bytes=packed.largest_bytes,
        budget_bytes=plan.request.budget_bytes,
        gate_ops=frozenset(promise.gates),
        workspace=_workspace(whole_profile(plan)) | workspace | step_workspace,
        predicted_overhead_percent=plan.solved.overhead_percent,
        portable=plan.request.portable,
        is_left=whole.layout is not None,
        is_elsewhere=not whole.conditions.is_for(whole.runtime.layout_block),
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


def _workspace(profile: Profile) -> dict[str, int]:
    """Workspace in bytes of every op of a profiled model."""
    return {cost.name: cost.workspace_bytes for cost in profile.ops}


def _option_lines(session: AskedSession) -> Iterator[str]:
    """Python that sets the options that a file was made for."""
    levels = {"disabled": "ORT_DISABLE_ALL", "basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED"}
    if not session.arena:
        yield "options.enable_cpu_mem_arena = False"
    if not session.pattern:
        yield "options.enable_mem_pattern = False"
    if session.optimisation in levels:
        yield f"options.graph_optimization_level = ort.GraphOptimizationLevel.{levels[session.optimisation]}"
    if session.mode == "parallel":
        yield "options.execution_mode = ort.ExecutionMode.ORT_PARALLEL"


def _needed_lines(plan: PlanFile) -> Iterator[str]:
    """Python that sets what no session of the file may leave out."""
    if count := plan.promise.exact_session.intra_op_num_threads:
        yield f"options.intra_op_num_threads = {count}"
    for path in plan.request.custom_ops:
        yield f'options.register_custom_ops_library("{path}")'


def _provider(plan: PlanFile) -> str:
    return PROVIDERS[named_spec(plan.device).provider].runtime_name


def _has_block(plan: PlanFile) -> bool:
    """Whether later runs take one block for all tensors, unless the session is told not to."""
    return plan.promise.runs is None or plan.promise.runs.ballast_bytes is None


def session_line(plan: PlanFile, output: Path) -> str:
    """Python that opens the result, in a line; what it imports is left out."""
    session = plan.request.session
    more = list(_option_lines(session)) if not session.is_default else [NO_PATTERN] if _has_block(plan) else []
    lines, name = [*_needed_lines(plan), *more], output.as_posix()
    if not lines:
        return f'session = onnxruntime.InferenceSession("{name}", providers=["{_provider(plan)}"])'
    opened = f'session = onnxruntime.InferenceSession("{name}", options, providers=["{_provider(plan)}"])'
    options = "; ".join(line.replace(" ort.", " onnxruntime.") for line in lines)
    return f"options = onnxruntime.SessionOptions(); {options}; {opened}"


def model_snippet(plan: PlanFile, output: Path) -> str:
    """Python that runs the result, ready to paste."""
    # Lines for who owns the session: what keeps later runs small, unless the file does, and what is leanest.
    runs, promise = plan.promise.runs, plan.promise
    no_arena_bytes = installed_rules().loading.no_arena_bytes
    options = LEANEST.format(size=format_bytes(promise.peak_bytes - promise.fixed_bytes + no_arena_bytes))
    session = plan.request.session
    needed = "".join(f"{line}\n" for line in _needed_lines(plan))
    if not session.is_default:
        made_for = f"# made for sessions with {', '.join(session.words)}: what is promised holds in these"
        options = "".join(f"{line}\n" for line in (made_for, *_option_lines(session)))
    elif _has_block(plan):
        block = f": {format_bytes(runs.block_bytes)}" if runs is not None and runs.block_bytes else ""
        options = PATTERN_OFF.format(block) + options
    return (
        "import onnxruntime as ort\n\n"
        "options = ort.SessionOptions()\n"
        f"{needed}"
        f"{options}"
        f'session = ort.InferenceSession("{output.as_posix()}", options, providers=["{_provider(plan)}"])\n'
        "outputs = session.run(None, inputs)  # inputs: a dict of numpy arrays by name\n"
    )
