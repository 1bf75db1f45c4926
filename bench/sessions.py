"""Files for sessions with other options: what processes take of them, of the original there, and what was predicted.

`python -m bench.sessions` compiles samples for each way in which programs open sessions, runs file and original like
that in fresh processes, appends a row to `bench/results/sessions.jsonl` as soon as it is there and skips rows that are
there already; `--write` makes `bench/results/sessions.md` of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from types import MappingProxyType
from typing import TypeAlias

import click

import remat_cli
from bench.bench import Bench, Case, Key, Shard, of_lines, shard_option
from bench.compiling import ROOT, Row, sample_paths, table_lines
from remat_cli.compiling.prepare import asked_settings
from remat_cli.onnx_io.read.load import DimBindings, inputs_of, load
from remat_cli.runtime.observe.resident import ResidentFigures, ResidentJob, measure_resident
from remat_cli.runtime.sessions._ort import PackedArray, pack_all, run_fresh
from remat_cli.runtime.sessions.feeds import make_feeds
from remat_cli.settings.settings import load_settings

Feeds: TypeAlias = tuple[PackedArray, ...]
BUDGET = "60%"
LIMIT = "30s"
PROCESSES, ORIGINALS = 20, 5
RUNS = 8
MIB = 2**20
MORE_SHARE, MORE_BYTES = 0.05, 3 * MIB
ENCODER = ROOT / "examples" / "encoder.onnx"
SIZES: Mapping[str, Mapping[str, int]] = MappingProxyType({"encoder": {"batch": 2, "seq": 128}})
WAYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "default": (),
        "arena off": ("arena=off",),
        "arena and pattern off, no optimisation": ("arena=off", "pattern=off", "optimisation=disabled"),
        "pattern off": ("pattern=off",),
        "parallel": ("mode=parallel",),
        "two runs at once": ("concurrency=2",),
    }
)
"""How programs open sessions; the second is that of OCR programs, the third that of a speech synthesiser."""


@click.command()
@click.option("--only", multiple=True, help="Name of a model; may be repeated. All when left out.")
@click.option("--write", is_flag=True, help="Make the table of the rows that are there.")
@shard_option
def main(only: Sequence[str], write: bool, shard: Shard) -> None:
    """Measure what is missing, or write the table."""
    if write:
        BENCH.write()
        return
    paths = [*sample_paths(tuple(only)), *([(ENCODER.stem, ENCODER)] if not only or ENCODER.stem in only else [])]
    BENCH.run((Case(path, [(name, way) for way in WAYS]) for name, path in paths), rows, shard=shard)


def rows(path: Path, keys: Sequence[Key]) -> Iterator[Row]:
    """A row for each way of opening sessions."""
    sizes = dict(SIZES.get(path.stem, {}))
    feeds = pack_all(make_feeds(inputs_of(load(path, DimBindings(sizes, {})).ir), 0))
    for name, way in keys:
        with tempfile.TemporaryDirectory() as folder:
            yield {"model": name, "way": way, "budget": BUDGET, **measured(path, Path(folder), WAYS[way], sizes, feeds)}


def measured(path: Path, folder: Path, words: Sequence[str], sizes: Mapping[str, int], feeds: Feeds) -> Row:
    """What came of one compile; without a plan only why."""
    session = dict(word.split("=") for word in words)
    report = remat_cli.compile(
        path,
        budget=BUDGET,
        session=session,
        dim=dict(sizes) or None,
        output=folder / "out.onnx",
        intra_op_threads=1,
        time_limit=LIMIT,
    )
    if report.output is None or report.plan is None:
        return {"status": report.solution.status}
    promised = remat_cli.read_plan(Path(report.plan)).promise.process
    assert promised is not None
    conditions = load_settings({"session": session, "intra_op_threads": 1}).conditions
    settings, at_once = asked_settings(conditions), conditions.session.concurrency

    def held(model: Path, processes: int) -> list[ResidentFigures]:
        job = ResidentJob(str(model.resolve()), feeds, settings, RUNS, at_once=at_once)
        return [run_fresh(measure_resident, job) for _ in range(processes)]

    def figures(found: Sequence[ResidentFigures]) -> dict[str, list[int]]:
        return {
            "load": [each.load_peak_bytes.total_bytes for each in found],
            "runs": [max(peak.total_bytes for peak in each.run_peak_bytes) for each in found],
        }

    return {
        "status": report.solution.status,
        "outputs_identical": report.verification.outputs_identical if report.verification else None,
        "predicted": {
            "load": promised.load_peak_bytes,
            "runs": max(promised.first_run_bytes, promised.later_runs_bytes),
        },
        "file": figures(held(Path(report.output), PROCESSES)),
        "original": figures(held(path, ORIGINALS)),
    }


def is_above(row: Row) -> bool:
    """Whether some process took more than was predicted, and 5 % and 3 MiB."""
    worst, predicted = max(row["file"]["runs"]), row["predicted"]["runs"]
    return bool(worst > predicted * (1 + MORE_SHARE) + MORE_BYTES)


def page(found: list[Row]) -> list[str]:
    """A line per model and way."""
    planned = [row for row in found if "file" in row]
    above = [row for row in planned if is_above(row)]
    return [
        "# Sessions with other options",
        "",
        f"Generated by `make bench-sessions`. Samples and an encoder compiled to {BUDGET} for sessions that are opened",
        "like that (`--session`), then file and original run in fresh processes with these options: MiB of resident",
        f"memory above a process with an empty session, the most in {RUNS} runs, outputs held until the next run",
        f"ended, least and most of {PROCESSES} processes of the file and {ORIGINALS} of the original. One intra-op",
        "thread, glibc.",
        "",
        f"{len(planned)} of {len(found)} have a plan; {sum(row['outputs_identical'] is True for row in planned)} the",
        f"bits of the original. Above the prediction by more than 5 % and 3 MiB in any process: "
        f"{', '.join(_name(row) for row in above) or 'none'}.",
        "",
        *_means(planned),
        "",
        *table_lines(["model", "way", "original", "file", "predicted", "change"], [_cells(row) for row in found]),
    ]


def _name(row: Row) -> str:
    return f"{row['model']} ({row['way']})"


def _means(planned: Sequence[Row]) -> list[str]:
    lines = []
    for way in WAYS:
        own = [max(row["file"]["runs"]) / max(row["original"]["runs"]) for row in planned if row["way"] == way]
        if own:
            lines.append(f"- {way}: {geometric_mean(own):.2f} of the original, geometric mean of {len(own)} models")
    return lines


def _cells(row: Row) -> list[str]:
    if "file" not in row:
        return [row["model"], row["way"], "", row["status"], "", ""]
    most, original = max(row["file"]["runs"]), max(row["original"]["runs"])
    predicted = f"{row['predicted']['runs'] / MIB:.1f}"
    return [
        row["model"],
        row["way"],
        _range(row["original"]["runs"]),
        _range(row["file"]["runs"]),
        f"**{predicted}**" if is_above(row) else predicted,
        f"{100 * (most / original - 1):+.0f} %",
    ]


def _range(values: Sequence[int]) -> str:
    least, most = f"{min(values) / MIB:.1f}", f"{max(values) / MIB:.1f}"
    return least if least == most else f"{least} to {most}"


def _told(row: Row) -> str:
    return " ".join(f"{cell:>14}" for cell in _cells(row))


BENCH = Bench("sessions", ("model", "way"), of_lines(page), _told)

if __name__ == "__main__":
    main()
