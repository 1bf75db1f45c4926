"""Profile a model on several devices, and the links between their memories; what was measured before is cached."""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.progress import Progress, part
from remat_cli.compiling.copy_costs import link_costs, scope_apart
from remat_cli.compiling.cut import own_bytes, workspaces
from remat_cli.compiling.facts import RUNS, WARMUPS, ModelFacts, cache_scope, known_facts
from remat_cli.compiling.learn import believe
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared, profile_request
from remat_cli.compiling.spill import with_host, with_spill
from remat_cli.core.schedule.graph import Tensor
from remat_cli.core.schedule.program import InputSpec
from remat_cli.core.values.conditions import CPU, Conditions
from remat_cli.core.values.profile import DeviceSpec, OpCost, Profile, Provenance, Unsupported
from remat_cli.core.values.spill import HOST, SpillSpec
from remat_cli.devices.provider_table import PROVIDERS, is_plain
from remat_cli.devices.roofline import estimate, estimated_links
from remat_cli.onnx_io.read.interface import weight_uses
from remat_cli.onnx_io.read.load import save
from remat_cli.onnx_io.read.one_op import call_model, model_with_outputs, one_op_model
from remat_cli.runtime.measure.findings import OpFinding
from remat_cli.runtime.measure.op_profiler import (
    HANDOVER_ELEMENTS,
    HANDOVERS,
    OpJob,
    OpRequest,
    measure_call,
    measure_handover,
    measure_ops,
)
from remat_cli.runtime.measure.profile_cache import CacheScope, ProfileCache
from remat_cli.runtime.measure.profilers import Measured, ProfileRequest, WholeTime, measure
from remat_cli.runtime.sessions.feeds import record_values
from remat_cli.runtime.sessions.providers import device_of, must_estimate, require_device
from remat_cli.runtime.sessions.session import SessionSettings, device_settings

MOST_VALUE_BYTES = 2**30  # of recorded floats; larger ones are random
FLOATS = ("float", "double", "float16", "bfloat16")
CALL, HANDOVER = "call", "handover"


def profile_model(prepared: Prepared, conditions: Conditions, progress: Progress) -> Platform:
    """The cost of every op on each device, and of copies between each two memories.

    On the CPU provider ops are measured inside the model, since segments run as whole sessions there. On any other
    provider each op is measured in a session of its own, on the values that its inputs take in a run, and compared
    with the CPU; its workspace is what the provider's record says. `run_ns` is the whole model in one session. Devices
    that are not here are estimated from their descriptions if the settings admit that, by the first that is here.

    Raises:
        RuntimeFailure: the model fails to run on the CPU, or nothing runs on a device.
        MissingDependency: a device cannot be used.
        ConfigError: the description of a device that is not here lacks figures.
    """
    specs = conditions.devices
    if conditions.spill is not None and conditions.spill.memory == HOST:
        return _profile_before_host(prepared, conditions, conditions.spill, progress)
    if conditions.spill is not None:
        own = Platform(prepared.graph, specs, (profile_on_cpu(prepared, conditions, specs[0], progress),))
        return with_spill(own, conditions, progress)
    if not is_cut_into_sessions(specs):
        return Platform(prepared.graph, specs, (profile_inside(prepared, conditions, specs[0], progress),))
    absent = {spec.name for spec in specs if must_estimate(spec, conditions.estimate)}
    here = [spec for spec in specs if spec.name not in absent]
    for spec in here:
        require_device(device_of(spec))
    found: dict[str, Profile] = {}
    for number, spec in enumerate(here):
        share = part(progress, number, len(here), len(prepared.graph.ops))
        measure = profile_on_cpu if spec.provider == CPU else _profile_apart
        found[spec.name] = measure(prepared, conditions, spec, share)
    measured = (found[here[0].name], here[0]) if here else (None, None)
    for spec in specs:
        if spec.name in absent:
            guess = estimate(prepared.graph, spec, *measured)
            found[spec.name] = msgspec.structs.replace(guess, model_sha256=prepared.reference_sha256)
    links = link_costs(here, conditions)
    known = {(link.source, link.target) for link in links}
    described = tuple(link for link in estimated_links(specs) if (link.source, link.target) not in known)
    profiles = tuple(found[spec.name] for spec in specs)
    return Platform(prepared.graph, specs, profiles, (*links, *described), own_bytes(prepared.graph, specs))


