"""What a compiled file did beside its original in another place: another environment, machine, emulator, container."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from remat_cli.core.values.file_check import FileVerification
from remat_cli.core.values.promises import worst
from remat_cli.core.values.runs_on import MADE_FOR

GUARD = re.compile(rf"{MADE_FOR}\w+")


class Place(msgspec.Struct, frozen=True):
    """A Python somewhere: the system and machine as it names them, its processor and cores, and versions there."""

    system: str
    machine: str
    processor: str
    cores: int
    python: str
    numpy: str
    onnxruntime: str

    @property
    def line(self) -> str:
        """All of it in one line for people."""
        processor = f", {self.processor}" if self.processor and self.processor != self.machine else ""
        return f"{self.system} {self.machine}{processor}, Python {self.python}, ONNX Runtime {self.onnxruntime}"


class VerifiedOn(msgspec.Struct, frozen=True, kw_only=True):
    """What one place showed; `on` is the command that leads there.

    `loads` and `runs` say how far the file comes, `original_runs` whether the original ends its runs; `message` is
    what the runtime says of the one that does not. `difference` is the largest of outputs, relative to the largest
    magnitude (None: none, or they do not compare). `verification` is None where one of them does not run.
    """

    on: str
    place: Place
    loads: bool
    runs: bool
    original_runs: bool
    message: str | None = None
    difference: float | None = None
    verification: FileVerification | None = None

    @property
    def outcome(self) -> Literal["kept", "memory", "broken", "refused", "fails", "no_original"]:
        """In one word: what the file promises is kept, or what of it is not; or which of the two does not run."""
        if self.verification is None:
            if not self.original_runs:
                return "no_original"
            return "refused" if self.guard else "fails"
        found = worst(self.verification.promises)
        return "broken" if found == "broken" else "memory" if found == "memory" else "kept"

    @property
    def guard(self) -> str | None:
        """The name of the op that refused this processor, if one did."""
        found = GUARD.search(self.message or "")
        return None if self.runs or found is None else found[0]
