"""Compiled files in ONNX Runtime for Node, and for browsers (WebAssembly), beside their originals there."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.compiling import ROOT, Row
from bench.targets_browser import Browser
from remat_cli.onnx_io.read.load import DimBindings, inputs_of, load
from remat_cli.runtime.sessions.feeds import make_feeds

PROGRAM = Path(__file__).with_suffix(".mjs")
MODULES = ROOT / "build" / "targets" / "node" / "node_modules"
"""What `make setup-node` puts there."""
TYPES = {
    "float32": "float32",
    "float64": "float64",
    "int64": "int64",
    "int32": "int32",
    "uint8": "uint8",
    "bool": "bool",
}
"""NumPy's names of types, and JavaScript's."""
RUN_SECONDS = 1800.0
FIGURES = ("collected_bytes", "late_bytes")


@dataclass(frozen=True)
class Package:
    """A runtime for JavaScript: `folder` is that of its package."""

    name: str
    folder: Path

    @property
    def missing(self) -> str | None:
        """What is not here: Node, or the package."""
        if shutil.which("node") is None:
            return "node"
        return None if self.folder.is_dir() else str(self.folder)

    def ran(self, model: Path, feeds: Path, results: Path) -> Row:
        """What the program prints of a model: how far it came (`load`, `run`, `done`), outputs, and what it took."""
        results.mkdir()
        own = (str(each) for each in (PROGRAM, self.folder, model, feeds, results))
        words = ["env", "ORT_DISABLE_TELEMETRY=1", "node", "--expose-gc", *own]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=RUN_SECONDS)
        lines = done.stdout.splitlines()
        if done.returncode or not lines:
            return {"runtime": "", "stage": "died", "message": done.stderr[-300:]}
        found: Row = json.loads(lines[-1])
        return found


PACKAGES: tuple[Package | Browser, ...] = (
    Package("node", MODULES / "onnxruntime-node"),
    Package("node, older", MODULES / "onnxruntime-node-older"),
    Package("wasm", MODULES / "onnxruntime-web"),
    Package("wasm, older", MODULES / "onnxruntime-web-older"),
    Browser("chromium", MODULES / "onnxruntime-web"),
)


def package_row(package: Package | Browser, original: Path, compiled: Path, sizes: Mapping[str, int]) -> Row:
    """What became of a file there, and what it and the original took."""
    with tempfile.TemporaryDirectory() as folder:
        feeds = written_feeds(original, sizes, Path(folder))
        theirs = package.ran(original, feeds, Path(folder) / "original")
        ours = package.ran(compiled, feeds, Path(folder) / "file")
        is_same, difference = compared(theirs, ours)
    return {
        "runtime": theirs["runtime"],
        "outcome": outcome(theirs, ours, is_same=is_same),
        "message": ours.get("message"),
        "difference": difference,
        "memory": {name: figures(found) for name, found in (("original", theirs), ("file", ours))},
    }


def written_feeds(original: Path, sizes: Mapping[str, int], folder: Path) -> Path:
    """Files with the bytes of each input, and one that names them."""
    told: dict[str, Row] = {}
    for name, array in make_feeds(inputs_of(load(original, DimBindings(dict(sizes), {})).ir), 0).items():
        path = folder / f"{len(told)}.bin"
        np.asarray(array).tofile(path)
        told[name] = {"type": str(array.dtype), "dims": list(array.shape), "file": str(path)}
    (folder / "feeds.json").write_text(json.dumps(told))
    return folder / "feeds.json"


def compared(theirs: Row, ours: Row) -> tuple[bool, float | None]:
    """Whether all outputs are the same bits, and the largest difference, relative to the largest magnitude."""
    if theirs["stage"] != "done" or ours["stage"] != "done":
        return False, None
    pairs = list(zip(map(array_of, theirs["outputs"]), map(array_of, ours["outputs"]), strict=True))
    apart = [
        float(np.abs(one.astype(np.float64) - other).max(initial=0) / max(float(np.abs(one).max(initial=0)), 1e-30))
        for one, other in pairs
    ]
    return all(one.tobytes() == other.tobytes() for one, other in pairs), max(apart, default=0.0)


def array_of(output: Row) -> npt.NDArray[Any]:
    """An output that the program kept."""
    return np.fromfile(output["file"], np.dtype(output["type"])).reshape(output["dims"])


def outcome(theirs: Row, ours: Row, *, is_same: bool) -> str:
    """In the words of the bench."""
    if theirs["stage"] != "done":
        return "the original does not run"
    if ours["stage"] == "done":
        return "bits" if is_same else "DIFFERENT"
    return "refused at load" if ours["stage"] == "load" else "DIED" if ours["stage"] == "died" else "FAILED LATE"


def figures(found: Row) -> Row | None:
    """What a model took; None where it did not run."""
    return {name: found[name] for name in FIGURES} if found["stage"] == "done" else None
