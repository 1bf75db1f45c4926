"""What ops cost on a device whose sessions do not show it: each op by itself; what was measured before is cached."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from remat_cli.base import progress as stages
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
from remat_cli.onnx_io.read.load import save
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
    return Profile(
        device=spec.name,
        model_sha256=prepared.reference_sha256,
        provenance=scope.provenance,
        ops=tuple(_op_cost(costs[key], name, call_ns, needs[name]) for name, key in named if key in costs),
        weight_bytes=prepared.graph.weight_bytes,
        input_bytes=prepared.graph.input_bytes,
        run_ns=whole.time_ns if whole else None,
        unsupported=tuple(Unsupported(name, refused[key].reason) for name, key in named if key not in costs),
        memory=spec.memory,
        power_watts=spec.power_watts,
        call_ns=call_ns,
        is_opaque=is_opaque,
    )


def _op_cost(cost: OpCost, name: str, call_ns: int, workspace_bytes: int) -> OpCost:
    """The op's part of the time of a session with it alone, and what it takes beside its tensors."""
    time_ns = max(1, cost.time_ns - call_ns)
    return msgspec.structs.replace(cost, name=name, time_ns=time_ns, workspace_bytes=workspace_bytes)


@dataclass(frozen=True)
class _Keeper:
    """Puts findings into the cache, one by one."""

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
    ops = dict(sorted(missing.items(), key=lambda item: item[1]))
    with tempfile.TemporaryDirectory(prefix="remat_ops_", dir=prepared.reference_path.parent) as name:
        folder = Path(name)
        values = _values(prepared, list(ops.values()), folder)
        jobs = [_job(prepared, key, op, values, folder) for key, op in ops.items()]
        jobs.append(_whole_job(prepared, values))
        call = folder / "call.onnx"
        save(call_model(), call)
        request = OpRequest(settings, RUNS - 1, WARMUPS, seed=conditions.seed)
        measure_ops(jobs, request, call, keeper.keep, progress.advance)


def _values(prepared: Prepared, ops: Sequence[int], folder: Path) -> dict[str, str]:
    """Files with what ops read in a run: all that is not floats, and of floats the smallest, up to a limit."""
    graph = prepared.graph
    read = {tensor for op in ops for tensor in graph.ops[op].inputs} | set(graph.model_inputs)
    tensors = sorted((graph.tensors[tensor] for tensor in read), key=lambda t: (t.dtype in FLOATS, t.size_bytes))
    names, total_bytes = [], 0
    for tensor in tensors:
        total_bytes += tensor.size_bytes
        if tensor.producer is None or tensor.dtype not in FLOATS or total_bytes <= MOST_VALUE_BYTES:
            names.append(tensor.name)
    path = folder / "observed.onnx"
    made = {tensor.name for tensor in tensors if tensor.producer is not None}
    save(model_with_outputs(prepared.reference, graph, [name for name in names if name in made]), path)
    return record_values(path, prepared.feeds, tuple(names), folder)


def _job(prepared: Prepared, key: str, op: int, values: dict[str, str], folder: Path) -> OpJob:
    tensors = [prepared.graph.tensors[tensor] for tensor in prepared.graph.ops[op].inputs]
    path = folder / f"op_{op}.onnx"
    save(one_op_model(prepared.reference, prepared.graph, op), path)
    return OpJob(key, str(path), tuple(_input(tensor) for tensor in tensors), _chosen(values, tensors))


def _whole_job(prepared: Prepared, values: dict[str, str]) -> OpJob:
    tensors = [prepared.graph.tensors[tensor] for tensor in prepared.graph.model_inputs]
    inputs = tuple(_input(tensor) for tensor in tensors)
    path = str(prepared.reference_path.resolve())
    return OpJob(prepared.reference_sha256, path, inputs, _chosen(values, tensors))


def _input(tensor: Tensor) -> InputSpec:
    return InputSpec(tensor.name, tensor.dtype, tensor.shape)


def _chosen(values: dict[str, str], tensors: Sequence[Tensor]) -> dict[str, str]:
    return {tensor.name: values[tensor.name] for tensor in tensors if tensor.name in values}


def _call_ns(scope: CacheScope, conditions: Conditions, settings: SessionSettings) -> int:
    """What one more session costs on a device, from the cache if it is known."""

    def measure(folder: Path) -> int:
        save(call_model(), folder / "call.onnx")
        return measure_call(folder / "call.onnx", settings)

    return measured_once(CALL, scope, conditions, measure)
