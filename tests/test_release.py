"""What a release needs besides code: pages, classifiers, an image that is not root's."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from remat_cli.solvers.base import Solver

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> set[str]:
    return {re.match(r"[A-Za-z0-9_.-]+", each)[0].lower().replace("_", "-") for each in requirements}


def test_licences_of_all_direct_dependencies_are_listed():
    page = (ROOT / "docs" / "licences.md").read_text()
    rows = dict(re.findall(r"^\| ([a-z0-9-]+) \| ([^|]+) \|", page, re.M))
    extras = PROJECT["optional-dependencies"]
    needed = names([*PROJECT["dependencies"], *extras["cpu"], *extras["svg"], *extras["html"]])
    assert needed <= rows.keys(), "run `make licences`"
    assert all(licence.strip() for licence in rows.values())


def test_what_is_said_to_contributors_is_so():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for line in re.findall(r"`make ([a-z -]+)`", page):
        assert set(line.split()) <= targets
    for path in re.findall(r"`((?:tests|docs|solvers|splitting|autodiff)/[\w/.]+)`", page):
        assert any((folder / path).exists() for folder in (ROOT, ROOT / "remat_cli")), path
    members = set(re.findall(r"^\| `(\w+)", page, re.M)) - {"make"}
    assert {*Solver.__annotations__, "supports", "solve"} <= members


def test_the_image_runs_as_a_user_and_keeps_its_cache_apart():
    text = (ROOT / "Dockerfile").read_text()
    assert re.findall(r"^USER (\w+)", text, re.M) == ["remat"]
    copied = {path for line in re.findall(r"^COPY (?!--)(.+)", text, re.M) for path in line.split()[:-1]}
    assert all((ROOT / path).exists() for path in copied)
    extras = re.search(r"\[([a-z,]+)\]\"", text)[1].split(",")
    assert set(extras) <= PROJECT["optional-dependencies"].keys()


def test_versions_of_python_are_those_that_are_required():
    listed = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", line)}
    assert min(listed, key=lambda version: int(version.split(".")[1])) == PROJECT["requires-python"].removeprefix(">=")
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_each_change_is_checked_by_the_targets_of_make():
    steps = re.findall(r"run: make ([a-z-]+)", (ROOT / ".github" / "workflows" / "check.yml").read_text())
    check = re.search(r"^check: ([a-z ]+?) +##", (ROOT / "Makefile").read_text(), re.M)[1].split()
    assert set(check) <= set(steps)
