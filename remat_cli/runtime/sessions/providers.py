"""Checks whether an execution provider can be used here, puts sessions on it, and places values in its memory.

Sources of the facts: ONNX Runtime's Python layer retries with the CPU when a provider fails unless `enable_fallback` is
0, and hands single ops to the CPU unless `session.disable_cpu_ep_fallback` is 1.
"""

import contextlib
import ctypes
import functools
import io
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np

from remat_cli.base.errors import MissingDependency, RuntimeFailure
from remat_cli.core.values.profile import HOST_MEMORY, DeviceSpec
from remat_cli.devices.provider_table import PROVIDERS, SESSION_THREADS, Provider, named_spec
from remat_cli.runtime.sessions._ort import (
    EXTENDED_NAMES,
    SILENT,
    Advance,
    Array,
    host_value,
    import_ort,
    run_fresh,
    runtime_dtype,
    runtime_errors,
)
from remat_cli.runtime.sessions._plugins import (
    USUAL_SEVERITY,
    is_builtin,
    plugin_devices,
    require_module,
    require_plugin,
)
from remat_cli.runtime.sessions.error_text import one_line

__all__ = [
    "PROVIDERS",
    "Provider",
    "UsableDevice",
    "absence",
    "check_session",
    "configure",
    "device_of",
    "is_present",
    "must_estimate",
    "parse_device",
    "require",
    "require_device",
    "without_warnings",
]


LONGEST_PROBE_SECONDS = 60.0


class UsableDevice(msgspec.Struct, frozen=True):
    """A device with the record of its provider: what a session needs to be put on it."""

    provider: Provider
    spec: DeviceSpec

    @property
    def name(self) -> str:
        """The name in its full form."""
        return self.spec.name

    @property
    def index(self) -> int:
        """Which of several of a kind, from 0."""
        return self.spec.index

    @property
    def threads(self) -> int:
        """Threads it computes with; 0 is the runtime's own default."""
        return self.spec.threads

    @property
    def memory(self) -> str:
        """The memory in which its tensors are."""
        return self.spec.memory

    @property
    def kind(self) -> str:
        """What OpenVINO calls it: CPU, GPU or NPU; empty for other providers."""
        return self.provider_options.get("device_type", "") if self.provider.kinds else ""

    @property
    def provider_options(self) -> dict[str, str]:
        """Options of the provider: the record's, then those that the name stands for."""
        index = {"device_id": str(self.index)} if self.provider.has_index else {}
        option = self.provider.thread_option
        threads = {option: str(self.threads)} if self.threads and option and option != SESSION_THREADS else {}
        return {**dict(self.provider.options), **index, **threads, **self.spec.options}

    @property
    def session_providers(self) -> list[Any]:
        """What an InferenceSession takes as `providers`, where the provider is built into the runtime."""
        options = self.provider_options
        return [(self.provider.runtime_name, options) if options else self.provider.runtime_name]


def parse_device(text: str) -> UsableDevice:
    """The device of that name; `cuda` alone is `cuda:0`.

    Raises:
        ConfigError: no such provider, or a number where none belongs.
    """
    return device_of(named_spec(text))


def device_of(spec: DeviceSpec) -> UsableDevice:
    """The device that a description speaks of."""
    return UsableDevice(PROVIDERS[spec.provider], spec)


def require(provider: Provider) -> None:
    """Check that sessions can be opened with a provider, as far as this shows without opening one.

    Raises:
        MissingDependency: ONNX Runtime, the provider's package, its driver or a library it links to is missing, or its
            plugin offers no device here.
    """
    ort = import_ort()
    if is_builtin(ort, provider):
        # Check a built-in provider's driver and library.
        driver = dict(provider.drivers).get(platform.system())
        if driver and (problem := _load_problem(driver)):
            raise MissingDependency(
                f"device '{provider.name}' needs {provider.needs}; the driver is missing: {problem}"
            )
        name = dict(provider.libraries).get(platform.system())
        library = Path(str(ort.__file__)).parent / "capi" / name if name else None
        if library and (problem := _library_problem(ort, library)):
            raise MissingDependency(
                f"device '{provider.name}' needs {provider.needs}; {provider.package} {ort.__version__} does not load: "
                f"{problem}"
            )
    elif provider.plugin is not None:
        require_plugin(ort, provider, provider.plugin)
    else:
        more = f"; it also needs {provider.needs}" if provider.needs else ""
        raise MissingDependency(
            f"device '{provider.name}' needs the package {provider.package}, but onnxruntime {ort.__version__} here "
            f"was built without {provider.runtime_name}: {provider.install}{more}"
        )


