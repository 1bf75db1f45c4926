"""Parse the memory that values may wait in, from a flag or a file."""

from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.base.units import parse_bytes
from remat_cli.core.values.spill import DISK, HOST, SpillSpec


def parse_spill(value: object) -> SpillSpec:
    """The memory that `disk:DIR`, `host` or `host:12GB/s` stands for, or a mapping: folder, budget and bandwidths.

    Raises:
        ConfigError: it is neither, a figure cannot be, or the folder is not there.
    """
    if isinstance(value, SpillSpec):
        return value
    spec = _described(value) if isinstance(value, dict) else _named(str(value))
    if spec.memory == HOST:
        return spec
    path = Path(spec.folder).expanduser()
    if path.exists() and not path.is_dir():
        raise ConfigError(f"spill {spec.name}: {path} is no folder: name one")
    if not path.is_dir():
        raise ConfigError(f"spill {spec.name}: folder {path} does not exist: create it")
    return msgspec.structs.replace(spec, folder=str(path.resolve()))


def _named(text: str) -> SpillSpec:
    """The memory that a flag names, with a bandwidth or without."""
    kind, _, rest = text.partition(":")
    if text == HOST:
        return SpillSpec(memory=HOST)
    if kind == HOST:
        size, slash, second = rest.partition("/")
        if not slash or second.strip() != "s":
            raise ConfigError(f"spill '{text}': '{rest}' is no bandwidth: write one such as host:12GB/s")
        speed = float(parse_bytes(size))
        if speed <= 0:
            raise ConfigError(f"spill '{text}': the bandwidth must be above 0")
        return SpillSpec(memory=HOST, write_bytes_per_second=speed, read_bytes_per_second=speed)
    if kind != DISK or not rest:
        raise ConfigError(
            f"spill '{text}' is no memory to page to: write disk:DIR with a folder of a fast disk, or host behind a GPU"
        )
    return SpillSpec(rest)


def _described(values: dict[Any, Any]) -> SpillSpec:
    """The memory that the mapping of a YAML file describes."""
    try:
        spec = msgspec.convert(values, SpillSpec, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"spill: {error}") from None
    if (spec.memory == HOST) == bool(spec.folder):
        raise ConfigError("spill: give the folder of a disk, or memory: host, and not both")
    for key in ("write_bytes_per_second", "read_bytes_per_second"):
        rate = getattr(spec, key)
        if rate is not None and not 0 < rate < float("inf"):
            raise ConfigError(f"spill: {key} = {rate} must be above 0")
    if (spec.write_bytes_per_second is None) != (spec.read_bytes_per_second is None):
        raise ConfigError("spill: give write_bytes_per_second and read_bytes_per_second, or neither")
    spec.budget_bytes()  # which refuses what is no size
    return spec