def _profile_before_host(prepared: Prepared, conditions: Conditions, spill: SpillSpec, progress: Progress) -> Platform:
    """The cost of every op on a device with a memory of its own, and of copies to the host and back."""
    (spec,) = conditions.devices
    require_device(device_of(spec))
    profile = _profile_apart(prepared, conditions, spec, progress)
    own = Platform(prepared.graph, (spec,), (profile,), session_bytes=own_bytes(prepared.graph, (spec,)))
    return with_host(own, spill, link_costs((spec, DeviceSpec(CPU, CPU)), conditions))


def is_cut_into_sessions(specs: Sequence[DeviceSpec]) -> bool:
    """Whether plans for these devices say where ops run, or cannot be written as one model: remat then runs them."""
    return len(specs) > 1 or any(not is_plain(spec) or PROVIDERS[spec.provider].needs_sessions for spec in specs)


def profile_inside(prepared: Prepared, conditions: Conditions, spec: DeviceSpec, progress: Progress) -> Profile:
    """The cost of every op as seen inside the model; only what the cache does not know is measured.

    Raises:
        RuntimeFailure: the model fails to run.
        MissingDependency: the device cannot be used.
    """
    return profile_beside(prepared, None, conditions, spec, progress)[0]


def profile_beside(
    prepared: Prepared, beside: Path | None, conditions: Conditions, spec: DeviceSpec, progress: Progress
) -> tuple[Profile, float | None]:
    """`profile_inside`, and how long a run takes as a multiple of one of the model beside; None: that was not measured.

    What the session packs is then known already: gates, if the model has any, bring constants of their own.

    Raises:
        RuntimeFailure: a model fails to run.
        MissingDependency: the device cannot be used.
    """
    progress.stage(stages.PROFILING)
    scope, measured = cache_scope(spec, conditions), prepared.facts.measured
    relative = believe.known_relative(prepared, beside)
    with ProfileCache(conditions.cache_dir) as cache:
        known = cache.op_costs(scope, prepared.signatures)
        is_known = len(known) == len(set(prepared.signatures))
        expected_ns = believe.expected_ns_of(prepared, known) if is_known else 0
        is_trusted = is_known and relative is not None  # how fast the machine is this minute says nothing of a multiple
        settings = profile_request(conditions, spec, RUNS).default_settings
        if prepared.was_long and measured is not None:
            relative = prepared.facts.relative_time
            cache.store_ops(scope, _least_costs(prepared, measured))
            cache.store_model(scope, prepared.reference_sha256, msgspec.json.encode(prepared.facts))
            known = cache.op_costs(scope, prepared.signatures)
        elif not is_trusted and not (is_known and believe.is_right_now(prepared, expected_ns, settings)):
            request = profile_request(conditions, spec, RUNS - is_known)
            measured = _measure_inside(prepared, beside, request, progress)
            if measured.beside_ns is not None:
                relative = measured.run_ns / measured.beside_ns
                measured = msgspec.structs.replace(measured, packed_bytes=prepared.facts.packed_bytes)
            whole = WholeTime(measured.run_ns, measured.run_noise_percent)
            replace_known = is_known and believe.is_wrong(prepared, expected_ns, whole)
            cache.store_ops(scope, _least_costs(prepared, measured), replace=replace_known)
            if conditions.inputs is None:
                facts = msgspec.structs.replace(prepared.facts, measured=measured, relative_time=relative)
                cache.store_model(scope, prepared.reference_sha256, msgspec.json.encode(facts))
            known = cache.op_costs(scope, prepared.signatures)
    ops = zip(prepared.graph.ops, prepared.signatures, strict=True)
    packed = measured.packed_bytes if measured else prepared.facts.packed_bytes
    uses = weight_uses(prepared.reference)
    profile = Profile(
        device=spec.name,
        model_sha256=prepared.reference_sha256,
        provenance=_provenance(scope, measured),
        ops=tuple(msgspec.structs.replace(known[signature], name=op.name) for op, signature in ops),
        weight_bytes=prepared.rules.packing.loaded_weight_bytes(prepared.graph, uses, packed),
        input_bytes=prepared.graph.input_bytes,
        packed_bytes=packed or 0,
        run_ns=measured.run_ns if measured else None,
        loading_peak_bytes=measured.loading_peak_bytes if measured else None,
        memory=spec.memory,
        power_watts=spec.power_watts,
    )
    return profile, relative


