"""The pages in `bench/results` say what the rows beside them give: figures that users read are never typed by hand."""

from __future__ import annotations

import importlib
from pathlib import Path

from bench.bench import Bench

PROGRAMS = Path(__file__).parents[2] / "bench"


def test_pages_are_what_their_rows_give() -> None:
    names = [file.stem for file in sorted(PROGRAMS.glob("*.py")) if "\nBENCH = Bench(" in file.read_text()]
    assert len(names) > 15
    benches: list[Bench] = [importlib.import_module(f"bench.{name}").BENCH for name in names]
    other = [
        bench.name
        for bench in benches
        if bench.page_path.exists() and bench.table(bench.rows()) != bench.page_path.read_text(encoding="utf-8")
    ]
    assert not other, f"write these pages again from their rows: {', '.join(other)}"
