"""Wings can be deleted and added: nothing but their rows speaks of them, and all else works without or beside them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "remat_cli"
SAMPLE = PACKAGE.parent / "sample_models" / "chain.onnx"
ROWS = {
    "pipelines": {"__init__.py", "cli/__init__.py", "cli/run.py", "commands/run.py"},
    "contest": {"__init__.py", "cli/__init__.py", "commands/report.py"},
    "sessions": {"compiling/kinds.py"},
    "paging": {"compiling/kinds.py"},
}
"""Where the tables lie that name a wing; the first is the front door, whose functions for it go with it."""
LOST = {"pipelines": {"partition"}, "contest": {"compare", "bench", "sweep"}, "sessions": set(), "paging": set()}
SCRIPT = """
import importlib, pkgutil, sys
import remat_cli
from remat_cli.cli import COMMANDS, main

for module in pkgutil.walk_packages(remat_cli.__path__, "remat_cli."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assert main(["--help"]) == 0
print("commands:", *COMMANDS)
assert main(["run", "--help"]) == 0
options = ("--solver", "keep-all", "--race", "0%", "--verify", "fast")
assert main(["compile", sys.argv[1], "--budget", "80%", "-o", "out.onnx", *options]) == 0
"""


def test_every_wing_of_the_picture_is_here():
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \| a wing: ", page, re.MULTILINE)) == set(ROWS) == set(LOST)


def files_of(package: Path) -> list[Path]:
    return [path for path in package.rglob("*.py") if "__pycache__" not in path.parts]


@pytest.mark.parametrize("wing", ROWS)
def test_only_rows_name_a_wing(wing):
    others = [path for path in files_of(PACKAGE) if path.relative_to(PACKAGE).parts[0] != wing]
    naming = {path.relative_to(PACKAGE).as_posix() for path in others if f"remat_cli.{wing}" in path.read_text()}
    assert naming == ROWS[wing]


def run_in(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run lines with the copy of the package in a folder."""
    there = {**os.environ, "PYTHONPATH": str(folder), "REMAT_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-c", script, str(SAMPLE)]
    return subprocess.run(command, cwd=folder, env=there, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "gone", [tuple(ROWS), *(pytest.param((wing,), marks=pytest.mark.slow) for wing in ROWS)], ids="-".join
)
def test_all_else_works_without(gone, tmp_path):
    """Without all of them at once, and in slow tests without each."""
    copy = tmp_path / "remat_cli"
    shutil.copytree(PACKAGE, copy)  # with times of files, so that what was compiled of them still counts
    for wing in gone:
        shutil.rmtree(copy / wing)
        for name in ROWS[wing]:
            if (copy / name).exists():  # a row may lie in a wing that is gone
                lines = (copy / name).read_text().splitlines(keepends=True)
                (copy / name).write_text("".join(line for line in lines if f"remat_cli.{wing}" not in line))
    done = run_in(tmp_path, SCRIPT)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.plan.json").is_file()
    commands = set(next(line for line in done.stdout.splitlines() if line.startswith("commands:")).split()[1:])
    assert not commands & set().union(*(LOST[wing] for wing in gone))
    assert {"compile", "verify", "run", "solve"} <= commands
    assert ("--micro-batches N" in done.stdout) == ("pipelines" not in gone)


NEW_WING = {
    "asked.py": """
        \"\"\"What asks for mirrored plans.\"\"\"

        from collections.abc import Sequence

        from remat_cli.core.values.profile import DeviceSpec


        def is_asked(specs: Sequence[DeviceSpec], *, is_spilled: bool) -> bool:
            return not is_spilled and [spec.note for spec in specs] == ["mirrored"]
    """,
    "way.py": """
        \"\"\"The way of plans that are one model, and its mirror.\"\"\"

        from dataclasses import dataclass, fields, replace
        from pathlib import Path
        from typing import ClassVar

        import msgspec

        from remat_cli.base.progress import Progress
        from remat_cli.compiling.ask import CompileRequest
        from remat_cli.compiling.learn.settle import AnySettled, Settling
        from remat_cli.compiling.one_model.way import OneModelWay
        from remat_cli.compiling.planned import OneModel, PlannedModel, Refused
        from remat_cli.compiling.platform import Platform
        from remat_cli.compiling.prepare import Prepared
        from remat_cli.core.files.plan_file import OwnPart, PlanFile
        from remat_cli.core.values.profile import Kind
        from remat_cli.report.inspection import InspectReport


        @dataclass(frozen=True, kw_only=True)
        class Mirrored(OneModel):
            kind: ClassVar[Kind] = "mirrored"


        def as_own(found: PlannedModel) -> Mirrored | Refused:
            if not isinstance(found, OneModel):
                assert isinstance(found, Refused)
                return found
            return Mirrored(**{field.name: getattr(found, field.name) for field in fields(found)})


        class MirroredWay(OneModelWay):
            def plan(
                self, prepared: Prepared, platform: Platform, request: CompileRequest, work: Path, progress: Progress
            ) -> OneModel | Refused:
                return as_own(super().plan(prepared, platform, request, work, progress))

            def settle(self, planned: OneModel, how: Settling) -> AnySettled:
                settled = super().settle(planned, how)
                return replace(settled, planned=as_own(settled.planned))

            def record(self, planned: OneModel, request: CompileRequest) -> PlanFile:
                own = OwnPart(kind="mirrored", values={"mirrors": 1})
                return msgspec.structs.replace(super().record(planned, request), own=own)

            def told(self, planned: PlannedModel) -> tuple[str, ...]:
                return ("it has a mirror",)

            def inspect(self, path: Path, read: PlanFile, warnings: tuple[str, ...]) -> InspectReport:
                mirrors = read.own.values["mirrors"] if read.own else 0
                return super().inspect(path, read, (*warnings, f"its plan tells of {mirrors} mirror"))
    """,
}
"""A kind of plan that nobody needs, with its own type, its own part of a plan file and its own words."""
NEW_ROW = 'WayRow("remat_cli.mirrored.way:MirroredWay", "remat_cli.mirrored.asked:is_asked")'
TRIED = """
import sys
from pathlib import Path
import remat_cli as remat

sample, plan = sys.argv[1], "out.plan.json"
words = {"budget": "80%", "output": "out.onnx", "solver": "keep-all", "race": "0%", "verify": "fast", "force": True}
Path("hall.yaml").write_text("name: cpu\\nprovider: cpu\\nnote: mirrored\\n")
report = remat.compile(sample, device="hall.yaml", **words)
assert report.exit_code == 0
read = remat.read_plan(plan)
assert (read.kind, read.parts, read.own.values) == ("mirrored", "one_model", {"mirrors": 1}), read.own
assert "it has a mirror" in report.warnings
assert remat.verify(plan, verify="fast").exit_code == 0
assert "its plan tells of 1 mirror" in remat.inspect(plan).warnings
assert remat.run(plan, repeat=1).exit_code == 0
"""


def test_a_new_kind_of_plan_is_a_wing_and_a_row(tmp_path):
    copy = tmp_path / "remat_cli"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in {"__init__.py": '"""A wing."""\n', **NEW_WING}.items():
        (copy / "mirrored").mkdir(exist_ok=True)
        (copy / "mirrored" / name).write_text(textwrap.dedent(text).lstrip())
    table = (copy / "compiling" / "kinds.py").read_text()
    row = '        "one_model": WayRow('
    (copy / "compiling" / "kinds.py").write_text(table.replace(row, f'        "mirrored": {NEW_ROW},\n{row}'))
    done = run_in(tmp_path, TRIED)
    assert done.returncode == 0, done.stderr
    # Without the wing its plans are refused in a line.
    shutil.rmtree(copy / "mirrored")
    (copy / "compiling" / "kinds.py").write_text(table)
    done = run_in(tmp_path, "import remat_cli; remat_cli.inspect('out.plan.json')")
    assert "plans of kind 'mirrored' are not known here" in done.stderr.splitlines()[-1]
