"""What a model costs on the CPU, seen inside it; what was measured before is cached."""

import math
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.files import WORK_FOLDER
from remat_cli.base.progress import Progress
from remat_cli.compiling.facts import RUNS, WARMUPS, ModelFacts, cache_scope, known_facts, known_facts_of
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared, profile_request
from remat_cli.compiling.ways import way_asked
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.noise import TimeNoise, weighed
from remat_cli.core.values.profile import DeviceSpec, OpCost, Profile, Provenance
from remat_cli.onnx_io.read.interface import weight_uses
from remat_cli.onnx_io.read.load import save
from remat_cli.onnx_io.read.one_op import call_model
from remat_cli.runtime.measure.busy import CpuClock, cpu_clock
from remat_cli.runtime.measure.op_profiler import (
    HANDOVER_ELEMENTS,
    HANDOVERS,
    measure_handover,
)
from remat_cli.runtime.measure.profile_cache import PLAUSIBLE_SHARE, CacheScope, ProfileCache
from remat_cli.runtime.measure.profilers import Measured, WholeTime, measure, time_apart, time_whole
from remat_cli.runtime.sessions.session import SessionSettings, device_settings

MOST_VALUE_BYTES = 2**30  # of recorded floats; larger ones are random
FLOATS = ("float", "double", "float16", "bfloat16")
CALL, HANDOVER = "call", "handover"
CALL_NS, OP_CALL_NS = 100_000, 5_000  # of a run and of each op in it, beside the kernels
CHECK_SECONDS = 0.2
MOST_SLOWED = 8
"""How many times as long a run takes at most because other programs are in its way."""


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
    found: Platform = way_asked(conditions).profile(prepared, conditions, progress)
    return found


@dataclass(frozen=True)
class Beside:
    """A model to be run in turn with the one that is measured, and how many times as long that takes by `estimate`.

    `model`: None where nothing can be run in turn. After `most_seconds` runs that are timed end, settled or not.
    """

    model: Path | None = None
    most_seconds: float = math.inf
    estimate: float | None = None


def profile_inside(prepared: Prepared, conditions: Conditions, spec: DeviceSpec, progress: Progress) -> Profile:
    """The cost of every op as seen inside the model; only what the cache does not know is measured.

    Raises:
        RuntimeFailure: the model fails to run.
        MissingDependency: the device cannot be used.
    """
    return profile_beside(prepared, Beside(), conditions, spec, progress)[0]


def profile_beside(
    prepared: Prepared,
    beside: Beside,
    conditions: Conditions,
    spec: DeviceSpec,
    progress: Progress,
) -> tuple[Profile, float | None]:
    """`profile_inside`, and how long a run takes as a multiple of one of the model beside; None: that was not measured.

    Where turns do not agree, the estimate of the multiple counts too, if there is one. What the session packs is then
    known already: gates, if the model has any, bring constants of their own.

    Raises:
        RuntimeFailure: a model fails to run.
        MissingDependency: the device cannot be used.
    """
    progress.stage(stages.PROFILING)
    scope, measured = cache_scope(spec, conditions), prepared.facts.measured
    relative = None if beside.model is None else known_relative(prepared)
    with ProfileCache(conditions.cache_dir) as cache:
        known = cache.op_costs(scope, prepared.signatures)
        is_known = len(known) == len(set(prepared.signatures))
        expected_ns = expected_ns_of(prepared, known) if is_known else 0
        is_trusted = is_known and relative is not None  # how fast the machine is this minute says nothing of a multiple
        if prepared.was_long and measured is not None:
            relative = prepared.facts.relative_time
            _keep(cache, scope, prepared, measured, prepared.facts)
        elif not is_trusted and not (is_known and is_right_now(prepared, expected_ns, conditions, spec)):
            asked = profile_request(conditions, spec, RUNS - is_known, prepared.reference, beside.most_seconds)
            names, advance = [op.name for op in prepared.graph.ops], _telling_how_long(progress)
            measured = measure(prepared.reference_path, prepared.feeds, names, asked, advance, beside.model)
            if measured.relative_time is not None:
                relative, error = measured.relative_time, measured.relative_error
                relative = relative if beside.estimate is None else weighed(relative, error, beside.estimate)
                measured = msgspec.structs.replace(measured, packed_bytes=prepared.facts.packed_bytes)
            facts = msgspec.structs.replace(prepared.facts, measured=measured, relative_time=relative)
            are_wrong = is_known and is_wrong(prepared, expected_ns, measured.whole)
            _keep(cache, scope, prepared, measured, None if conditions.inputs else facts, replace_known=are_wrong)
        known, bodies = cache.op_costs(scope, prepared.signatures), cache.bodies(scope, prepared.signatures)
    return _profile_of(prepared, spec, scope.provenance, measured, (known, bodies)), relative


def _keep(
    cache: ProfileCache,
    scope: CacheScope,
    prepared: Prepared,
    measured: Measured,
    facts: ModelFacts | None,
    *,
    replace_known: bool = False,
) -> None:
    """Keep what runs of the model showed of ops, and of it as a whole where facts are given."""
    least: dict[str, OpCost] = {}
    for signature, cost in zip(prepared.signatures, measured.ops, strict=True):  # of equal ops the least time counts
        if signature not in least or cost.time_ns < least[signature].time_ns:
            least[signature] = cost
    cache.store_ops(scope, least, replace=replace_known)
    ops = zip(prepared.graph.ops, prepared.signatures, strict=True)
    cache.store_bodies(scope, {sign: measured.bodies[op.name] for op, sign in ops if op.name in measured.bodies})
    if facts is not None:
        cache.store_model(scope, prepared.reference_sha256, msgspec.json.encode(facts))


