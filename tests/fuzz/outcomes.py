"""What became of one run of remat: a class, the kind of what it said, and what it left behind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

OK, REFUSED, IMPOSSIBLE, NO_PLAN = "ok", "refused", "impossible", "no plan"
UNEXPECTED, FAILED, FALSE_FIVE, HANG, CRASH = "unexpected", "failed", "outputs differ", "hang", "crash"
BASELINE_REFUSED = "no plan at 100 %"
ACCEPTED, MIXED, SURVIVORS = "accepted", "half written", "outlived"
DISPROVED, KILLED, NOT_LOADED = "disproved", "ended", "not loaded"
BROKEN = frozenset({UNEXPECTED, FAILED, FALSE_FIVE, HANG, CRASH, BASELINE_REFUSED, ACCEPTED, MIXED, SURVIVORS})
"""What must not be, whatever the input."""
EXIT_CLASSES = {0: OK, 1: FAILED, 2: REFUSED, 3: IMPOSSIBLE, 4: NO_PLAN, 5: FALSE_FIVE}
WHOLE = "100%"
LONGEST_REASON = 110


class Case(msgspec.Struct, frozen=True):
    """One thing to do: of a kind (`node`, `model`, `plan`, `kill`), to a named subject."""

    kind: str
    name: str
    action: str

    @property
    def key(self) -> str:
        """Names the case among all."""
        return f"{self.kind} {self.name} {self.action}"


class Row(msgspec.Struct, frozen=True):
    """What became of a case; `reason` is the line that remat said without what is particular to the case."""

    kind: str
    name: str
    action: str
    outcome: str
    code: int | None = None
    line: str = ""
    reason: str = ""
    left: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def key(self) -> str:
        """Names the case among all."""
        return f"{self.kind} {self.name} {self.action}"

    @property
    def is_broken(self) -> bool:
        """Whether something happened that must not, or something was left behind."""
        return self.outcome in BROKEN or bool(self.left)


def row_of(case: Case, outcome: str, **facts: Any) -> Row:
    """The row of a case."""
    line = facts.pop("line", "")
    return Row(case.kind, case.name, case.action, outcome, line=line[:600], reason=reason_of(line), **facts)


def outcome_of(case: Case, code: int | None, line: str = "") -> str:
    """The class of an exit code (None: an exception came through); a whole budget that nothing fits has its own."""
    found = UNEXPECTED if code is None or "unexpected " in line[:20] else EXIT_CLASSES.get(code, CRASH)
    if found in (IMPOSSIBLE, NO_PLAN) and case.kind == "node" and case.action == WHOLE:
        return BASELINE_REFUSED
    return found


def reason_of(line: str) -> str:
    """A line without paths, names and numbers: the kind of complaint."""
    text = line.removeprefix("error: ")
    text = re.sub(r"\S*/\S*", "PATH", text)
    text = re.sub(r"\b\S+\.(onnx|json|data|npz)\b", "FILE", text)
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", text)
    text = re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?", "N", text)
    return " ".join(text.split())[:LONGEST_REASON]


def read_rows(folder: Path) -> list[Row]:
    """All rows of a folder; a last line that a kill left unfinished is no row."""
    rows: dict[str, Row] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                row = msgspec.json.decode(line, type=Row)
                rows[row.key] = row
    return list(rows.values())