def _provenance(scope: CacheScope, measured: Measured | None) -> Provenance:
    """Where costs come from; with as many runs as there were, if it is known."""
    if measured is None or not measured.runs:
        return scope.provenance
    return msgspec.structs.replace(scope.provenance, runs=max(1, measured.runs - WARMUPS))


def _measure_inside(prepared: Prepared, beside: Path | None, request: ProfileRequest, progress: Progress) -> Measured:
    names = [op.name for op in prepared.graph.ops]
    return measure(prepared.reference_path, prepared.feeds, names, request, _telling_how_long(progress), beside)


def _telling_how_long(progress: Progress) -> Callable[[int, int], None]:
    """Progress that says once how long the rest may take, by the first run, where somebody has to wait for it."""
    begin = time.monotonic()

    def advance(done: int, total: int) -> None:
        nonlocal begin
        if done == 0:
            begin = time.monotonic()
        elif done == 1:
            progress.foretell(f"at most {total} runs of the model", (total - 1) * (time.monotonic() - begin))
        progress.advance(done, total)

    return advance


def _least_costs(prepared: Prepared, measured: Measured) -> dict[str, OpCost]:
    """Costs by signature; of equal ops the least time counts."""
    least: dict[str, OpCost] = {}
    for signature, cost in zip(prepared.signatures, measured.ops, strict=True):
        if signature not in least or cost.time_ns < least[signature].time_ns:
            least[signature] = cost
    return least


def profile_on_cpu(prepared: Prepared, conditions: Conditions, spec: DeviceSpec, progress: Progress) -> Profile:
    """Costs on the CPU provider with a device's threads, and what it costs to go on in another session there."""
    scope = cache_scope(spec, conditions)
    with ProfileCache(conditions.cache_dir) as cache:
        known = known_facts(cache, scope, prepared.reference_sha256) if conditions.inputs is None else None
    own = known or ModelFacts(prepared.facts.types, prepared.facts.packed_bytes)
    profile = profile_inside(replace(prepared, facts=own), conditions, spec, progress)
    settings = device_settings(
        spec, SessionSettings(intra_op_threads=conditions.threads_of(spec), custom_ops=conditions.custom_ops)
    )
    return msgspec.structs.replace(profile, call_ns=_handover_ns(scope, conditions, settings))


def _profile_apart(prepared: Prepared, conditions: Conditions, spec: DeviceSpec, progress: Progress) -> Profile:
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

    return _measured_once(CALL, scope, conditions, measure)


def _handover_ns(scope: CacheScope, conditions: Conditions, settings: SessionSettings) -> int:
    """What it costs to go on in another session, where ops were measured inside the model, from the cache if known."""

    def measure(folder: Path) -> int:
        one, row = folder / "one.onnx", folder / "row.onnx"
        save(call_model(1, HANDOVER_ELEMENTS), one)
        save(call_model(HANDOVERS, HANDOVER_ELEMENTS), row)
        return measure_handover(one, row, settings)

    return _measured_once(HANDOVER, scope, conditions, measure)


def _measured_once(key: str, scope: CacheScope, conditions: Conditions, measure: Callable[[Path], int]) -> int:
    """A cost in nanoseconds that is no op's, from the cache if it is known; `measure` may write models to a folder."""
    with ProfileCache(conditions.cache_dir) as cache:
        if key not in cache.op_costs(scope, [key]):
            with tempfile.TemporaryDirectory(prefix="remat_call_") as folder:
                cache.store_ops(scope, {key: OpCost(key, measure(Path(folder)))})
        return cache.op_costs(scope, [key])[key].time_ns
