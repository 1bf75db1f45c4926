"""Shared test settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# Machines differ in speed, so no property test has a deadline; the same examples are drawn on every run.
settings.register_profile("remat", deadline=None, derandomize=True)
settings.load_profile("remat")

SHARED = Path(__file__).resolve().parents[1] / ".." / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of published benchmark graphs and vectors beside the checkout; tests that need it skip without it."""
    if not SHARED.is_dir():
        pytest.skip("published instances and vectors are not beside this checkout")
    return SHARED
