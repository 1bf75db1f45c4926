"""All cases in shards, rows appended to files in a folder: what has a row there is not done again."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from tests.fuzz.batch import AT_ONCE, Judge, Prepare, rows_of
from tests.fuzz.kills import kill_cases, kill_rows
from tests.fuzz.materials import make_materials
from tests.fuzz.mutants import mutant_cases, prepare_mutant
from tests.fuzz.node_models import as_is, node_cases, prepare_node
from tests.fuzz.outcomes import NOT_LOADED, Case, Row, read_rows
from tests.fuzz.plan_mutants import judge_plan, plan_cases, prepare_plan

MATERIALS = "materials"
Do = Callable[[list[Case], Path], Iterator[Row]]


@dataclass(frozen=True)
class Kind:
    """Cases of one kind, and how they are done."""

    cases: Callable[[], list[Case]]
    do: Do
    at_once: int = AT_ONCE


def batched(prepare: Prepare, judge: Judge) -> Do:
    """Cases that a process beside this one does."""
    return partial(_batched, prepare, judge)


def _batched(prepare: Prepare, judge: Judge, cases: list[Case], materials: Path) -> Iterator[Row]:
    return rows_of(cases, prepare, judge, materials)


KINDS = {
    "node": Kind(node_cases, batched(prepare_node, as_is)),
    "model": Kind(mutant_cases, batched(prepare_mutant, as_is)),
    "plan": Kind(plan_cases, batched(prepare_plan, judge_plan)),
    "kill": Kind(kill_cases, kill_rows, 1),
}


def shuffled(cases: list[Case]) -> list[Case]:
    """In an order that has nothing to do with names, so that the first ones are a fair sample; always the same."""
    return sorted(cases, key=lambda case: hashlib.sha256(case.key.encode()).digest())


def sharded(cases: list[Case], shard: str) -> list[Case]:
    """Every n-th case: `2/8` is the second of eight parts.

    Raises:
        ValueError: there is no such part.
    """
    index, _, count = (int(part) if part.isdigit() else 0 for part in shard.partition("/"))
    if not 1 <= index <= count:
        raise ValueError(f"shard '{shard}' is not of the form 2/8, from 1/n to n/n")
    return cases[index - 1 :: count]


def run_kind(name: str, folder: Path, shard: str, seconds: float | None, most: int | None = None) -> list[Row]:
    """Do what is missing of a kind's shard, for so long at most; the new rows, which are in a file of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    done = {row.key for row in read_rows(folder)}
    kind = KINDS[name]
    rest = [case for case in sharded(shuffled(kind.cases()), shard) if case.key not in done][:most]
    materials = make_materials(folder / MATERIALS)
    path = folder / f"{name}-{shard.replace('/', '-of-')}.jsonl"
    end = None if seconds is None else time.monotonic() + seconds
    rows: list[Row] = []
    drop_unfinished(path)
    with path.open("ab") as stream:
        while rest and (end is None or time.monotonic() < end):
            for row in kind.do(rest[: kind.at_once], materials):
                stream.write(msgspec.json.encode(row) + b"\n")
                stream.flush()
                rows.append(row)
            del rest[: kind.at_once]
    return rows


def drop_unfinished(path: Path) -> None:
    """Take away what a kill left of a row at the end of a file, or it would spoil the next one."""
    if path.exists():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)


def summary(rows: list[Row]) -> list[str]:
    """How many of each kind and class, then every broken one."""
    counts = Counter((row.kind, row.outcome) for row in rows if row.outcome != NOT_LOADED)
    left = Counter(row.kind for row in rows if row.left)
    lines = [f"{kind:6} {outcome:18} {count}" for (kind, outcome), count in sorted(counts.items())]
    lines += [f"{kind:6} {'files left':18} {count}" for kind, count in sorted(left.items())]
    return lines + [told(row) for row in rows if row.is_broken]


def told(row: Row) -> str:
    """One row as a line."""
    left = f" left: {', '.join(row.left)}" if row.left else ""
    return f"{row.key}: {row.outcome} ({row.code}) {row.line}{left}"
