"""From a model file to what planning needs: load, optimise, look at one run, measure."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.errors import ConfigError
from remat_cli.base.progress import Progress
from remat_cli.core.device import DeviceSpec
from remat_cli.core.graph import Graph, TensorType
from remat_cli.core.profile import OpCost, Profile
from remat_cli.core.verification import Verification
from remat_cli.onnx_io.load import DimBindings, SourceModel, inputs_of, load, prepare_optimized, save
from remat_cli.onnx_io.phases import carry_phases
from remat_cli.onnx_io.step_state import state_file
from remat_cli.onnx_io.to_graph import op_signatures, to_graph
from remat_cli.onnx_io.weights import weight_uses
from remat_cli.runtime.feeds import load_feeds, load_state, make_feeds
from remat_cli.runtime.optimize import optimize
from remat_cli.runtime.profile_cache import CacheScope, ProfileCache
from remat_cli.runtime.profilers import Measured, ProfileRequest, measure
from remat_cli.runtime.provenance import provenance
from remat_cli.runtime.session import Observation, SessionSettings, first_sight, run_profiled
from remat_cli.runtime.weights import kept_weight_bytes
from remat_cli.settings.config import Config
from remat_cli.settings.devices import device_specs

RUNS, WARMUPS = 10, 2
CPU = "cpu"
MOST_PASSES = 6


class Sight(msgspec.Struct, frozen=True):
    """What runs of the optimised model showed; with `measured` it is kept in the profile cache.

    `packed_bytes` is None where the runtime does not count them. `smallest_cap_bytes` is the least arena under which a
    default session runs it, once a verification has found it. Of a split model: `has_same_bits` is false where its
    outputs are only close to those of the whole one, and `relative_time` is how long a run takes, as a multiple of the
    whole model's. Of a whole model: `can_be_raised` says whether it has the same bits under the newer opset that
    filling tiles in place needs (None: not tried).
    """

    types: dict[str, tuple[TensorType, ...]]
    packed_bytes: int | None
    measured: Measured | None = None
    smallest_cap_bytes: int | None = None
    has_same_bits: bool = True
    relative_time: float | None = None
    can_be_raised: bool | None = None


@dataclass(frozen=True)
class Prepared:
    """A model ready to be planned. `reference` is the optimised model that a Graph and all plans index.

    `more_feeds` are other inputs, on which outputs are compared too.
    """

    source: SourceModel
    reference: Any
    reference_path: Path
    reference_sha256: str
    graph: Graph
    signatures: tuple[str, ...]
    feeds: Mapping[str, Any]
    more_feeds: tuple[Mapping[str, Any], ...]
    sight: Sight


@contextlib.contextmanager
def work_folder(config: Config) -> Iterator[Path]:
    """A folder for intermediate files: the user's, which stays, or a temporary one."""
    if config.work_dir is not None:
        config.work_dir.mkdir(parents=True, exist_ok=True)
        yield config.work_dir
        return
    with tempfile.TemporaryDirectory(prefix="remat_") as folder:
        yield Path(folder)


def optimization_level(config: Config) -> Literal["all", "extended", "basic"]:
    """How far ONNX Runtime optimises before planning: to ops of the CPU's own only where nothing else runs them.

    Raises:
        ConfigError: a device's file cannot be used.
    """
    if any(spec.provider != CPU for spec in _specs(config)):
        return "basic"
    return "extended" if config.portable else "all"


def _specs(config: Config) -> tuple[DeviceSpec, ...]:
    """The devices as they name themselves, without the threads that the settings add."""
    return device_specs(msgspec.structs.replace(config, intra_op_threads=0))


def only_device(config: Config) -> str:
    """The one device a plan is for.

    Raises:
        ConfigError: several devices were named.
    """
    if len(config.devices) != 1:
        raise ConfigError(
            f"devices {', '.join(config.devices)}: only `remat compile` and `remat profile` take several; name one here"
        )
    return config.device


def prepare(path: Path, config: Config, work: Path, progress: Progress) -> Prepared:
    """Load a model, let ONNX Runtime optimise it, and see which tensors exist in one run.

    Raises:
        ModelError: the model or the inputs file cannot be used.
        RuntimeFailure: ONNX Runtime refuses the model.
    """
    progress.stage(stages.READING)
    source = load(path, DimBindings(config.dims, config.input_shapes))
    feeds, more_feeds = _feeds(source, config)
    progress.stage(stages.OPTIMISING)
    reference_path = optimise(source.ir, config, work)
    reference = carry_phases(source.ir, prepare_optimized(reference_path))
    digest = sha256(reference_path)
    sight = known_sight_of(digest, config) or Sight(*first_sight(reference_path, feeds, _settings(config)))
    graph = to_graph(reference, sight.types)
    return Prepared(
        source=source,
        reference=reference,
        reference_path=reference_path,
        reference_sha256=digest,
        graph=graph,
        signatures=op_signatures(reference, graph),
        feeds=feeds,
        more_feeds=more_feeds,
        sight=sight,
    )


def _feeds(source: SourceModel, config: Config) -> tuple[dict[str, Any], tuple[dict[str, Any], ...]]:
    """What to run with: the user's inputs, or seeded ones, twice; a training step begins with its own state."""
    inputs = inputs_of(source.ir)
    state = load_state(state_file(source), inputs)
    if config.inputs:
        rest = [spec for spec in inputs if spec.name not in state]
        return {**state, **load_feeds(config.inputs, rest)}, ()
    first, second = ({**make_feeds(inputs, seed), **state} for seed in (config.seed, config.seed + 1))
    return first, (second,)


