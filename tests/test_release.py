"""What a release needs besides code: pages, classifiers, an image that is not root's, archives of the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import remat_cli
from remat_cli.commands.examples import shared_files
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


def test_workflows_call_targets_of_make():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        (job,) = yaml.safe_load(path.read_text())["jobs"].values()
        asked = [step["run"].split() for step in job["steps"] if "run" in step]
        assert asked
        assert all(words[0] == "make" for words in asked), path
        named = {word for words in asked for word in words[1:] if not word.startswith(("$", "{", "}", "matrix"))}
        named |= set(job.get("strategy", {}).get("matrix", {}).get("target", ()))
        assert named <= targets, path


def test_one_version_and_a_changelog_of_it_that_people_can_read():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert PROJECT["version"] == remat_cli.__version__
    newest = text.split("\n## ")[1]
    assert newest.startswith(PROJECT["version"])
    assert len(newest.splitlines()) <= 32


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> list[dict[str, Path]]:
    """Wheel and sdist, built twice from copies whose files are of other times and permissions."""
    made = []
    for place in range(2):
        source, target = (tmp_path_factory.mktemp(f"{name}{place}") for name in ("source", "built"))
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in filter(None, listed.decode().split("\0")):
            if (ROOT / name).is_file():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, source / name)
                os.utime(source / name, (10**9 + place, 10**9 + place))
        words = ["-m", "build", "--no-isolation", "--outdir", str(target), str(source)]
        environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        made.append({path.suffix: path for path in target.iterdir()})
    return made


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="no checkout of git")
def test_archives_have_the_same_bytes_each_time_and_all_that_pages_use(archives):
    first, second = archives
    assert first.keys() == second.keys() == {".whl", ".gz"}
    for suffix in first:
        hashes = {hashlib.sha256(each[suffix].read_bytes()).hexdigest() for each in archives}
        assert len(hashes) == 1, suffix
    with zipfile.ZipFile(first[".whl"]) as wheel:
        names = set(wheel.namelist())
    wanted = {f"remat_cli/share/{path.relative_to(ROOT).as_posix()}" for path in shared_files(ROOT)}
    assert wanted <= names
    assert "remat_cli/py.typed" in names


@pytest.mark.slow
@pytest.mark.skipif(find_spec("cyclonedx_py") is None, reason="cyclonedx-bom is not installed: `make sbom` does that")
def test_the_list_of_parts_has_every_dependency_with_its_licence(tmp_path):
    target = tmp_path / "parts.json"
    words = ["-m", "cyclonedx_py", "environment", "--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible"]
    done = subprocess.run(
        [sys.executable, *words, "--output-file", str(target)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(target.read_text())
    assert found["bomFormat"] == "CycloneDX"
    parts = {each["name"].lower().replace("_", "-"): each for each in found["components"]}
    needed = names(PROJECT["dependencies"])
    assert needed <= parts.keys()
    assert all(parts[name].get("licenses") for name in needed)
