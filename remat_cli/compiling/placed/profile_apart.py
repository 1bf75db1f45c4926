"""What ops cost on a device whose sessions do not show it: each op by itself; what was measured before is cached."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.files import WORK_FOLDER
from remat_cli.base.progress import Progress
from remat_cli.compiling.facts import RUNS, WARMUPS
from remat_cli.compiling.placed.copy_costs import scope_apart
from remat_cli.compiling.placed.cut import workspaces
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.profile import measured_once
from remat_cli.core.schedule.graph import Tensor
from remat_cli.core.schedule.program import InputSpec
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.profile import DeviceSpec, OpCost, Profile, Unsupported
from remat_cli.devices.provider_table import PROVIDERS
from remat_cli.onnx_io.read.load import save, save_work
from remat_cli.onnx_io.read.one_op import call_model, model_with_outputs, one_op_model
from remat_cli.runtime.measure.findings import OpFinding
from remat_cli.runtime.measure.op_profiler import OpJob, OpRequest, measure_call, measure_ops
from remat_cli.runtime.measure.profile_cache import CacheScope, ProfileCache
from remat_cli.runtime.sessions.feeds import record_values
from remat_cli.runtime.sessions.session import SessionSettings, device_settings

MOST_VALUE_BYTES = 2**30  # of recorded floats; larger ones are random
FLOATS = ("float", "double", "float16", "bfloat16")
CALL = "call"


def profile_apart(prepared: Prepared, conditions: Conditions, spec: DeviceSpec, progress: Progress) -> Profile:
    """Costs on another provider, each op by itself."""
    progress.stage(stages.PROFILING)
    apart = SessionSettings(custom_ops=conditions.custom_ops)
    settings, scope = device_settings(spec, apart), scope_apart(spec, conditions)
    is_opaque = PROVIDERS[spec.provider].is_opaque
    keys = (*prepared.signatures, prepared.reference_sha256)
    with ProfileCache(conditions.cache_dir) as cache:
        known = cache.op_costs(scope, keys).keys() | cache.unsupported(scope, keys).keys()
        missing = {key: op for op, key in reversed(tuple(enumerate(prepared.signatures))) if key not in known}
        if missing or prepared.reference_sha256 not in known:
            _measure_apart(prepared, conditions, settings, missing, _Keeper(cache, scope), progress)
        costs, refused = cache.op_costs(scope, keys), cache.unsupported(scope, keys)
    call_ns = 0 if is_opaque else _call_ns(scope, conditions, settings)
    named = [(op.name, key) for op, key in zip(prepared.graph.ops, prepared.signatures, strict=True)]
    needs = workspaces(prepared.graph, prepared.reference, spec)
    whole = costs.get(prepared.reference_sha256)
    ops = []
    for name, key in named:
        if key in costs:  # measured in a session with the op alone, whose own part of the time is no cost of the op
            time_ns = max(1, costs[key].time_ns - call_ns)
            ops.append(msgspec.structs.replace(costs[key], name=name, time_ns=time_ns, workspace_bytes=needs[name]))
    return Profile(
        device=spec.name,
        model_sha256=prepared.reference_sha256,
        provenance=scope.provenance,
        ops=tuple(ops),
        weight_bytes=prepared.graph.weight_bytes,
        input_bytes=prepared.graph.input_bytes,
        run_ns=whole.time_ns if whole else None,
        unsupported=tuple(Unsupported(name, refused[key].reason) for name, key in named if key not in costs),
        memory=spec.memory,
        power_watts=spec.power_watts,
        call_ns=call_ns,
        is_opaque=is_opaque,
    )


@dataclass(frozen=True)
class _Keeper:
    """Writes each finding into the cache as soon as it is there."""

    cache: ProfileCache
    scope: CacheScope

    def keep(self, found: OpFinding) -> None:
        """Written when this returns."""
        if found.time_ns is None:
            self.cache.store_unsupported(self.scope, Unsupported(found.name, found.reason))
        else:
            cost = OpCost(found.name, found.time_ns, 0, found.noise_percent)
            self.cache.store_ops(self.scope, {found.name: cost})


def _measure_apart(
    prepared: Prepared,
    conditions: Conditions,
    settings: SessionSettings,
    missing: dict[str, int],
    keeper: _Keeper,
    progress: Progress,
) -> None:
    """Measure one op of each signature that is missing, and the whole model."""
    ops, graph = dict(sorted(missing.items(), key=lambda item: item[1])), prepared.graph
    with tempfile.TemporaryDirectory(prefix=f"{WORK_FOLDER}ops_", dir=prepared.reference_path.parent) as name:
        folder = Path(name)
        shown = prepared.graph
        read = {tensor for op in list(ops.values()) for tensor in shown.ops[op].inputs} | set(shown.model_inputs)
        tensors = sorted((shown.tensors[tensor] for tensor in read), key=lambda t: (t.dtype in FLOATS, t.size_bytes))
        names, total_bytes = [], 0
        for tensor in tensors:
            total_bytes += tensor.size_bytes
            if tensor.producer is None or tensor.dtype not in FLOATS or total_bytes <= MOST_VALUE_BYTES:
                names.append(tensor.name)
        saved = folder / "observed.onnx"
        made = {tensor.name for tensor in tensors if tensor.producer is not None}
        save_work(model_with_outputs(prepared.reference, shown, [name for name in names if name in made]), saved)
        values = record_values(saved, prepared.feeds, tuple(names), folder)
        jobs = []
        for key, op in ops.items():
            path = folder / f"op_{op}.onnx"
            save(one_op_model(prepared.reference, graph, op), path)
            jobs.append(_job(key, path, [graph.tensors[tensor] for tensor in graph.ops[op].inputs], values))
        fed = [graph.tensors[tensor] for tensor in graph.model_inputs]
        jobs.append(_job(prepared.reference_sha256, prepared.reference_path.resolve(), fed, values))
        call = folder / "call.onnx"
        save(call_model(), call)
        request = OpRequest(settings, RUNS - 1, WARMUPS, seed=conditions.seed)
        measure_ops(jobs, request, call, keeper.keep, progress.advance)


def _job(key: str, path: Path, tensors: Sequence[Tensor], values: dict[str, str]) -> OpJob:
    """A model to be measured, fed what was recorded of these tensors, and values made up where nothing was."""
    inputs = tuple(InputSpec(tensor.name, tensor.dtype, tensor.shape) for tensor in tensors)
    return OpJob(key, str(path), inputs, {each.name: values[each.name] for each in tensors if each.name in values})


def _call_ns(scope: CacheScope, conditions: Conditions, settings: SessionSettings) -> int:
    """What one more session costs on a device, from the cache if it is known."""

    def measure(folder: Path) -> int:
        save(call_model(), folder / "call.onnx")
        return measure_call(folder / "call.onnx", settings)

    return measured_once(CALL, scope, conditions, measure)
