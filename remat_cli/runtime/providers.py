"""Execution providers as records, and whether one can really be used here. Nothing falls back to the CPU."""

from __future__ import annotations

import contextlib
import ctypes
import io
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import msgspec

from remat_cli.core.errors import ConfigError, MissingDependency
from remat_cli.runtime._ort import import_ort, one_line


class Provider(msgspec.Struct, frozen=True):
    """One execution provider of ONNX Runtime.

    `package` is the distribution that contains it, `extra` ours that installs it. `has_index` says whether device
    names carry a number (`cuda:1`). `libraries` are file names of its provider library per operating system,
    `drivers` those of the driver that must be installed first.
    """

    name: str
    runtime_name: str
    package: str
    extra: str
    needs: str = ""
    has_index: bool = False
    libraries: tuple[tuple[str, str], ...] = ()
    drivers: tuple[tuple[str, str], ...] = ()


class Device(msgspec.Struct, frozen=True):
    """A device as the user names it: `cpu`, `cuda:0`."""

    provider: Provider
    index: int = 0

    @property
    def name(self) -> str:
        """The name in its full form."""
        return f"{self.provider.name}:{self.index}" if self.provider.has_index else self.provider.name

    @property
    def session_providers(self) -> list[Any]:
        """What an InferenceSession takes as `providers`."""
        if not self.provider.has_index:
            return [self.provider.runtime_name]
        return [(self.provider.runtime_name, {"device_id": str(self.index)}), "CPUExecutionProvider"]


PROVIDERS: Mapping[str, Provider] = MappingProxyType(
    {
        "cpu": Provider("cpu", "CPUExecutionProvider", "onnxruntime", "cpu"),
        "cuda": Provider(
            "cuda",
            "CUDAExecutionProvider",
            "onnxruntime-gpu",
            "gpu",
            needs="an NVIDIA GPU with its driver, CUDA and cuDNN",
            has_index=True,
            libraries=(
                ("Linux", "libonnxruntime_providers_cuda.so"),
                ("Windows", "onnxruntime_providers_cuda.dll"),
            ),
            drivers=(("Linux", "libcuda.so.1"), ("Windows", "nvcuda.dll")),
        ),
    }
)


def parse_device(text: str) -> Device:
    """The device of that name; `cuda` alone is `cuda:0`.

    Raises:
        ConfigError: no such provider, or a number where none belongs.
    """
    match = re.fullmatch(r"([a-z_]+)(?::(\d+))?", text.strip().lower())
    provider = PROVIDERS.get(match[1]) if match else None
    if match is None or provider is None:
        raise ConfigError(f"no device named '{text}'; there are: cpu, cuda:0")
    if match[2] is not None and not provider.has_index:
        raise ConfigError(f"device '{text}': {provider.name} takes no number; write {provider.name}")
    return Device(provider, int(match[2] or 0))


def require(provider: Provider) -> None:
    """Check that sessions can be opened with a provider, as far as this shows without opening one.

    Raises:
        MissingDependency: ONNX Runtime, the provider's package, its driver or a library it links to is missing.
    """
    ort = import_ort()
    if provider.runtime_name not in ort.get_available_providers():
        raise MissingDependency(
            f"device '{provider.name}' needs the package {provider.package}, but onnxruntime {ort.__version__} "
            f"here was built without {provider.runtime_name}: pip uninstall onnxruntime, then "
            f'pip install "remat_cli[{provider.extra}]"; it also needs {provider.needs}'
        )
    driver = dict(provider.drivers).get(platform.system())
    if driver and (problem := _load_problem(driver)):
        raise MissingDependency(f"device '{provider.name}' needs {provider.needs}; the driver is missing: {problem}")
    library = _library_path(ort, provider)
    if library and (problem := _library_problem(ort, library)):
        raise MissingDependency(
            f"device '{provider.name}' needs {provider.needs}; {provider.package} {ort.__version__} does not load: "
            f"{problem}"
        )


def check_session(session: Any, device: Device) -> None:
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


def _library_path(ort: ModuleType, provider: Provider) -> Path | None:
    name = dict(provider.libraries).get(platform.system())
    return Path(str(ort.__file__)).parent / "capi" / name if name else None


def _library_problem(ort: ModuleType, library: Path) -> str:
    """Why a provider library does not load, naming the missing file; empty when it does."""
    if not library.exists():
        return f"{library.name} is not in the package"
    if hasattr(ort, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it did not find; stdout is for results
            ort.preload_dlls()
    shared = library.with_name(library.name.replace("cuda", "shared"))
    return _load_problem(str(shared)) or _load_problem(str(library))


def _load_problem(library: str) -> str:
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return one_line(error)
    return ""
