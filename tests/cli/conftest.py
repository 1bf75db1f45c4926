"""The command line over a pipeline that only remembers what it was asked."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from remat_cli.cli import main
from remat_cli.commands import compile, inspect, max_batch, profile, solve, train, verify
from remat_cli.report.profile import CacheReport
from tests.report import samples

HOMES: dict[str, Any] = {
    "compile_model": compile,
    "compile_targets": compile,
    "profile_ops": profile,
    "inspect_file": inspect,
    "verify_plan": verify,
    "verify_beside": verify,
    "verify_on": verify,
    "solve_instance": solve,
    "train_model": train,
    "find_max_batch": max_batch,
}


INNER = {"profile_ops": "measure_ops", "inspect_file": "inspect_alone"}
"""Stories that check and write files around their own work."""


@dataclass
class FakePipeline:
    """Gives canned reports, or raises `error`; `calls` are the (function, argument, config) it got."""

    reports: dict[str, Any] = field(
        default_factory=lambda: {
            "compile_model": samples.compile_report(),
            "compile_targets": samples.targets_report(1),
            "profile_ops": samples.profile_report(),
            "inspect_file": samples.inspect_report(),
            "verify_plan": samples.verify_report(),
            "verify_beside": samples.file_report(),
            "verify_on": samples.file_report(),
            "solve_instance": samples.solve_report(),
            "train_model": samples.train_report(),
            "find_max_batch": samples.max_batch_report(),
        }
    )
    error: BaseException | None = None
    during: Any = None
    calls: list[tuple[str, Any, Any]] = field(default_factory=list)

    def install(self, monkeypatch) -> None:
        for name in self.reports:
            monkeypatch.setattr(HOMES[name], INNER.get(name, name), self._function(name))
        monkeypatch.setattr(HOMES["profile_ops"], "clear_profile_cache", self._clear)

    def _function(self, name):
        def call(path, *words):
            config, progress = words[-2:]
            self.calls.append((name, path, config))
            if self.during is not None:
                self.during(progress)
            if self.error is not None:
                raise self.error
            return self.reports[name]

        return call

    def _clear(self, config) -> int:
        self.calls.append(("clear_profile_cache", None, config))
        return CacheReport(str(config.cache_dir), 3)

    @property
    def config(self):
        return self.calls[-1][2]


@pytest.fixture
def pipeline(monkeypatch) -> FakePipeline:
    fake = FakePipeline()
    fake.install(monkeypatch)
    return fake


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """Every test runs in an empty folder with a model, a plan and an instance."""
    monkeypatch.chdir(tmp_path)
    for name in ("net.onnx", "net.plan.json", "graph.json"):
        Path(name).write_bytes(b"{}" if name.endswith(".json") else b"a model")
    Path("net.plan.json").rename("old.plan.json")
    return tmp_path


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def remat(pipeline, capsys, monkeypatch):
    """Run `remat ARGUMENTS` in this process."""
    monkeypatch.delenv("NO_COLOR", raising=False)

    def call(*arguments: str) -> Outcome:
        code: int | None = None
        with contextlib.suppress(SystemExit):
            code = main([str(argument) for argument in arguments])
        assert code is not None, "main must return its exit code"
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call
