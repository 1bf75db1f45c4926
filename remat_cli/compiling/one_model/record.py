"""A plan that is one model as a plan file, and as Python that runs it."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

from remat_cli.base.processes import has_glibc
from remat_cli.base.units import format_bytes
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.planned import OneModel
from remat_cli.compiling.process.forecast import forecast_of
from remat_cli.compiling.record import plan_request, recorded, searched_solution
from remat_cli.core.files.plan_file import ExactSession, PlanFile, Promise
from remat_cli.core.values.conditions import CPU
from remat_cli.core.values.session import AskedSession
from remat_cli.devices.provider_table import named_spec
from remat_cli.runtime.sessions._ort import installed_rules
from remat_cli.runtime.sessions.providers import device_of

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
    written = planned.written
    forecast = forecast_of(written, planned.prepared, request.files)
    baseline, gates = planned.answer.question.baseline, written.rewritten.gate_ops
    # What a process holds is known of the CPU provider alone: others bring libraries, and memory, of their own.
    is_known = request.conditions.may_be_alone and (request.conditions.session.arena or has_glibc())
    promise = Promise(
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
    return recorded(planned, asked, solution, promise)


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
    if named_spec(plan.device).provider != CPU:
        yield "options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC"
        yield "options.use_deterministic_compute = True"
    for path in plan.request.custom_ops:
        yield f'options.register_custom_ops_library("{path}")'


def _provider(plan: PlanFile) -> str:
    """The provider as Python says it, with the options under which the plan was verified."""
    device = device_of(named_spec(plan.device))
    name = json.dumps(device.provider.runtime_name)
    return f"({name}, {json.dumps(device.provider_options)})" if device.provider_options else name


def _has_block(plan: PlanFile) -> bool:
    """Whether later runs take one block for all tensors, unless the session is told not to."""
    return plan.promise.runs is None or plan.promise.runs.ballast_bytes is None


def session_line(plan: PlanFile, output: Path) -> str:
    """Python that opens the result, in a line; what it imports is left out."""
    session = plan.request.session
    more = list(_option_lines(session)) if not session.is_default else [NO_PATTERN] if _has_block(plan) else []
    lines, name = [*_needed_lines(plan), *more], output.as_posix()
    if not lines:
        return f'session = onnxruntime.InferenceSession("{name}", providers=[{_provider(plan)}])'
    opened = f'session = onnxruntime.InferenceSession("{name}", options, providers=[{_provider(plan)}])'
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
        options = PATTERN_OFF.format(block) + (options if named_spec(plan.device).provider == CPU else "")
    return (
        "import onnxruntime as ort\n\n"
        "options = ort.SessionOptions()\n"
        f"{needed}"
        f"{options}"
        f'session = ort.InferenceSession("{output.as_posix()}", options, providers=[{_provider(plan)}])\n'
        "outputs = session.run(None, inputs)  # inputs: a dict of numpy arrays by name\n"
    )
