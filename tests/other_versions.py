"""Run tests on another version of ONNX Runtime than the one that constraints pin, in the same environment.

`python -m tests.other_versions newest WORDS` takes what pip gives without constraints, and runs nothing where that is
the pinned version; `python -m tests.other_versions 1.31.1 WORDS` takes that one. Words are pytest's. The version alone
is installed, into a folder of its own that comes before the environment's packages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "versions"
PACKAGE = "onnxruntime"
NEWEST = "newest"


def main(words: Sequence[str]) -> int:
    """Run the tests, or say in a line why not; the exit code of pytest."""
    wanted, *tests = words
    version = newest() if wanted == NEWEST else wanted
    if version is None:
        sys.stderr.write("left out: tests on the newest ONNX Runtime, as pip could not say which that is\n")
        return 0
    if wanted == NEWEST and version == pinned():
        sys.stdout.write(f"the newest ONNX Runtime is the pinned one, {version}: its tests are `make test`\n")
        return 0
    folder = installed(version)
    sys.stdout.write(f"tests on ONNX Runtime {version}, {pinned()} is pinned\n")
    sys.stdout.flush()
    paths = [str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run([sys.executable, "-m", "pytest", *tests], cwd=ROOT, env=environment, check=False).returncode


def pinned() -> str:
    """The version in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith(f"{PACKAGE}=="))


def requirement() -> str:
    """What pyproject.toml asks for of the runtime."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (wanted,) = (each for each in extras["cpu"] if each.startswith(PACKAGE))
    return str(wanted)


def newest() -> str | None:
    """The version that pip gives without constraints; None where it cannot be asked."""
    words = ["install", "--dry-run", "--ignore-installed", "--no-deps", "--report", "-", requirement()]
    done = _pip(*words, check=False)
    if done.returncode != 0:
        return None
    return str(json.loads(done.stdout)["install"][0]["metadata"]["version"])


def installed(version: str) -> Path:
    """The folder with that version, made if it is not there; whole or not at all."""
    folder, unfinished = FOLDER / version, FOLDER / f"{version}.unfinished"
    if not folder.exists():
        shutil.rmtree(unfinished, ignore_errors=True)
        _pip("install", "--no-deps", "--target", str(unfinished), f"{PACKAGE}=={version}", check=True)
        unfinished.rename(folder)
    return folder


def _pip(*words: str, check: bool) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
