"""Providers that packages of their own add to stock onnxruntime, as libraries which are registered once."""

import importlib
from types import ModuleType
from typing import Any

from remat_cli.base.errors import MissingDependency
from remat_cli.devices.provider_table import Plugin, Provider
from remat_cli.runtime.sessions._ort import SILENT
from remat_cli.runtime.sessions.error_text import one_line

USUAL_SEVERITY = 2  # of the runtime's logger: it cannot be asked what it is


def is_builtin(ort: ModuleType, provider: Provider) -> bool:
    """Whether a provider is part of the runtime, which lists a registered plugin too, but with its library."""
    if provider.runtime_name not in ort.get_available_providers():
        return False
    return provider.plugin is None or not _is_registered(ort, provider)


def _is_registered(ort: ModuleType, provider: Provider) -> bool:
    """Whether a plugin's library offers devices; what is part of the runtime has no library of its own."""
    return any("library_path" in dict(device.ep_metadata) for device in plugin_devices(ort, provider))


def require_plugin(ort: ModuleType, provider: Provider, plugin: Plugin) -> None:
    """Register a plugin's library, if that has not been done, and check that it offers a device here."""
    library = str(require_module(provider, plugin).get_library_path())
    # WebGPU's crashes in the next session if it is registered once more, though that is refused (measured on 0.4.0).
    if not _is_registered(ort, provider):
        ort.set_default_logger_severity(SILENT)  # WebGPU's warns of a driver in software, which the user asked for
        try:
            ort.register_execution_provider_library(provider.runtime_name, library)
        except Exception as error:  # the runtime's error classes share no base
            if "already registered" not in str(error):
                raise MissingDependency(
                    f"device '{provider.name}': {plugin.package} does not load into onnxruntime {ort.__version__}: "
                    f"{one_line(error)}"
                ) from None
        finally:
            ort.set_default_logger_severity(USUAL_SEVERITY)
    if not plugin_devices(ort, provider):
        raise MissingDependency(
            f"device '{provider.name}': {plugin.package} is installed but offers no device on this machine: it takes "
            f"{plugin.takes}; {plugin.otherwise}"
        )


def require_module(provider: Provider, plugin: Plugin) -> ModuleType:
    """The Python module of a plugin's package."""
    try:
        return importlib.import_module(plugin.module)
    except ImportError:
        other = f" or, in place of onnxruntime, {provider.package}" if provider.package != plugin.package else ""
        raise MissingDependency(
            f"device '{provider.name}' needs the package {plugin.package} (it takes {plugin.takes}){other}: "
            f"{provider.install}"
        ) from None


def plugin_devices(ort: ModuleType, provider: Provider) -> list[Any]:
    """What a plugin offers."""
    return [device for device in ort.get_ep_devices() if device.ep_name == provider.runtime_name]