def require_device(device: UsableDevice) -> None:
    """Check that sessions can be opened on a device, its number or kind included where these can be known.

    Where a device that is offered may end the process that uses it, another process uses it first, once.

    Raises:
        MissingDependency: what `require` raises, or there is no device of that number or kind.
    """
    ort, plugin = import_ort(), device.provider.plugin
    is_plugin = not is_builtin(ort, device.provider)
    if plugin is not None and plugin.is_probed and is_plugin:
        require_module(device.provider, plugin)
        if problem := _probe_problem(device.spec.session_device):
            raise MissingDependency(problem)
    require(device.provider)
    if is_plugin and plugin is not None:
        _plugin_device(ort, device)
    elif device.provider.kinds:
        # Check that OpenVINO, built into the runtime, has a device of that kind (its numbers behind a point left
        # out).
        state: Any = getattr(getattr(ort, "capi", None), "_pybind_state", None)
        if hasattr(state, "get_available_openvino_device_ids"):
            found = [str(name) for name in state.get_available_openvino_device_ids()]
            if device.kind.partition(".")[0] not in {name.partition(".")[0] for name in found}:
                raise MissingDependency(f"device '{device.name}' is not there: OpenVINO finds {', '.join(found)} here")
    elif dict(device.provider.drivers) == dict(PROVIDERS["cuda"].drivers):
        count = _nvidia_count(dict(device.provider.drivers).get(platform.system()))
        if count is not None and device.index >= count:
            raise MissingDependency(
                f"device '{device.name}' is not there: the driver finds {count} GPU{'s' * (count != 1)}, from 0 on"
            )


def must_estimate(spec: DeviceSpec, may_estimate: bool) -> bool:
    """Whether a device's costs have to be estimated because it is not here.

    Raises:
        MissingDependency: they have, and that was not asked for.
    """
    problem = absence(device_of(spec))
    if problem and not may_estimate:
        figures = "" if spec.flops_per_second and spec.memory_bytes_per_second else "--device FILE.yaml "
        raise MissingDependency(f"{problem}; to plan without it, by estimated costs: {figures}--estimate")
    return bool(problem)


def absence(device: UsableDevice) -> str:
    """Why sessions cannot be opened on a device here; empty where they can."""
    if device.spec.is_elsewhere:
        return (
            f"device '{device.name}' is described as another machine's: if it is here take is_elsewhere out of its file"
        )
    try:
        require_device(device)
    except MissingDependency as error:
        return str(error)
    return ""


def is_present(device: UsableDevice) -> bool:
    """Whether sessions can be opened on a device here."""
    return not absence(device)


def configure(
    options: Any, device: UsableDevice, is_alone: bool, on_host: Sequence[str] | None = None
) -> list[Any] | None:
    """Put a session's options on a device, and return what the session takes as `providers` (None: nothing).

    With `is_alone` an op that the provider does not support is an error; else the CPU may run it, and of a provider
    that can share a session it runs the ops named in `on_host`.

    Raises:
        MissingDependency: the plugin offers no such device.
    """
    ort = import_ort()
    provider = device.provider
    if device.threads and provider.thread_option == SESSION_THREADS:
        options.intra_op_num_threads = device.threads
    for key, value in provider.session_config:
        options.add_session_config_entry(key, value)
    if provider.name == "cpu":
        return device.session_providers
    mixing = provider.mixing if on_host is not None else None
    for key, entry in (mixing.entries if mixing else {}).items():
        options.add_session_config_entry(key, entry)
    more = mixing.options(on_host or ()) if mixing else {}
    options.use_deterministic_compute = True
    if is_alone:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if is_builtin(ort, provider):
        own = [(provider.runtime_name, device.provider_options | more)] if more else device.session_providers
        return [*own, *([] if is_alone else ["CPUExecutionProvider"])]
    chosen = {key: value for key, value in device.provider_options.items() if key not in ("device_type", "device_id")}
    options.add_provider_for_devices([_plugin_device(ort, device)], chosen | more)
    return None


