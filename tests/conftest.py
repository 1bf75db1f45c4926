"""Shared test settings."""

from __future__ import annotations

from collections.abc import Iterator
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, those of the README before all, so that nothing waits for one at the end."""
    ranks = {"test_readme.py": 0} | dict.fromkeys(("tests", "end_to_end"), 1)
    items.sort(key=lambda item: ranks.get(item.path.name, ranks.get(item.path.parent.name, 2)))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of published benchmark graphs and vectors beside the checkout; tests that need it skip without it."""
    if not SHARED.is_dir():
        pytest.skip("published instances and vectors are not beside this checkout")
    return SHARED


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One profile cache for all runs of a file, which asks for it by a mark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REMAT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
