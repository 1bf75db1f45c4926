"""The house rules that a program can check: who imports whom, and what start-up may load."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from remat_cli.base.files import WORK_FOLDER
from remat_cli.solvers import SOLVERS

PACKAGE = Path(__file__).resolve().parents[1] / "remat_cli"
PICTURE = PACKAGE.parent / "docs" / "architecture.md"


def rooms_of(text: str) -> dict[str, set[str]]:
    """The picture of `docs/architecture.md`: each room, and the rooms right below it."""
    rows = re.findall(r"^\| `(\w+)` \| [^|]* \|([^|]*)\|$", text.partition("<!-- rooms")[2].partition("## ")[0], re.M)
    return {room: set(re.findall(r"`(\w+)`", stands_on)) for room, stands_on in rows}


BELOW = rooms_of(PICTURE.read_text(encoding="utf-8"))
"""What a room may import is what stands right below it, and all that stands below that."""
ONLY_IN = {
    "onnx": {"onnx_io", "splitting", "autodiff", "pipelines/write"},
    "onnx_ir": {"onnx_io", "splitting", "autodiff", "pipelines/write"},
    "onnxruntime": {"runtime"},
    "ortools": {"solvers", "pipelines/solve"},
    "numba": {"solvers", "pipelines/solve"},
    "ray": {"pipelines/run", "contest"},
    "click": {"cli", "pipelines/cli", "contest/cli"},
    "rich": {"cli", "report"},
    "olive": {"olive"},
}
"""Rooms, and rooms inside a wing: a wing brings its own command, solvers and files, so that it can be deleted whole."""
SOLVER_FILES = {target.partition(":")[0] for target in SOLVERS.values()}


@dataclass(frozen=True)
class FileFacts:
    """What one reading of a file tells: dotted names it imports anywhere, its classes, constants set at its top."""

    imports: frozenset[str]
    classes: tuple[str, ...]
    constants: tuple[str, ...]


@functools.cache
def facts_of(path: Path) -> FileFacts:
    tree = ast.parse(path.read_text())
    imports: set[str] = set()
    classes = []
    for item in ast.walk(tree):
        if isinstance(item, ast.Import):
            imports.update(alias.name for alias in item.names)
        elif isinstance(item, ast.ImportFrom) and item.module:
            imports.add(item.module)
            imports.update(f"{item.module}.{alias.name}" for alias in item.names)
        elif isinstance(item, ast.ClassDef) and not item.name.startswith("_"):
            classes.append(item.name)
    constants = tuple(name for item in tree.body for name in constants_set_by(item))
    return FileFacts(frozenset(imports), tuple(classes), constants)


def room_of(path: Path) -> str:
    """`remat_cli/core/graph.py` -> core."""
    return path.relative_to(PACKAGE).parts[0]


@functools.cache
def below(room: str) -> set[str]:
    """All rooms that a room stands on."""
    return BELOW[room].union(*(below(other) for other in BELOW[room]))


ROOT_FILES = {"__init__.py", "__main__.py", "py.typed", "plan.schema.json", "pipeline.schema.json"}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE)
MOST_LINES = 600  # of a file, if it is one thought


def test_imports_point_down_only():
    assert not [line for path in FILES for name in facts_of(path).imports if (line := misplaced(path, name))]


def misplaced(path: Path, name: str) -> str | None:
    """What is wrong with a file's import of a name."""
    room, parts = room_of(path), name.split(".")
    if room not in BELOW:
        return f"{path} is in no room of the house"
    if parts[0] == "remat_cli" and len(parts) > 1 and parts[1] != "__version__":
        if parts[1] not in BELOW:
            return f"{path} imports {name}, which is in no room of the house"
        if parts[1] != room and parts[1] not in below(room):
            return f"{room} must not import {parts[1]} ({path.name}: {name})"
    inner = "/".join(path.relative_to(PACKAGE).parts[:2])
    if not {room, inner} & ONLY_IN.get(parts[0], {room}):
        return f"{parts[0]} may be imported in {ONLY_IN[parts[0]]} only, not {path}"
    return None


