"""The tests on other versions of ONNX Runtime say what they do, and do nothing twice."""

from __future__ import annotations

import subprocess

import pytest

from tests import other_versions


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """The commands that were run, none of them really."""
    found = []

    def run(command, **words):
        found.append((command, words))
        return subprocess.CompletedProcess(command, 0, '{"install": [{"metadata": {"version": "9.9.9"}}]}')

    monkeypatch.setattr(other_versions.subprocess, "run", run)
    monkeypatch.setattr(other_versions, "FOLDER", tmp_path)
    return found


def test_the_pinned_version_is_one_that_the_project_takes():
    name, _, least = other_versions.requirement().partition(">=")
    assert name == other_versions.PACKAGE
    assert tuple(map(int, other_versions.pinned().split("."))) >= tuple(map(int, least.split(".")))


def test_pip_says_which_is_the_newest(ran):
    assert other_versions.newest() == "9.9.9"
    assert other_versions.requirement() in ran[0][0]


def test_nothing_is_run_twice(monkeypatch, ran, capsys):
    monkeypatch.setattr(other_versions, "newest", other_versions.pinned)
    assert other_versions.main(["newest", "tests"]) == 0
    assert ran == []
    assert other_versions.pinned() in capsys.readouterr().out


def test_where_pip_cannot_be_asked_a_line_says_so(monkeypatch, ran, capsys):
    monkeypatch.setattr(other_versions, "newest", lambda: None)
    assert other_versions.main(["newest", "tests"]) == 0
    assert ran == []
    assert capsys.readouterr().err.startswith("left out: ")


def test_another_version_comes_before_the_environments_own(ran, tmp_path, capsys):
    folder = tmp_path / "1.2.3"
    folder.mkdir()
    assert other_versions.main(["1.2.3", "tests", "-q"]) == 0
    ((command, words),) = ran
    assert command[-2:] == ["tests", "-q"]
    assert words["env"]["PYTHONPATH"].startswith(str(folder))
