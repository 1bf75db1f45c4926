"""Shared test settings."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test, settings

from tests import durations, presence
from tests.compiled_samples import SampleStore
from tests.quick_processes import QuickProcesses

# Machines differ in speed, so no property test has a deadline; the same examples are drawn on every run.
settings.register_profile("remat", deadline=None, derandomize=True)
settings.load_profile("remat")

FAST = "not slow"
"""What is asked for by who wants the fast tests alone."""
SHARED = Path(__file__).resolve().parents[1] / ".." / "shared"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which device the tests run on that are the same for all of them, and whether their durations are kept."""
    parser.addoption("--device", default=presence.device, help="the device that tests/gpu run on, such as cuda:0")
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.json: `make durations`")


def pytest_configure(config: pytest.Config) -> None:
    """Files of tests/gpu ask for the device when they are collected; fast tests have processes that start quickly."""
    presence.device = config.getoption("--device")
    if config.getoption("markexpr") == FAST:
        config.pluginmanager.register(QuickProcesses())
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())


class Recorder:
    """Sums what tests take, in all workers, and keeps it."""

    def __init__(self) -> None:
        self.seconds: list[tuple[str, float]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds.append((report.nodeid.partition("::")[0], report.duration))

    def pytest_sessionfinish(self) -> None:
        durations.record(self.seconds)


FAST_SHARE, LEAST_EXAMPLES = 3, 4


def draw_fewer_examples(items: list[pytest.Item]) -> None:
    """A third of the examples that each property names: enough to see it broken, all of them are slow tests' work."""
    for test in {item.function for item in items if isinstance(item, pytest.Function)}:
        if is_hypothesis_test(test):
            named = test._hypothesis_internal_use_settings
            few = max(LEAST_EXAMPLES, named.max_examples // FAST_SHARE)
            test._hypothesis_internal_use_settings = settings(named, max_examples=min(few, named.max_examples))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files first in each worker's part, so that nothing waits for one at the end; fewer examples in fast runs."""
    if config.getoption("markexpr") == FAST:
        draw_fewer_examples(items)
    workers = getattr(config, "workerinput", {"workercount": 1})["workercount"]
    files = [(item.nodeid.partition("::")[0], item) for item in items]
    items[:] = durations.spread(files, durations.recorded(), workers)


@pytest.fixture(scope="session", autouse=True)
def shorter_ladder(request: pytest.FixtureRequest) -> None:
    """`inspect` looks for a second at what less memory would cost, in fast runs, and no longer."""
    if request.config.getoption("markexpr") == FAST:
        from remat_cli.compiling.search import ladder

        ladder.LADDER_SECONDS = 1.0


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of published benchmark graphs and vectors beside the checkout; tests that need it skip without it."""
    if not SHARED.is_dir():
        pytest.skip("published instances and vectors are not beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run share."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "together"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def cache(together: Path) -> Iterator[None]:
    """One profile cache for all files that ask for it by a mark: nothing is measured twice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REMAT_CACHE_DIR", str(together / "cache"))
        yield


@pytest.fixture(scope="session")
def samples(together: Path) -> SampleStore:
    """Samples compiled once for all tests, with the same profile cache."""
    return SampleStore(together / "samples", together / "cache")


@pytest.fixture(scope="session", autouse=True)
def faults_are_failures() -> Iterator[None]:
    """What a user's search leaves out by a fault of ours, and goes on, is an error here."""
    search = importlib.import_module("remat_cli.compiling.search.loop")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(search, "may_go_on", lambda failure: False)
        yield


@pytest.fixture(scope="session", autouse=True)
def default_price() -> Iterator[Fraction]:
    """Tests look at bits and memory: a busy machine must not make their small models too dear. The default itself."""
    plan = importlib.import_module("remat_cli.compiling.plan")  # not before processes start quickly
    with pytest.MonkeyPatch.context() as patched:
        default: Fraction = plan.MOST_OVERHEAD_SHARE
        patched.setattr(plan, "MOST_OVERHEAD_SHARE", Fraction(1000))
        yield default
