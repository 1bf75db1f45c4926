"""Settings of devices: names, description files, threads, and the budget of each memory."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.base.processes import total_memory_bytes
from remat_cli.core.values.budget import AskedBudget, parse_budget
from remat_cli.core.values.profile import HOST_MEMORY, DeviceSpec, LinkSpec
from remat_cli.devices.provider_table import PROVIDERS, is_device_file, named_spec
from remat_cli.settings.spill import parse_spill
from remat_cli.settings.train import as_sequence
from remat_cli.settings.yaml_file import read_yaml, suggest

RATES = ("flops_per_second", "memory_bytes_per_second", "power_watts")


def parse_devices(value: object) -> tuple[DeviceSpec, ...]:
    """The devices that names and description files stand for; files are read here, once.

    Raises:
        ConfigError: not a list, a name that no provider stands behind, or a file that cannot be used.
    """
    names = (value,) if isinstance(value, str | DeviceSpec) else as_sequence(value, "devices", "--device cpu")
    found: list[DeviceSpec] = []
    for given in names:
        if isinstance(given, DeviceSpec):
            found.append(given)
        else:
            text = str(given).strip()
            found.append(read_device(Path(text).expanduser()) if is_device_file(text) else named_spec(text))
    return tuple(found) or (named_spec("cpu"),)


def only_device(specs: Sequence[DeviceSpec]) -> DeviceSpec:
    """The device of a command that takes only one.

    Raises:
        ConfigError: several devices were named.
    """
    if len(specs) != 1:
        names = ", ".join(spec.name for spec in specs)
        raise ConfigError(f"devices {names}: only `remat compile` and `remat profile` take several; name one here")
    return specs[0]


def with_threads(specs: Sequence[DeviceSpec], threads: int) -> tuple[tuple[DeviceSpec, ...], int]:
    """The devices with so many threads where they name none themselves, and the number that holds for the run.

    One CPU with threads is the CPU under that number.

    Raises:
        ConfigError: threads are given twice and differently.
    """
    found = []
    for spec in specs:
        if not threads or not PROVIDERS[spec.provider].thread_option or spec.threads == threads:
            found.append(spec)
        elif spec.threads:
            raise ConfigError(
                f"device {spec.name} computes with {spec.threads} threads, but --intra-op-threads says {threads}: "
                "give the number once"
            )
        else:
            found.append(msgspec.structs.replace(spec, threads=threads))
    first = found[0]
    if len(found) > 1 or not first.threads or first.name != f"cpu:{first.threads}threads":
        return tuple(found), threads
    return (msgspec.structs.replace(named_spec("cpu"), threads=first.threads),), first.threads


def described_budget(specs: Sequence[DeviceSpec]) -> AskedBudget | None:
    """Join the budgets that the devices' own descriptions give, if any does."""
    own = _own_budgets(specs)
    text = ",".join(f"{name}={budget.text}" for name, budget in own.items())
    return AskedBudget(text, "per_device", devices=tuple(own.items())) if own else None


def read_device(file: Path) -> DeviceSpec:
    """A device from its YAML file; `name` is the file's unless given, `memory` the provider's.

    Raises:
        ConfigError: the file is missing or not YAML, a key is unknown, or a value cannot be used.
    """
    values = read_yaml(file, "device file")
    _check_keys(values, DeviceSpec, f"device file {file}")
    provider = PROVIDERS.get(str(values.get("provider", "")))
    if provider is None:
        given = f", not '{values['provider']}'" if values.get("provider") else ", and none is given"
        raise ConfigError(f"device file {file}: provider must be one of {', '.join(PROVIDERS)}{given}")
    links = [] if values.get("links") is None else values["links"]
    if not isinstance(links, list) or not all(isinstance(link, dict) for link in links):
        raise ConfigError(f"device file {file}: links must be a list, each with `to` and `bytes_per_second`")
    for link in links:
        _check_keys(link, LinkSpec, f"device file {file}, links")
    values = {"name": file.stem, **values, "links": links}
    options = values.get("options")
    if options is not None and not isinstance(options, dict):
        raise ConfigError(f"device file {file}: options must map names to values")
    texts = ((key, int(value) if isinstance(value, bool) else value) for key, value in (options or {}).items())
    values["options"] = {str(key): str(value) for key, value in texts}  # as the runtime takes them: true is 1
    try:
        if values.get("spill") is not None:
            values["spill"] = msgspec.to_builtins(parse_spill(values["spill"]))
        if values.get("budget") is not None:
            values["budget"] = str(values["budget"]).strip()
        spec = msgspec.convert(values, DeviceSpec, strict=False)
        _described_budget_of(spec)  # which refuses what is none
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"device file {file}: {error}") from None
    _check_values(spec, file)
    return spec if "memory" in values else msgspec.structs.replace(spec, memory=provider.memory_of(spec.index))


