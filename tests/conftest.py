"""Shared test settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests import presence

# Machines differ in speed, so no property test has a deadline; the same examples are drawn on every run.
settings.register_profile("remat", deadline=None, derandomize=True)
settings.load_profile("remat")

SHARED = Path(__file__).resolve().parents[1] / ".." / "shared"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which device the tests run on that are the same for all of them."""
    parser.addoption("--device", default=presence.device, help="the device that tests/gpu run on, such as cuda:0")


def pytest_configure(config: pytest.Config) -> None:
    """Files of tests/gpu ask for it when they are collected."""
    presence.device = config.getoption("--device")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of published benchmark graphs and vectors beside the checkout; tests that need it skip without it."""
    if not SHARED.is_dir():
        pytest.skip("published instances and vectors are not beside this checkout")
    return SHARED
