"""What benches share: cases of which some have a row already, rows that are kept one by one, the page made of them.

A bench that takes hours can be stopped and goes on with what is missing; shards of it may run on several machines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import click

from bench.compiling import RESULTS, Row

Key = tuple[Any, ...]
Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Case(Generic[Subject]):
    """What is made ready once, such as a model, and the keys of the rows that are measured of it."""

    subject: Subject
    keys: Sequence[Key]


@dataclass(frozen=True)
class Shard:
    """Which part of the cases is measured here: the first of one part is all of them."""

    number: int = 1
    of: int = 1

    @classmethod
    def parsed(cls, text: str) -> Shard:
        """From words such as 2/8."""
        number, _, of = text.partition("/")
        if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            raise click.BadParameter(f"{text}: a shard is a number of a count, such as 2/8")
        return cls(int(number), int(of))

    def has(self, case: int) -> bool:
        """Whether the case with this number is measured here."""
        return case % self.of == self.number - 1


@dataclass(frozen=True)
class Bench:
    """A bench by name: `NAME.jsonl` has its rows, `NAME.md` its page, both in one folder.

    `key` are the fields by which rows are told apart, `table` makes the page, `told` the line that is printed of a
    fresh row. `place` says where a row stands in the file; without it rows stay in the order in which they came.
    """

    name: str
    key: tuple[str, ...]
    table: Callable[[list[Row]], str]
    told: Callable[[Row], str]
    place: Callable[[Row], Any] | None = None
    folder: Path = RESULTS

    @property
    def rows_path(self) -> Path:
        """Where rows are, one a line, as JSON."""
        return self.folder / f"{self.name}.jsonl"

    @property
    def page_path(self) -> Path:
        """Where the page is."""
        return self.folder / f"{self.name}.md"

    def rows(self) -> list[Row]:
        """What was measured so far."""
        return read_rows(self.rows_path)

    def key_of(self, row: Row) -> Key:
        """What tells a row from others."""
        return tuple(row[field] for field in self.key)

    def merged(self, rows: Iterable[Row], fresh: Iterable[Row]) -> list[Row]:
        """The rows with fresh ones in place of those that have the same key."""
        found = list({self.key_of(row): row for row in (*rows, *fresh)}.values())
        return found if self.place is None else sorted(found, key=self.place)

    def run(
        self,
        cases: Iterable[Case[Subject]],
        measure: Callable[[Subject, Sequence[Key]], Iterable[Row]],
        *,
        again: bool = False,
        keeps: bool = True,
        shard: Shard = Shard(),
    ) -> list[Row]:
        """Measure the keys of cases that have no row, or `again` all of them; the fresh rows.

        Where rows are kept, each is on the disk before the next one is measured.
        """
        known = set() if again else {self.key_of(row) for row in self.rows()}
        fresh: list[Row] = []
        for number, case in enumerate(cases):
            missing = [key for key in case.keys if key not in known]
            if not missing or not shard.has(number):
                continue
            for found in measure(case.subject, missing):
                row: Row = json.loads(json.dumps(found, sort_keys=True))  # as it is read back
                if keeps:
                    self.keep(row)
                fresh.append(row)
                click.echo(self.told(row), err=True)
        return fresh

    def renew(
        self,
        cases: Iterable[Case[Subject]],
        measure: Callable[[Subject, Sequence[Key]], Iterable[Row]],
        *,
        keeps: bool,
    ) -> list[Row]:
        """Measure all cases and print their table; where rows are kept, those of other cases stay beside them."""
        rows = self.run(cases, measure, again=True, keeps=keeps)
        if keeps:
            self.write()
        click.echo(self.table(self.merged((), rows)))
        return rows

    def keep(self, row: Row) -> None:
        """Put a row into the file: at its end, or where rows have places or it has the key of another, in its place."""
        rows = self.rows()
        if self.place is None and self.key_of(row) not in map(self.key_of, rows):
            self.folder.mkdir(parents=True, exist_ok=True)
            with self.rows_path.open("a", encoding="utf-8") as file:
                file.write(_line(row))
            return
        self.replace(self.merged(rows, [row]))

    def replace(self, rows: Iterable[Row]) -> None:
        """Write all rows anew."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.rows_path.write_text("".join(map(_line, rows)), encoding="utf-8")

    def write(self) -> str:
        """Make the page of the rows that are there."""
        text = self.table(self.rows())
        self.folder.mkdir(parents=True, exist_ok=True)
        self.page_path.write_text(text, encoding="utf-8")
        return text


def read_rows(path: Path) -> list[Row]:
    """Rows of a file, in order; none where there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def of_lines(table: Callable[[list[Row]], Iterable[str]]) -> Callable[[list[Row]], str]:
    """A page whose lines are made."""
    return lambda rows: "\n".join(table(rows)) + "\n"


def _line(row: Row) -> str:
    return json.dumps(row, sort_keys=True) + "\n"


def shard_option(command: Callable[..., None]) -> Callable[..., None]:
    """`--shard 2/8`, for benches that take hours."""
    return click.option(
        "--shard", default="1/1", show_default=True, callback=_parsed, help="Part of the cases, such as 2/8."
    )(command)


def _parsed(_context: click.Context, _option: click.Parameter, text: str) -> Shard:
    return Shard.parsed(text)
