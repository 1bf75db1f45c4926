"""Files that are compiled here, run on other versions of the runtime: bits, order, live tensors, resident memory.

`python -m bench.versions` compiles samples and the README's encoder, has `remat verify --on` run each file on every
version of `VERSIONS` and on what pip gives, appends a row to `bench/results/versions.jsonl` as soon as it is there and
skips rows that are there already; `--write` makes `bench/results/versions.md` of them. Versions lie in
`build/versions`, where `make test-versions` puts them.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from bench.bench import Bench, Case, Key, of_lines
from bench.compiling import Row, sample_paths, table_lines
from bench.targets import ENCODER, RANGES, SIZES, Processor, compiled, processor_row
from remat_cli.ort_rules.versions import COUNTERS_FROM, SAME_BITS_FROM, numbers_of
from tests.other_versions import installed, newest

VERSIONS = ("1.20.1", "1.24.4", "1.26.0", "1.28.0", "1.30.0")
"""The oldest that is worth a try, and every second one since files keep their bits."""
MIB = 2**20
ROOM_FACTOR, ROOM_BYTES = 1.03, 2 * MIB  # by how much a measurement may be above what was predicted


@click.command()
@click.option("--only", multiple=True, help="Name of a model; may be repeated. All when left out.")
@click.option("--write", is_flag=True, help="Make the table of the rows that are there.")
def main(only: Sequence[str], write: bool) -> None:
    """Run what is missing, or write the table."""
    if write:
        BENCH.write()
        return
    version = newest()
    if version is None:
        click.echo("left out: the newest version, as pip could not say which that is", err=True)
    places = {each: _place(each) for each in (*VERSIONS, version) if each is not None}

    def measured(path: Path, keys: Sequence[Key]) -> Iterator[Row]:
        with tempfile.TemporaryDirectory() as folder:
            yield from rows(path, [places[version] for _, version in keys], Path(folder))

    paths = [path for _, path in sample_paths(tuple(only))]
    paths += [ENCODER] if not only or ENCODER.stem in only else []
    BENCH.run((Case(path, [(path.stem, version) for version in places]) for path in paths), measured)


def _place(version: str) -> Processor:
    """This processor, with another version of the runtime before the packages of this environment."""
    paths = os.pathsep.join((str(installed(version)), sysconfig.get_path("platlib")))
    return Processor(version, f"env PYTHONPATH={paths} {os.path.realpath(sys.executable)}")


def rows(path: Path, places: Sequence[Processor], folder: Path) -> Iterator[Row]:
    """One compile, and what each version makes of the file."""
    output, name = folder / f"{path.stem}.compiled.onnx", path.stem
    made = compiled(path, output, RANGES.get(name))
    if made is None:
        return
    for place in places:
        found = processor_row(place, path, output, SIZES.get(name, {}), how="on")
        yield {"model": name, "version": place.name, **made, **found}


def is_promised(row: Row) -> bool:
    """Whether files say that they have the original's bits on this version."""
    return numbers_of(row["version"]) >= numbers_of(SAME_BITS_FROM)


def broken(row: Row) -> list[str]:
    """What of its promises a file does not keep on a version."""
    peak, promised, held = row.get("peak_bytes"), row.get("promised_bytes"), _held(row)
    return [
        name
        for name, is_broken in (
            ("other bits" if row["outcome"] == "DIFFERENT" else row["outcome"], row["outcome"] != "bits"),
            ("another order", row.get("order") is False),
            ("more live tensors", peak is not None and promised is not None and peak > promised),
            ("a larger process", held is not None and held > row["held_bytes"] * ROOM_FACTOR + ROOM_BYTES),
        )
        if is_broken
    ]


def _held(row: Row) -> int | None:
    """What later runs held of memory of their own."""
    return None if row.get("process") is None else int(row["process"]["rewritten"]["later_runs_bytes"])


def table(found: Sequence[Row]) -> list[str]:
    """A line per model, a column per version."""
    versions = sorted({row["version"] for row in found}, key=numbers_of)
    models = list(dict.fromkeys(row["model"] for row in found))
    cells = {(row["model"], row["version"]): row for row in found}
    first = {row["model"]: row for row in found}
    lines = [
        [
            model,
            first[model]["budget"],
            _mib(first[model]["held_bytes"]),
            *(_cell(cells[model, version]) if (model, version) in cells else "" for version in versions),
        ]
        for model in models
    ]
    wrong = [row for row in found if is_promised(row) and broken(row)]
    return [
        "# Compiled here, run on other versions of ONNX Runtime",
        "",
        "Files made by `make test-versions`, run by `remat verify --on` on other versions on the same processor. A",
        f"file promises the original's bits from {SAME_BITS_FROM} on. Each cell says what was checked and holds: bits",
        f"of the original in the same version, order, and the live peak, which versions count from {COUNTERS_FROM} on;",
        "then MiB of resident memory in later runs, original → file. *Promised* is that of the file, in MiB, by",
        "prediction.",
        "",
        *table_lines(["model", "budget", "promised", *versions], lines),
        "",
        f"{sum(map(is_promised, found))} cells of versions for which bits are promised, of which {len(wrong)} are "
        "not as promised.",
    ]


def _cell(row: Row) -> str:
    if row["outcome"] not in ("bits", "DIFFERENT"):
        return str(row["outcome"]).lower()
    bits = "bits" if row["outcome"] == "bits" else f"other bits by {row['difference'] or 0:.0e}"
    said = [bits, *(["order"] if row["order"] else []), *(["peak"] if row["peak_bytes"] is not None else [])]
    wrong = [f"**{each}**" for each in broken(row) if each != "other bits"]
    process = row.get("process")
    if process is None:
        return ", ".join([*said, *wrong])
    pair = " → ".join(_mib(process[name]["later_runs_bytes"]) for name in ("original", "rewritten"))
    return f"{', '.join([*said, *wrong])}; {pair}"


def _mib(count: int) -> str:
    return f"{count / MIB:.1f}"


def _told(row: Row) -> str:
    return f"{row['model']:16} {row['version']:8} {row['outcome']}  {', '.join(broken(row))}"


BENCH = Bench("versions", ("model", "version"), of_lines(table), _told)

if __name__ == "__main__":
    main()
