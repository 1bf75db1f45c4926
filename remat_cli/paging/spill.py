"""The memory that values may wait in: what it takes to write and read it, measured once for each disk."""

import os
from collections.abc import Sequence
from dataclasses import replace

from remat_cli.base import progress as stages
from remat_cli.base.errors import ConfigError
from remat_cli.base.progress import Progress
from remat_cli.compiling.platform import Platform
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.pages import PAGE_BYTES
from remat_cli.core.values.profile import HOST_MEMORY, LinkCost
from remat_cli.core.values.spill import SpillSpec
from remat_cli.runtime.measure.profile_cache import ProfileCache, cpu_name
from remat_cli.runtime.measure.spill_speed import SYSTEM, measure_spill


def with_spill(platform: Platform, conditions: Conditions, progress: Progress) -> Platform:
    """The platform with the memory that values may wait in.

    Raises:
        ConfigError: its folder cannot be written to.
        RematError: its disk is too full, or failed.
    """
    spec = conditions.spill
    if spec is None:
        return platform
    out, back, *fresh = _links(spec, conditions, progress)
    fresh_page_ns = sum(link.time_ns(PAGE_BYTES) for link in fresh)
    memory = spec.at(out.bytes_per_second, back.bytes_per_second, fresh_page_ns)
    return replace(platform, links=(out, back), spill=memory)


def with_host(platform: Platform, spec: SpillSpec, links: Sequence[LinkCost]) -> Platform:
    """The platform of a device whose values may wait in the host's memory; `links` are the copies there and back.

    A link of the judge has a bandwidth and no latency: it is that of a value of the model's mean size.
    """
    sizes = [tensor.size_bytes for tensor in platform.graph.tensors if tensor.producer is not None]
    mean = max(1, sum(sizes) // max(1, len(sizes)))
    out = next(link for link in links if link.target == HOST_MEMORY)
    back = next(link for link in links if link.source == HOST_MEMORY)
    given = spec.write_bytes_per_second, spec.read_bytes_per_second
    rates = [known or mean * 1e9 / max(1, link.time_ns(mean)) for known, link in zip(given, (out, back), strict=True)]
    return replace(platform, links=(out, back), spill=spec.at(rates[0], rates[1]))


def _links(spec: SpillSpec, conditions: Conditions, progress: Progress) -> tuple[LinkCost, ...]:
    """The way out and the way back, as described, or, from the cache or measured, with that of fresh memory."""
    ways = (HOST_MEMORY, spec.name), (spec.name, HOST_MEMORY), (SYSTEM, HOST_MEMORY)
    if spec.write_bytes_per_second is not None and spec.read_bytes_per_second is not None:
        described = (spec.write_bytes_per_second, spec.read_bytes_per_second)
        return tuple(LinkCost(*way, 0, speed, measured=False) for way, speed in zip(ways, described, strict=False))
    names = f"pages out in blocks {_disk_of(spec)}", f"pages back in blocks {_disk_of(spec)}", "fresh pages alone"
    keys = [f"{name} {cpu_name()}" for name in names]
    with ProfileCache(conditions.cache_dir) as cache:
        known = [cache.link(key, way) for key, way in zip(keys, ways, strict=True)]
        if None not in known:
            return tuple(link for link in known if link is not None)
        progress.stage(stages.PROFILING)
        found = measure_spill(spec.folder, spec.name, progress.advance)
        for key, link in zip(keys, found, strict=True):
            cache.store_link(key, link)
    return found


def _disk_of(spec: SpillSpec) -> str:
    """What tells one disk from another: the number of its file system."""
    try:
        return str(os.stat(spec.folder).st_dev)
    except OSError as error:
        raise ConfigError(f"spill {spec.name}: {error.strerror}") from None