@contextlib.contextmanager
def without_warnings(device: UsableDevice) -> Iterator[None]:
    """Let the runtime not warn, of every session on a built-in provider, that this one is no plug-in (seen on CUDA)."""
    ort = import_ort()
    if device.provider.name == "cpu" or not is_builtin(ort, device.provider):
        yield
        return
    ort.set_default_logger_severity(SILENT)
    try:
        yield
    finally:
        ort.set_default_logger_severity(USUAL_SEVERITY)


def check_session(session: Any, device: UsableDevice) -> None:
    """Check that a session really uses the device's provider, since the runtime falls back without an error.

    Raises:
        MissingDependency: it does not.
    """
    provider = device.provider
    if provider.runtime_name not in session.get_providers():
        raise MissingDependency(
            f"device '{device.name}' could not be used: ONNX Runtime fell back to "
            f"{', '.join(session.get_providers())}; {provider.package} needs {provider.needs}"
        )


@functools.cache
def _probe_problem(name: str) -> str:
    """Why a value cannot be put on a plugin's device and fetched from it; empty where it can. Tried once by process."""
    device = parse_device(name)
    try:
        run_fresh(probe_here, name, seconds=LONGEST_PROBE_SECONDS)
    except MissingDependency as error:
        return str(error)
    except RuntimeFailure as error:
        plugin = device.provider.plugin
        otherwise = f"; {plugin.otherwise}" if plugin is not None else ""
        return f"device '{device.name}' needs {device.provider.needs}, which does not work here ({error}){otherwise}"
    return ""


def probe_here(name: str, advance: Advance) -> None:
    """Put a value on the device of that name and fetch it, in a process that may end by that."""
    device = parse_device(name)
    require(device.provider)
    _plugin_device(import_ort(), device)
    given = np.arange(4, dtype=np.float32)
    with runtime_errors("no value can be put there"):
        found = placed_value(given, place_of(device)).numpy()
    if found.tobytes() != given.tobytes():
        raise RuntimeFailure("a value that was put there came back changed")


def _plugin_device(ort: ModuleType, device: UsableDevice) -> Any:
    """The plugin's device of that kind or number."""
    if device.provider.has_index:
        offered = plugin_devices(ort, device.provider)
        if device.index >= len(offered):
            count = f"{len(offered)} device{'s' * (len(offered) != 1)}"
            raise MissingDependency(f"device '{device.name}' is not there: {count} found, from 0 on")
        return offered[device.index]
    found = {str(entry.device.type).rpartition(".")[2]: entry for entry in plugin_devices(ort, device.provider)}
    if device.kind not in found:
        raise MissingDependency(f"device '{device.name}' is not there: OpenVINO finds {', '.join(found)} here")
    return found[device.kind]


def _nvidia_count(driver: str | None) -> int | None:
    """How many GPUs NVIDIA's driver finds; None where it cannot say."""
    if driver is None or _load_problem(driver):
        return None
    library = ctypes.CDLL(driver)
    count = ctypes.c_int(0)
    if library.cuInit(0) != 0 or library.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return None
    return count.value


def _library_problem(ort: ModuleType, library: Path) -> str:
    """Why a provider library does not load, naming the missing file; empty when it does."""
    if not library.exists():
        return f"{library.name} is not in the package"
    if hasattr(ort, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it did not find; stdout is for results
            ort.preload_dlls()
    head, _, _ = library.name.partition("_providers_")
    shared = library.with_name(f"{head}_providers_shared{library.suffix}")
    return _load_problem(str(shared)) or _load_problem(str(library))


def _load_problem(library: str) -> str:
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return one_line(error)
    return ""


def place_of(device: UsableDevice) -> tuple[str, int]:
    """What the runtime calls a device's memory, and its number."""
    kind = device.provider.memory
    return kind, 0 if kind == HOST_MEMORY else device.index


def unowned(value: Any) -> Any:
    """The same buffer as a value that does not own it, which is what sessions take as shared weights.

    It is freed when no value refers to it any more, as before.
    """
    return import_ort().OrtValue.from_dlpack(value)


def placed_value(array: Array, place: tuple[str, int]) -> Any:
    """An array as the runtime's value in a memory; on the host it shares the array's buffer.

    Types that numpy lacks, and text, stay on the host, from where the runtime copies them when it runs.
    """
    dtype = runtime_dtype(array)
    if place[0] == HOST_MEMORY or dtype in EXTENDED_NAMES or dtype == "string":
        return host_value(array)
    return import_ort().OrtValue.ortvalue_from_numpy(array, *place)
