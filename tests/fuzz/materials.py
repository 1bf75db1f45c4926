"""What cases share: a small network that has something to recompute, its plan, and how long its compile takes."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from tests.fuzz.batch import OUTPUT, PLAN
from tests.fuzz.plan_mutants import SOURCE

ROOT = Path(__file__).resolve().parents[2]
FACTS = "facts.json"


def save_net(path: Path) -> None:
    """A chain whose first tensors are wanted again at its end."""
    names = [f"t{number}" for number in range(8)]
    nodes = [helper.make_node("Exp", ["x"], ["t0"])]
    nodes += [helper.make_node("Tanh", [left], [right]) for left, right in itertools.pairwise(names)]
    nodes += [helper.make_node("Add", ["t0", names[-1]], ["a"]), helper.make_node("Mul", ["t1", "a"], ["y"])]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def words_of(folder: Path) -> list[str]:
    """The compile that makes the plan, and that is killed."""
    command = [sys.executable, "-m", "remat_cli", "compile", str(folder / SOURCE), "--budget", "min", "--split", "off"]
    return [*command, "-o", str(folder / OUTPUT), "--verify", "fast", "--time-limit", "1s", "--force", "--quiet"]


def environment_of(folder: Path) -> dict[str, str]:
    """Folders of its own for all that a process may write."""
    for name in ("home", "temporary", "cache"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    own = {"HOME": folder / "home", "TMPDIR": folder / "temporary", "REMAT_CACHE_DIR": folder / "cache"}
    return os.environ | {name: str(path) for name, path in own.items()} | {"PYTHONPATH": str(ROOT)}


def make_materials(folder: Path) -> Path:
    """The folder, filled once: the network, its compiled model and plan, and the seconds of a compile."""
    if not (folder / FACTS).exists():
        folder.mkdir(parents=True, exist_ok=True)
        save_net(folder / SOURCE)
        seconds = 0.0
        for _ in range(2):  # the second one finds the profile, as those that are killed do
            started = time.monotonic()
            done = subprocess.run(
                words_of(folder), env=environment_of(folder), capture_output=True, text=True, check=False
            )
            seconds = time.monotonic() - started
            if done.returncode or not (folder / PLAN).exists():
                raise RuntimeError(f"the network of the plan tests does not compile: {done.stderr}")
        (folder / FACTS).write_text(json.dumps({"seconds": seconds}))
    return folder


def compile_seconds(folder: Path) -> float:
    """How long a compile takes that nobody disturbs."""
    return float(json.loads((folder / FACTS).read_text())["seconds"])