def by_memory(budget: AskedBudget, specs: Sequence[DeviceSpec]) -> AskedBudget:
    """The budget with a part for each memory that the devices use, in the order of the devices, or one for all.

    One percentage means the same share of each. A budget may name a device or its memory; what it does not name has
    the budget of the device's description, and the host's memory then all that the machine has.

    Raises:
        ConfigError: a memory without budget or with two, a name that is no device, one size for several memories, or
            `min` for several.
    """
    memories = tuple(dict.fromkeys(spec.memory for spec in specs))
    if budget.kind != "per_device":
        return _for_all(budget, memories)
    found: dict[str, AskedBudget] = {}
    for name, part in budget.devices:
        _put(found, _memory_named(name, specs), part, specs)
    for memory, own in _own_budgets(specs).items():
        found.setdefault(memory, own)
    if HOST_MEMORY in memories:
        found.setdefault(HOST_MEMORY, parse_budget(str(total_memory_bytes())))
    if missing := [memory for memory in memories if memory not in found]:
        raise ConfigError(f"memory '{missing[0]}' has no budget: add --budget {missing[0]}=512MiB")
    if len(memories) > 1:
        for memory in memories:
            _for_all(found[memory], (memory,) if found[memory].kind != "min" else memories)
    return msgspec.structs.replace(budget, devices=tuple((memory, found[memory]) for memory in memories))


def _memory_named(name: str, specs: Sequence[DeviceSpec]) -> str:
    """The memory that a name in a budget speaks of: its own, or that of a device."""
    by_name = {spec.name: spec.memory for spec in specs} | {spec.memory: spec.memory for spec in specs}
    if name in by_name:
        return by_name[name]
    try:
        full = named_spec(name).name
    except ConfigError:
        full = name
    if full not in by_name:
        raise ConfigError(f"budget names '{name}', which is no device here: there are {', '.join(by_name)}")
    return by_name[full]


def _own_budgets(specs: Sequence[DeviceSpec]) -> dict[str, AskedBudget]:
    """Budgets by memory from the devices' own descriptions."""
    own: dict[str, AskedBudget] = {}
    for spec in specs:
        if (budget := _described_budget_of(spec)) is not None:
            _put(own, spec.memory, budget, specs)
    return own


def _described_budget_of(spec: DeviceSpec) -> AskedBudget | None:
    """The budget of a device's memory, where its description has one."""
    return None if spec.budget is None else parse_budget(spec.budget)


def _put(found: dict[str, AskedBudget], memory: str, budget: AskedBudget, specs: Sequence[DeviceSpec]) -> None:
    """Give a memory its budget; two different ones are refused."""
    before = found.setdefault(memory, budget)
    if (before.kind, before.bytes, before.fraction) != (budget.kind, budget.bytes, budget.fraction):
        sharing = " and ".join(spec.name for spec in specs if spec.memory == memory)
        raise ConfigError(f"budgets {before.text} and {budget.text}: {sharing} share memory '{memory}', give it one")


def _for_all(budget: AskedBudget, memories: tuple[str, ...]) -> AskedBudget:
    """Check that one budget can hold for each of several memories."""
    if len(memories) == 1 or budget.kind == "fraction":
        return budget
    names = ", ".join(memories)
    if budget.kind == "min":
        raise ConfigError(f"budget 'min' cannot be found for several memories ({names}): give each bytes or a share")
    each = ",".join(f"{memory}={budget.text}" for memory in memories)
    raise ConfigError(f"budget '{budget.text}' is one size for several memories ({names}): write --budget {each}")


def _check_keys(values: Mapping[str, Any], kind: type[msgspec.Struct], where: str) -> None:
    known = [field.name for field in msgspec.structs.fields(kind)]
    for key in values:
        if key not in known:
            raise ConfigError(f"{where}: unknown key '{key}'{suggest(key, known)}")


def _check_values(spec: DeviceSpec, file: Path) -> None:
    """Check figures and options of a description beyond their types."""
    rates = {key: getattr(spec, key) for key in RATES}
    rates |= {f"links to {link.to}: bytes_per_second": link.bytes_per_second for link in spec.links}
    rates |= {f"links to {link.to}: back_bytes_per_second": link.back_bytes_per_second for link in spec.links}
    for key, rate in rates.items():
        if rate is not None and not rate > 0:
            raise ConfigError(f"device file {file}: {key} = {rate} must be above 0")
    counts = {key: getattr(spec, key) for key in ("index", "threads", "launch_ns")}
    counts |= {
        f"links to {link.to}: latency_ns": min(link.latency_ns, link.back_latency_ns or 0) for link in spec.links
    }
    for key, count in counts.items():
        if count < 0:
            raise ConfigError(f"device file {file}: {key} = {count} must not be negative")
    if spec.threads and not PROVIDERS[spec.provider].thread_option:
        raise ConfigError(f"device file {file}: provider {spec.provider} takes no number of threads")
    if spec.index and not PROVIDERS[spec.provider].has_index:
        raise ConfigError(f"device file {file}: provider {spec.provider} takes no index")
    known = PROVIDERS[spec.provider].known_options
    for key in spec.options if known else ():
        if key not in known:
            raise ConfigError(
                f"device file {file}: options: provider {spec.provider} knows no '{key}'{suggest(key, known)}"
            )
