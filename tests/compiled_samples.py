"""Samples that several files of tests compile in the same way, each made once for all workers, to be read only."""

from __future__ import annotations

import fcntl
import hashlib
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import remat_cli
from tests.compiling.paged_steps import paged

SAMPLES = Path(__file__).resolve().parents[1] / "sample_models"


@dataclass(frozen=True)
class CompiledSample:
    """A compiled sample, its plan and its report. The files are read-only: tests change a copy."""

    output: Path
    plan: Path
    report: Any


@dataclass(frozen=True)
class SampleStore:
    """A folder that all workers of a run share."""

    folder: Path
    cache: Path

    def compiled(self, name: str, budget: str, **words: Any) -> CompiledSample:
        """A sample compiled with these words of `remat_cli.compile`, which verifies fast unless told otherwise."""
        asked = {"budget": budget, "verify": "fast", **words}

        def make(place: Path) -> CompiledSample:
            output = place / f"{name}.remat.onnx"
            found = remat_cli.compile(SAMPLES / f"{name}.onnx", output=output, **asked)
            assert found.exit_code == 0, found
            return CompiledSample(Path(found.output), Path(found.plan), found)

        return self._made((name, asked), make)

    def training_step(self, name: str, loss: str) -> Path:
        """The training step of a sample."""

        def make(place: Path) -> Path:
            path = place / f"{name}.train.onnx"
            remat_cli.train(SAMPLES / f"{name}.onnx", loss=loss, output=path)
            return path

        return self._made((name, loss), make)

    def paging_step(self, name: str, loss: str) -> tuple[Path, Any]:
        """The training step of a sample, verified as it pages to a folder beside it, and the report of that."""

        def make(place: Path) -> tuple[Path, Any]:
            step = place / f"{name}.train.onnx"
            remat_cli.train(SAMPLES / f"{name}.onnx", loss=loss, output=step)
            return step, paged(step, verify="fast")

        return self._made((name, loss, "paging"), make)

    def _made(self, key: object, make: Callable[[Path], Any]) -> Any:
        """What is in the store under a key, made by the first who asks while others wait."""
        place = self.folder / hashlib.sha256(repr(key).encode()).hexdigest()[:16]
        self.folder.mkdir(parents=True, exist_ok=True)
        record = place / "made.pickle"
        with _alone(place.with_suffix(".lock")):
            if not record.exists():
                shutil.rmtree(place, ignore_errors=True)  # what a maker left that failed
                place.mkdir()
                with pytest.MonkeyPatch.context() as patch:
                    patch.setenv("REMAT_CACHE_DIR", str(self.cache))
                    made = make(place)
                for path in place.iterdir():
                    if path.is_file():
                        path.chmod(0o444)
                record.write_bytes(pickle.dumps(made))
        return pickle.loads(record.read_bytes())


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
