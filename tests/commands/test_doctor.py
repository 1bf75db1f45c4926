"""What `remat doctor` finds, and what it says to do."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

import remat_cli
from remat_cli.base.errors import MissingDependency
from remat_cli.cli import main
from remat_cli.commands import doctor
from remat_cli.report.style import Style


@pytest.fixture
def quiet_machine(monkeypatch):
    """As one that has been used: kernels compiled, nobody else there."""
    monkeypatch.setattr(doctor, "must_compile", lambda _: False)
    monkeypatch.setattr(doctor, "cpu_clock", lambda: SimpleNamespace(since=lambda _: (0.0, 2.0)))
    monkeypatch.setattr(doctor, "spare_memory_bytes", lambda: 2**33)


def runtime(monkeypatch, version: str, *names: str) -> None:
    found = dict.fromkeys(names, version)
    monkeypatch.setattr(doctor, "_version", found.get)
    monkeypatch.setattr(doctor, "import_ort", lambda: SimpleNamespace(__version__=version))


def told(tmp_path) -> tuple[int, str]:
    report = doctor.diagnose(tmp_path)
    return report.exit_code, "\n".join(report.lines(Style()))


def test_it_looks_at_what_is_here(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    assert main(["doctor", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["providers"]["cpu"] == ""
    assert found["versions"]["remat"] == remat_cli.__version__
    assert found["cache_dir"] == str(tmp_path)
    assert 0 < found["spare_bytes"] <= found["memory_bytes"]
    assert remat_cli.doctor().providers.keys() == found["providers"].keys()


@pytest.mark.usefixtures("quiet_machine")
def test_where_all_is_well_it_says_what_to_type(monkeypatch, tmp_path):
    runtime(monkeypatch, "1.32.0", "onnxruntime")
    code, text = told(tmp_path)
    assert code == 0
    assert text.endswith("all is well: remat compile MODEL --budget 80%")


@pytest.mark.usefixtures("quiet_machine")
@pytest.mark.parametrize(
    ("version", "code", "words"),
    [("1.30.0", 1, "too old to make files"), ("1.99.0", 0, "verify each file"), ("1.31.1", 0, "is known")],
)
def test_versions_of_the_runtime(monkeypatch, tmp_path, version, code, words):
    runtime(monkeypatch, version, "onnxruntime")
    found = told(tmp_path)
    assert found[0] == code
    assert words in found[1]


@pytest.mark.usefixtures("quiet_machine")
def test_two_runtimes_overwrite_each_other(monkeypatch, tmp_path):
    runtime(monkeypatch, "1.32.0", "onnxruntime", "onnxruntime-gpu")
    code, text = told(tmp_path)
    assert code == 1
    assert "keep one of onnxruntime and onnxruntime-gpu" in text


@pytest.mark.usefixtures("quiet_machine")
def test_without_a_runtime_it_says_how_to_get_one(monkeypatch, tmp_path):
    def missing():
        raise MissingDependency('pip install "remat_cli[cpu]"')

    monkeypatch.setattr(doctor, "import_ort", missing)
    code, text = told(tmp_path)
    assert code == 1
    assert '- pip install "remat_cli[cpu]"' in text


def test_a_busy_machine_little_memory_and_missing_kernels_are_told(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "must_compile", lambda _: True)
    monkeypatch.setattr(doctor, "cpu_clock", lambda: SimpleNamespace(since=lambda _: (99.0, 0.0)))
    monkeypatch.setattr(doctor, "spare_memory_bytes", lambda: 2**20)
    monkeypatch.setattr(doctor, "may_write", lambda _: False)
    code, text = told(tmp_path)
    assert code == 0
    for words in ("compile again when it is quiet", "half a minute longer", "cannot be run here", "REMAT_CACHE_DIR"):
        assert words in text


@pytest.mark.usefixtures("quiet_machine")
def test_without_what_plans_it_says_what_works_and_how_to_get_the_rest(monkeypatch, tmp_path):
    runtime(monkeypatch, "1.32.0", "onnxruntime")
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    code, text = told(tmp_path)
    assert code == 0
    assert "numba and ortools not installed: plans cannot be made here" in text
    assert 'to plan here: pip install "remat_cli[plan]"; `run`, `verify`' in text
