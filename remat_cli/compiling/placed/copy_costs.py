"""What copies cost between memories of devices that are here, measured once, and the key of what is measured apart."""

from collections.abc import Sequence

from remat_cli.compiling.facts import RUNS, WARMUPS
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.profile import DeviceSpec, LinkCost
from remat_cli.runtime.measure.links import measure_link
from remat_cli.runtime.measure.profile_cache import CacheScope, ProfileCache, provenance
from remat_cli.runtime.sessions.session import SessionSettings, device_settings


def scope_apart(spec: DeviceSpec, conditions: Conditions) -> CacheScope:
    """What costs of ops by themselves depend on."""
    source = provenance(spec.session_device, spec.threads, conditions.optimization, RUNS, WARMUPS)
    options = " ".join(f"{key}={value}" for key, value in spec.session_options)
    return CacheScope(f"{spec.session_device} {options} by itself", source)


def link_costs(specs: Sequence[DeviceSpec], conditions: Conditions) -> tuple[LinkCost, ...]:
    """What copies cost between each two memories of devices that are here.

    Raises:
        RuntimeFailure: the runtime cannot copy there.
        MissingDependency: a device cannot be used.
    """
    first = {spec.memory: spec for spec in reversed(specs)}
    pairs = [(a, b) for a in first.values() for b in first.values() if a.memory != b.memory]
    if not pairs:
        return ()
    costs = []
    with ProfileCache(conditions.cache_dir) as cache:
        for source, target in pairs:
            names = (source.memory, target.memory)
            scopes = [scope_apart(spec, conditions) for spec in (source, target)]
            key = " -> ".join((names[0], scopes[0].key, names[1], scopes[1].key))
            cost = cache.link(key, names)
            if cost is None:
                settings = (device_settings(source, SessionSettings()), device_settings(target, SessionSettings()))
                cost = measure_link(names, settings)
                cache.store_link(key, cost)
            costs.append(cost)
    return tuple(costs)