def _profile_of(
    prepared: Prepared,
    spec: DeviceSpec,
    provenance: Provenance,
    measured: Measured | None,
    costs: tuple[Mapping[str, OpCost], Mapping[str, tuple[int, ...]]],
) -> Profile:
    """The costs by signature of ops, and of what their bodies hold, as those of the model's ops by name."""
    known, bodies = costs
    ops = tuple(zip(prepared.graph.ops, prepared.signatures, strict=True))
    packed = measured.packed_bytes if measured else prepared.facts.packed_bytes
    if measured is not None and measured.runs:  # as many runs as there were, if it is known
        provenance = msgspec.structs.replace(provenance, runs=max(1, measured.runs - WARMUPS))
    return Profile(
        device=spec.name,
        model_sha256=prepared.reference_sha256,
        provenance=provenance,
        ops=tuple(msgspec.structs.replace(known[signature], name=op.name) for op, signature in ops),
        weight_bytes=prepared.rules.packing.loaded_weight_bytes(
            prepared.graph, weight_uses(prepared.reference), packed
        ),
        input_bytes=prepared.graph.input_bytes,
        packed_bytes=packed or 0,
        run_ns=measured.run_ns if measured else None,
        loading_peak_bytes=measured.loading_peak_bytes if measured else None,
        memory=spec.memory,
        power_watts=spec.power_watts,
        bodies={op.name: bodies[signature] for op, signature in ops if signature in bodies},
    )


def expected_ns_of(prepared: Prepared, known: Mapping[str, OpCost]) -> int:
    """How long a run takes by the costs that are known of its ops.

    Their sum, or as much more as the run took when this very model was measured.
    """
    sum_ns, measured = sum(known[signature].time_ns for signature in prepared.signatures), prepared.facts.measured
    return sum_ns * measured.run_ns // measured.ops_ns if measured and measured.ops_ns else sum_ns


def is_wrong(prepared: Prepared, expected_ns: int, seen: WholeTime) -> bool:
    """Whether a run takes longer or shorter than expected by more than noise and what lies between ops explain.

    Noise only adds, so a run that takes longer says less.
    """
    share = PLAUSIBLE_SHARE * (1 if expected_ns > seen.time_ns else 2) + seen.noise_percent / 100
    allowed_ns = seen.time_ns * share + CALL_NS + OP_CALL_NS * len(prepared.signatures)
    return abs(expected_ns - seen.time_ns) > allowed_ns


def are_others_in_the_way(before: CpuClock) -> bool:
    """Whether other programs kept the machine busy since some moment."""
    return TimeNoise(None, *cpu_clock().since(before)).is_busy


def is_right_now(prepared: Prepared, expected_ns: int, conditions: Conditions, spec: DeviceSpec) -> bool:
    """Whether a run, or a few, take as long as expected: costs from another model or minute are not just believed.

    Runs that take longer say nothing while other programs are in the way, which slow all ops down.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model.
    """
    path, feeds = prepared.reference_path, prepared.feeds
    settings = profile_request(conditions, spec, RUNS).default_settings
    if prepared.conditions.family is not None:
        return not is_wrong(prepared, expected_ns, time_apart(path, feeds, settings, CHECK_SECONDS))

    def is_enough(seen: WholeTime) -> bool:
        return not is_wrong(prepared, expected_ns, seen)

    before = cpu_clock()
    seen = time_whole(path, feeds, settings, CHECK_SECONDS, is_enough)
    is_slowed = expected_ns < seen.time_ns < MOST_SLOWED * expected_ns and are_others_in_the_way(before)
    return is_slowed or is_enough(seen)


def is_known_beside(prepared: Prepared, conditions: Conditions, spec: DeviceSpec) -> bool:
    """Whether `profile_beside` need not run a model: it is known what its ops cost, and what all do beside another."""
    with ProfileCache(conditions.cache_dir) as cache:
        known = cache.op_costs(cache_scope(spec, conditions), prepared.signatures)
    return len(known) == len(set(prepared.signatures)) and known_relative(prepared) is not None


def known_relative(prepared: Prepared) -> float | None:
    """How long a run takes as a multiple of the model beside, if an earlier compile ran the two in turn."""
    facts = known_facts_of(prepared.reference_sha256, prepared.conditions)
    return None if facts is None else facts.relative_time


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

    def measure_row(folder: Path) -> int:
        one, row = folder / "one.onnx", folder / "row.onnx"
        save(call_model(1, HANDOVER_ELEMENTS), one)
        save(call_model(HANDOVERS, HANDOVER_ELEMENTS), row)
        return measure_handover(one, row, settings)

    return msgspec.structs.replace(profile, call_ns=measured_once(HANDOVER, scope, conditions, measure_row))


def measured_once(key: str, scope: CacheScope, conditions: Conditions, measure: Callable[[Path], int]) -> int:
    """A cost in nanoseconds that is no op's, from the cache if it is known; `measure` may write models to a folder."""
    with ProfileCache(conditions.cache_dir) as cache:
        if key not in cache.op_costs(scope, [key]):
            with tempfile.TemporaryDirectory(prefix=f"{WORK_FOLDER}call_") as folder:
                cache.store_ops(scope, {key: OpCost(key, measure(Path(folder)))})
        return cache.op_costs(scope, [key])[key].time_ns
