"""Whether a device can be used here, for tests that need it."""

from __future__ import annotations

import importlib.util

import pytest

from remat_cli.devices.provider_table import PROVIDERS
from remat_cli.runtime.sessions.providers import absence, parse_device

device = "webgpu:0"
"""The device of tests/gpu: that of `pytest --device`, once tests are collected."""


def why_absent(name: str) -> str:
    """Why a device cannot be used here, in one line; empty where it can."""
    found = parse_device(name)
    plugin = PROVIDERS[found.spec.provider].plugin
    if plugin is not None and importlib.util.find_spec(plugin.module) is None:
        return f"the package {plugin.package} is not installed"
    return absence(found)


def skip_without(name: str) -> None:
    """Skip the tests of a file where the device that they need is missing."""
    if reason := why_absent(name):
        pytest.skip(reason, allow_module_level=True)