def test_nothing_but_the_front_door_lies_at_the_root():
    files = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert files <= ROOT_FILES


def test_the_picture_names_every_room_and_no_other():
    assert set(BELOW) == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def test_every_line_of_the_picture_is_an_import():
    used = {room: set() for room in BELOW}
    for path in FILES:
        for name in facts_of(path).imports:
            parts = name.split(".")
            if parts[0] == "remat_cli" and len(parts) > 1 and parts[1] in BELOW:
                used[room_of(path)].add(parts[1])
    unused = [f"{room} -> {other}" for room in BELOW for other in BELOW[room] if other not in used[room]]
    assert not unused, f"the picture draws what no file imports: {unused}"


def test_files_import_each_other_in_no_circle():
    imported = {module_of(path): facts_of(path).imports - {module_of(path)} for path in FILES}
    rest = {name: names & imported.keys() for name, names in imported.items()}
    while free := {name for name, names in rest.items() if not names & rest.keys()}:
        rest = {name: names for name, names in rest.items() if name not in free}
    assert not rest, f"these files import each other: {sorted(rest)}"


def module_of(path: Path) -> str:
    """`remat_cli/core/graph.py` -> remat_cli.core.schedule.graph; a folder's face has the folder's name."""
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    return name.removesuffix(".__init__")


def test_solver_files_never_import_each_other():
    for path in sorted((PACKAGE / "solvers").rglob("*.py")):
        own = {module_of(path)}
        imported = {
            module for module in SOLVER_FILES for name in facts_of(path).imports if name.startswith(f"{module}.")
        }
        assert not imported & (SOLVER_FILES - own), path


def test_every_registered_solver_has_a_file():
    assert {module_of(path) for path in (PACKAGE / "solvers").rglob("*.py")} >= SOLVER_FILES
    assert len(SOLVER_FILES) == len(SOLVERS)


def test_no_file_sets_a_constant_twice():
    """The second would hide the first, as after two changes of one text that were joined."""
    twice = {}
    for path in PACKAGE.rglob("*.py"):
        found = Counter(facts_of(path).constants)
        if more := [name for name, count in found.items() if count > 1]:
            twice[str(path)] = more
    assert not twice


def constants_set_by(item: ast.stmt) -> list[str]:
    """Names that a statement at the top of a file sets; an `_` is no constant."""
    targets = item.targets if isinstance(item, ast.Assign) else [item.target] if isinstance(item, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name) and target.id != "_"]


def test_temporary_files_are_named_as_ours_in_one_place():
    """Messages and people know what a killed process left by how it is called."""
    by_hand = [str(path) for path in FILES if re.search(rf"prefix=f?[\"']{WORK_FOLDER}", path.read_text())]
    assert by_hand == [str(PACKAGE / "runtime" / "elsewhere" / "there.py")], "a program that imports nothing of ours"


def test_files_own_one_thing():
    too_long = [str(path) for path in FILES if len(path.read_text().splitlines()) > MOST_LINES]
    assert not too_long, "split these"


def assert_loads_none_of(heavy, *script):
    """That a fresh Python has not imported any of these after some lines."""
    lines = ("import sys", *script, f"heavy = {heavy} & set(sys.modules)", "assert not heavy, heavy")
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_loads_no_heavy_library():
    assert_loads_none_of(
        {"onnx", "onnx_ir", "onnxruntime", "ortools", "numba", "numpy", "matplotlib"},
        "sys.argv = ['remat', '--help']",
        "from remat_cli.cli import main",
        "try: main()",
        "except SystemExit as stop: assert not stop.code",
    )


def test_commands_that_search_for_no_plan_load_no_solver():
    assert_loads_none_of(
        {"ortools", "numba", "matplotlib"},
        "import remat_cli.commands.inspect, remat_cli.commands.run, remat_cli.commands.verify",
    )


def test_a_class_name_means_one_thing():
    places = defaultdict(list)
    for path in FILES:
        for name in facts_of(path).classes:
            places[name].append(path.relative_to(PACKAGE))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice
