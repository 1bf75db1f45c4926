"""What remat leaves on a machine: its own cache and what it was asked to write; nothing that tells of its user."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (
    ("profile", "net.onnx"),
    ("compile", "net.onnx", "--budget", "100%", "--verify", "fast"),
    ("verify", "net.plan.json", "--verify", "fast"),
    ("inspect", "net.plan.json"),
)


def save_net(path):
    """A chain whose first tensor is wanted again at its end."""
    names = [f"t{number}" for number in range(8)]
    nodes = [helper.make_node("Exp", ["x"], ["t0"])]
    nodes += [helper.make_node("Tanh", [left], [right]) for left, right in itertools.pairwise(names)]
    nodes += [helper.make_node("Add", ["t0", names[-1]], ["y"])]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture
def place(tmp_path):
    for name in ("home", "temporary", "work"):
        (tmp_path / name).mkdir()
    save_net(tmp_path / "work" / "net.onnx")
    return tmp_path


def run_there(place, *command):
    strange = ("REMAT_CACHE_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "ORT_DISABLE_TELEMETRY", "TMP", "TEMP")
    environment = {name: value for name, value in os.environ.items() if name not in strange}
    environment |= {"HOME": str(place / "home"), "TMPDIR": str(place / "temporary"), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *command], cwd=place / "work", env=environment, capture_output=True, text=True, check=False
    )


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def test_nothing_is_left_under_home_and_in_the_folder_of_temporary_files_but_the_cache(place):
    for command in COMMANDS:
        done = run_there(place, "-m", "remat_cli", *command)
        assert done.returncode == 0, (command, done.stderr)
    strange = [name for name in files_in(place / "home") if not name.startswith(".cache/remat/")]
    assert strange == []
    assert files_in(place / "temporary") == []
    assert list((place / "temporary").iterdir()) == []


@pytest.mark.slow
def test_the_public_functions_leave_nothing_either(place):
    code = "import remat_cli; print(remat_cli.inspect('net.onnx').exit_code)"
    done = run_there(place, "-c", code)
    assert done.returncode == 0, done.stderr
    assert [name for name in files_in(place / "home") if not name.startswith(".cache/remat/")] == []
    assert list((place / "temporary").iterdir()) == []


def test_a_session_that_is_opened_in_the_main_process_leaves_nothing(place):
    code = """
        from pathlib import Path
        from remat_cli.runtime.sessions.session import SessionSettings, open_session
        open_session(Path("net.onnx"), SessionSettings(exact=False))
    """
    done = run_there(place, "-c", "\n".join(line.strip() for line in code.splitlines()))
    assert done.returncode == 0, done.stderr
    assert files_in(place / "home") == files_in(place / "temporary") == []
