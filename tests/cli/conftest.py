"""The command line over a pipeline that only remembers what it was asked."""

from __future__ import annotations

import contextlib
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import remat_cli
from remat_cli.cli import main
from tests.report import samples


@dataclass
class FakePipeline:
    """Gives canned reports, or raises `error`; `calls` are the (function, argument, config) it got."""

    reports: dict[str, Any] = field(
        default_factory=lambda: {
            "compile_model": samples.compile_report(),
            "profile_model": samples.profile_report(),
            "inspect_file": samples.inspect_report(),
            "verify_plan": samples.verify_report(),
            "solve_instance": samples.solve_report(),
            "train_model": samples.train_report(),
            "find_max_batch": samples.max_batch_report(),
        }
    )
    error: BaseException | None = None
    during: Any = None
    calls: list[tuple[str, Any, Any]] = field(default_factory=list)

    def module(self) -> types.ModuleType:
        fake = types.ModuleType("remat_cli.pipeline")
        for name in self.reports:
            setattr(fake, name, self._function(name))
        fake.clear_profile_cache = self._clear  # type: ignore[attr-defined]
        return fake

    def _function(self, name):
        def call(path, config, progress):
            self.calls.append((name, path, config))
            if self.during is not None:
                self.during(progress)
            if self.error is not None:
                raise self.error
            return self.reports[name]

        return call

    def _clear(self, config) -> int:
        self.calls.append(("clear_profile_cache", None, config))
        return 3

    @property
    def config(self):
        return self.calls[-1][2]


@pytest.fixture
def pipeline(monkeypatch) -> FakePipeline:
    fake = FakePipeline()
    module = fake.module()
    for name in ("pipeline", "pipeline_train", "pipeline_max_batch"):
        monkeypatch.setitem(sys.modules, f"remat_cli.{name}", module)
        monkeypatch.setattr(remat_cli, name, module, raising=False)
    return fake


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """Every test runs in an empty folder with a model, a plan and an instance."""
    monkeypatch.chdir(tmp_path)
    for name in ("net.onnx", "net.plan.json", "graph.json"):
        Path(name).write_bytes(b"{}")
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
