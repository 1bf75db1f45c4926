"""What the profile cache holds about whole models, and under which conditions it was seen."""

from typing import Any

import msgspec

from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.values.conditions import CPU, Conditions
from remat_cli.core.values.profile import DeviceSpec
from remat_cli.core.values.resident import ProcessMemory
from remat_cli.runtime.measure.profile_cache import CacheScope, ProfileCache, provenance
from remat_cli.runtime.measure.profilers import Measured
from remat_cli.runtime.measure.turns import RunFigures

RUNS, WARMUPS = 4, 1


class ModelFacts(msgspec.Struct, frozen=True):
    """What runs of the optimised model showed; with `measured` it is kept in the profile cache.

    `packed_bytes` is None where the runtime does not count them. `smallest_cap_bytes` is the least arena under which a
    default session runs it, once a verification has found it. Of a split model: `has_same_bits` is false where its
    outputs are only close to those of the whole one, and `relative_time` is how long a run takes, as a multiple of the
    whole model's. Of a whole model: `can_be_raised` says whether it has the same bits under the newer opset that
    filling tiles in place needs (None: not tried), `alike` are keys of user's files whose outputs it was seen to have,
    to the last bit, at these sizes, `given` is a digest of these outputs by such a key, and `processes` what processes
    hold that load and run such a file, by how they do. `alone` are figures of sessions on the model that verification
    compares with, by which sessions these are.
    """

    types: dict[str, tuple[TensorType, ...]]
    packed_bytes: int | None
    measured: Measured | None = None
    smallest_cap_bytes: int | None = None
    has_same_bits: bool = True
    relative_time: float | None = None
    can_be_raised: bool | None = None
    alike: tuple[str, ...] = ()
    given: dict[str, str] = {}
    processes: dict[str, ProcessMemory] = {}
    alone: dict[str, tuple[RunFigures, ...]] = {}


def cache_scope(spec: DeviceSpec, conditions: Conditions) -> CacheScope:
    """What, besides the model, costs depend on that are measured inside it."""
    threads = conditions.threads_of(spec)
    device = CPU if spec.provider == CPU else spec.session_device
    return CacheScope(device, provenance(device, threads, conditions.optimization, RUNS, WARMUPS))


def known_facts_of(digest: str, conditions: Conditions) -> ModelFacts | None:
    """What the cache knows of the optimised model.

    The user's own inputs always get a run: shapes may depend on them.
    """
    if conditions.inputs is not None:
        return None
    with ProfileCache(conditions.cache_dir) as cache:
        return known_facts(cache, facts_scope(conditions), digest)


def facts_scope(conditions: Conditions) -> CacheScope:
    """Where the model was profiled as a whole, if it was: the first device with the CPU provider, else the first."""
    on_cpu = (spec for spec in conditions.devices if spec.provider == CPU)
    return cache_scope(next(on_cpu, conditions.device), conditions)


def known_facts(cache: ProfileCache, scope: CacheScope, digest: str) -> ModelFacts | None:
    """What the cache holds about a model; None also for what another version of remat wrote in another form."""
    stored = cache.model(scope, digest)
    try:
        return None if stored is None else msgspec.json.decode(stored, type=ModelFacts)
    except msgspec.MsgspecError:
        return None


def remember_facts(digest: str, conditions: Conditions, **found: Any) -> None:
    """Add to what the cache holds about a model; nothing where it holds nothing yet."""
    scope = facts_scope(conditions)
    with ProfileCache(conditions.cache_dir) as cache:
        known = known_facts(cache, scope, digest)
        if known is not None:
            fresh = msgspec.structs.replace(known, **found)
            cache.store_model(scope, digest, msgspec.json.encode(fresh))
