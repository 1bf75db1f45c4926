"""What a compiled file says of a process that loads and runs it, and the way into its metadata and out again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

import msgspec

from remat_cli.core.values.resident import ProcessMemory

PROCESS_BUDGET_KEY: Final = "remat.process_budget_bytes"
COUNT_MAPPED_KEY: Final = "remat.count_mapped"
PROCESS_KEY: Final = "remat.process"
"""Model metadata: what was predicted of a process, in bytes by phase."""


class ProcessPromise(msgspec.Struct, frozen=True):
    """A budget on the process, inputs included, and what was predicted of it without them; None where nothing is said.

    Mapped pages count against the budget `with_mapped`.
    """

    budget_bytes: int | None = None
    with_mapped: bool = False
    predicted: ProcessMemory | None = None

    @property
    def metadata(self) -> dict[str, str]:
        """The entries of the model's metadata that say so."""
        told = {}
        if self.budget_bytes is not None:
            told[PROCESS_BUDGET_KEY] = str(self.budget_bytes)
            told[COUNT_MAPPED_KEY] = "true" if self.with_mapped else "false"
        if self.predicted is not None:
            figures = msgspec.structs.asdict(self.predicted)
            told[PROCESS_KEY] = "; ".join(f"{name}={count}" for name, count in figures.items())
        return told

    @classmethod
    def from_metadata(cls, entries: Mapping[str, str]) -> Self:
        """What a file's metadata says; older files say nothing, and what cannot be read says nothing."""
        budget = entries.get(PROCESS_BUDGET_KEY, "")
        figures = dict(part.split("=", 1) for part in entries.get(PROCESS_KEY, "").split("; ") if "=" in part)
        try:
            predicted = msgspec.convert(figures, ProcessMemory, strict=False)
        except msgspec.ValidationError:
            predicted = None
        return cls(int(budget) if budget.isdecimal() else None, entries.get(COUNT_MAPPED_KEY) == "true", predicted)
