"""Where packages keep their models: taken out once, and another file laid in place of one.

Originals are kept in a folder of their own as soon as they are asked for, so that a package that was left with a
compiled model in it, as by a run that was killed, gets its own back.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx.helper import make_tensor_value_info

from bench.compiling import ROOT
from bench.field.programs import Program

BUILT = ROOT / "build" / "field"
PYTHON = BUILT / "venv" / "bin" / "python"
NODE = BUILT / "node"
MODULES = NODE / "node_modules"
ORIGINALS = BUILT / "originals"
SCRATCH = BUILT / "scratch"  # where programs are run from: what they leave behind goes with it


@dataclass(frozen=True)
class Place:
    """A program's model among the files of its package."""

    program: Program
    path: Path

    @classmethod
    def of(cls, program: Program) -> Place | None:
        """Where the program keeps its model; None where the package is not installed."""
        folders = (MODULES,) if program.is_node else tuple(PYTHON.parents[1].glob("lib/*/site-packages"))
        return next(
            (cls(program, folder / program.model) for folder in folders if (folder / program.model).exists()), None
        )

    @property
    def original(self) -> Path:
        """The model as the package ships it, under the name that it has there, in a folder of its own."""
        kept = ORIGINALS / self.program.name / (f"{Path(self.program.entry or self.path).stem}.onnx")
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            if self.program.entry:
                shutil.copy(self.path, self._table)
                pieces = (self.path.parent / piece["hash"] for piece in self._listed()["chunks"])
                kept.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
            else:
                shutil.copy(self.path, kept)
        return kept

    @property
    def compiled(self) -> Path:
        """What is compiled: the original as a session of the program gets it."""
        if not self.program.opened:
            return self.original
        opened = self.original.with_name(f"opened-{self.original.name}")
        if not opened.exists():
            model = onnx.load(self.original)
            for value in (*model.graph.input, *model.graph.output):
                if value.name in self.program.opened:
                    element = value.type.tensor_type.elem_type
                    value.CopyFrom(make_tensor_value_info(value.name, element, self.program.opened[value.name]))
            onnx.save(model, opened)
        return opened

    @property
    def _table(self) -> Path:
        return ORIGINALS / self.program.name / "table.json"

    def _listed(self) -> dict[str, list[dict[str, str]]]:
        found: dict[str, list[dict[str, str]]] = json.loads(self._table.read_text(encoding="utf-8"))[self.program.entry]
        return found

    @contextmanager
    def holding(self, model: Path | None) -> Iterator[None]:
        """Let the package have this model in place of its own meanwhile; its own where there is none."""
        self._restore()
        shutil.rmtree(SCRATCH, ignore_errors=True)
        SCRATCH.mkdir(parents=True)
        try:
            if model is not None:
                self._lay(model)
            yield
        finally:
            self._restore()

    def _restore(self) -> None:
        original = self.original
        self._data.unlink(missing_ok=True)
        shutil.copy(self._table if self.program.entry else original, self.path)

    @property
    def _data(self) -> Path:
        return self.path.with_name(f"{self.path.name}.data")

    def _lay(self, model: Path) -> None:
        if not self.program.entry:
            shutil.copy(model, self.path)
            beside = model.with_name(f"{model.name}.data")
            if beside.exists():
                shutil.copy(beside, self._data)
            return
        content = model.read_bytes()
        name = hashlib.sha256(content).hexdigest()
        (self.path.parent / name).write_bytes(content)
        table = json.loads(self._table.read_text(encoding="utf-8"))
        table[self.program.entry] |= {"size": len(content), "chunks": [{"hash": name, "offsets": [0, len(content)]}]}
        self.path.write_text(json.dumps(table), encoding="utf-8")