def profile_prepared(prepared: Prepared, config: Config, device: str, progress: Progress) -> Profile:
    """The cost of every op on a device; only what the cache does not know is measured.

    Raises:
        RuntimeFailure: the model fails to run.
        MissingDependency: the device cannot be used.
    """
    progress.stage(stages.PROFILING)
    scope, measured = cache_scope(device, config), prepared.sight.measured
    with ProfileCache(config.cache_dir) as cache:
        known = cache.op_costs(scope, prepared.signatures)
        if len(known) < len(set(prepared.signatures)):
            measured = _measure(prepared, config, device, progress)
            _remember_ops(prepared, measured, cache, scope)
            if config.inputs is None:
                _remember_model(prepared, measured, cache, scope)
            known = cache.op_costs(scope, prepared.signatures)
    ops = zip(prepared.graph.ops, prepared.signatures, strict=True)
    packed = measured.packed_bytes if measured else prepared.sight.packed_bytes
    uses = weight_uses(prepared.reference)
    return Profile(
        device=device,
        model_sha256=prepared.reference_sha256,
        provenance=scope.provenance,
        ops=tuple(msgspec.structs.replace(known[signature], name=op.name) for op, signature in ops),
        weight_bytes=prepared.graph.weight_bytes if packed is None else kept_weight_bytes(uses, packed),
        input_bytes=prepared.graph.input_bytes,
        packed_bytes=packed or 0,
        run_ns=measured.run_ns if measured else None,
        loading_peak_bytes=measured.loading_peak_bytes if measured else None,
    )


def remember_cap(prepared: Prepared, verification: Verification, config: Config, device: str) -> None:
    """Keep the original's smallest cap, which takes long to find and depends on nothing that a plan changes."""
    found, sight = verification.original_smallest_cap_bytes, prepared.sight
    if found is None or verification.cap_options != "default" or sight.smallest_cap_bytes is not None:
        return
    scope = cache_scope(device, config)
    with ProfileCache(config.cache_dir) as cache:
        known = known_sight(cache, scope, prepared.reference_sha256)
        if known is not None:
            fresh = msgspec.structs.replace(known, smallest_cap_bytes=found)
            cache.store_model(scope, prepared.reference_sha256, msgspec.json.encode(fresh))


def sha256(path: Path) -> str:
    """Hash of a file's contents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_scope(device: str, config: Config) -> CacheScope:
    """What, besides the model, measured costs depend on."""
    source = provenance(device, config.intra_op_threads, optimization_level(config), RUNS, WARMUPS)
    return CacheScope(device, source)


def optimise(model: Any, config: Config, work: Path) -> Path:
    """The reference model on disk, in canonical form: optimised until the runtime finds nothing more to change.

    One pass may leave something for the next, and a default session would do that to the rewritten model, plan or not.
    """
    current, raw, reference = work / "normalised.onnx", work / "optimised.onnx", work / "reference.onnx"
    save(model, current)
    known = sha256(current)
    for _ in range(MOST_PASSES):
        optimize(current, raw, optimization_level(config), config.intra_op_threads)
        save(prepare_optimized(raw, model), reference)
        current, before, known = reference, known, sha256(reference)
        if known == before:
            break
    return reference


def known_sight_of(digest: str, config: Config) -> Sight | None:
    """What the cache knows of the optimised model.

    The user's own inputs always get a run: shapes may depend on them.
    """
    with ProfileCache(config.cache_dir) as cache:
        known = known_sight(cache, _sight_scope(config), digest)
    return known if config.inputs is None else None


def _sight_scope(config: Config) -> CacheScope:
    """Where the model was profiled as a whole, if it was: the first device with the CPU provider, else the first."""
    specs = _specs(config)
    spec = next((spec for spec in specs if spec.provider == CPU), specs[0])
    threads = spec.threads or config.intra_op_threads
    return cache_scope(
        spec.session_device if spec.provider != CPU else CPU, msgspec.structs.replace(config, intra_op_threads=threads)
    )


def observe(model: Path, feeds: Mapping[str, Any], config: Config) -> Observation:
    """What one run of a model shows, under exact options."""
    return run_profiled(model, feeds, _settings(config))


def _settings(config: Config) -> SessionSettings:
    return SessionSettings(exact=True, intra_op_threads=config.intra_op_threads)


def sight_of(seen: Observation) -> Sight:
    """What of a run is kept."""
    return Sight(seen.types, seen.baseline_bytes)


def known_sight(cache: ProfileCache, scope: CacheScope, digest: str) -> Sight | None:
    """What the cache holds about a model; None also for what another version of remat wrote in another form."""
    stored = cache.model(scope, digest)
    try:
        return None if stored is None else msgspec.json.decode(stored, type=Sight)
    except msgspec.MsgspecError:
        return None


def _measure(prepared: Prepared, config: Config, device: str, progress: Progress) -> Measured:
    request = ProfileRequest(
        device=device,
        runs=RUNS,
        warmups=WARMUPS,
        intra_op_threads=config.intra_op_threads,
        optimization=optimization_level(config),
    )
    names = [op.name for op in prepared.graph.ops]
    return measure(prepared.reference_path, prepared.feeds, names, request, progress.advance)


def _remember_ops(prepared: Prepared, measured: Measured, cache: ProfileCache, scope: CacheScope) -> None:
    """Keep costs by signature; of equal ops the least time counts."""
    least: dict[str, OpCost] = {}
    for signature, cost in zip(prepared.signatures, measured.ops, strict=True):
        if signature not in least or cost.time_ns < least[signature].time_ns:
            least[signature] = cost
    cache.store_ops(scope, least)


def _remember_model(prepared: Prepared, measured: Measured, cache: ProfileCache, scope: CacheScope) -> None:
    """Keep the model's own figures by its hash."""
    sight = msgspec.structs.replace(prepared.sight, measured=measured)
    cache.store_model(scope, prepared.reference_sha256, msgspec.json.encode(sight))
