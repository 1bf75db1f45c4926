"""What processes hold that call a model in other ways than one session, one thread and the outputs of one run held.

`python -m bench.callers` appends a row to `bench/results/callers.jsonl` as soon as it is there and skips rows that are
there already; `--write` makes `bench/results/callers.md` of them. Each row is one model, as it is or compiled to 50 %,
called in one way in a fresh process, and the most that this process held while it loaded the model and in each run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import click
import msgspec

import remat_cli
from bench.bench import Bench, Case, Key, Shard, of_lines, shard_option
from bench.callers_measure import RUNS, SETTINGS, CallerFigures, CallerJob, CallingWay, measure_caller
from bench.compiling import Row, sample_paths, table_lines
from bench.real.measure import MODELS
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.onnx_io.read.load import DimBindings, inputs_of, load
from remat_cli.report.compile import OneModelReport
from remat_cli.runtime.sessions._ort import pack_all, run_fresh
from remat_cli.runtime.sessions.feeds import make_feeds

SAMPLES = ("unet", "transformer", "detector", "densenet")
REAL = ("whisper-encoder", "yolov8s")
FILES = ("original", "compiled")
BUDGET = "50%"
FEW_RUNS = 6
MIB = 2**20
ROOM_FACTOR, ROOM_BYTES = 1.03, 2 * MIB  # by how much a measurement may be above what was predicted
KEPT = "tensors need other places than those that held outputs keep"
NO_ARENA = "tensors come from the system's allocator, for which nothing is planned"
SHRINKING = "regions are given back and taken anew, in other sizes and places"

Found: TypeAlias = Mapping[tuple[str, str, str], Row]
"""Rows by model, file and way."""

PROMISED = CallingWay("held", "outputs held until the next run ended", "what the promise is for")
DROPPED = CallingWay("dropped", "outputs dropped before the next run", "one generation of outputs less", held=0)
SESSIONS = CallingWay("sessions", "two sessions, in turn", "each has an arena; only data files are shared", sessions=2)
WAYS = (
    PROMISED,
    DROPPED,
    CallingWay("held_3", "outputs of the last 3 runs held", KEPT, held=3),
    CallingWay("held_all", "all outputs held", KEPT, held=FEW_RUNS, runs=FEW_RUNS),
    CallingWay("buffers", "outputs bound to buffers", "the buffers are beside these", held=0, binding="buffers"),
    CallingWay(
        "device", "outputs bound to `cpu`, fetched", "the binding keeps what each fetch copies", binding="device"
    ),
    SESSIONS,
    CallingWay(
        "threads", "two threads at once", "each run needs its own tensors; how they overlap is chance", threads=2
    ),
    CallingWay("no_pattern", "memory pattern off", "a steady file has none to switch off", has_pattern=False),
    CallingWay("no_arena", "pattern and arena off", NO_ARENA, has_pattern=False, has_arena=False),
    CallingWay("shrinking", "arena shrunk after each run", SHRINKING, shrinks=True),
)
EXTRA_LINES = (
    ("*promised*", "promised_bytes"),
    ("*outputs of one run*", "output_bytes"),
    ("*while loading, compiled*", "load_bytes"),
)


@click.command()
@click.option("--models", type=click.Path(path_type=Path), default=MODELS, help="Folder of the bench of record.")
@click.option("--only", multiple=True, help="Name of a model; may be repeated. All when left out.")
@click.option("--write", is_flag=True, help="Make the table of the rows that are there.")
@shard_option
def main(models: Path, only: Sequence[str], write: bool, shard: Shard) -> None:
    """Measure what is missing, or write the table."""
    if write:
        BENCH.write()
        return
    paths = _paths(models, tuple(only))
    wanted = [(file, way.name) for way in WAYS for file in FILES]
    cases = (Case(path, [(name, *each) for each in wanted]) for name, path in paths)
    BENCH.run(cases, _measured, shard=shard)


def _measured(path: Path, keys: Sequence[Key]) -> Iterator[Row]:
    ways = {way.name: way for way in WAYS}
    return model_rows(keys[0][0], path, [(file, ways[way]) for _, file, way in keys])


def _told(row: Row) -> str:
    return f"{row['model']:16} {row['file']:8} {row['way']:10} {row['ratio']:.2f} x what is promised"


def _paths(models: Path, only: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    yield from ((name, path) for name, path in sample_paths(only) if name in SAMPLES)
    real = ((name, models / f"{name}.onnx") for name in REAL if not only or name in only)
    yield from ((name, path) for name, path in real if path.exists())


def model_rows(name: str, path: Path, wanted: Sequence[tuple[str, CallingWay]]) -> Iterator[Row]:
    """Compile a model, then measure each of its files in each way that is wanted."""
    feeds = pack_all(make_feeds(inputs_of(load(path, DimBindings()).ir), 0))
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out.onnx"
        report = remat_cli.compile(
            path,
            budget=BUDGET,
            output=output,
            force=True,
            intra_op_threads=SETTINGS.intra_op_threads,
            verify="fast",
        )
        assert isinstance(report, OneModelReport)
        if report.output is None or report.exit_code:
            raise click.ClickException(f"{name}: {report.split_obstacle or report.solution.status}")
        plan = remat_cli.read_plan(Path(report.plan or ""))
        once = msgspec.structs.replace(PROMISED, runs=1)
        (outputs,) = run_fresh(measure_caller, CallerJob(str(path.resolve()), feeds, once)).outputs
        files = dict(zip(FILES, (str(path.resolve()), str(output)), strict=True))
        for file, way in wanted:
            seen = run_fresh(measure_caller, CallerJob(files[file], feeds, way, outputs if way.has_buffers else ()))
            same = set(seen.outputs) == {outputs}
            yield {"model": name, "file": file, "outputs_identical": same, **_figures(way, seen, plan)}


def _figures(way: CallingWay, seen: CallerFigures, plan: PlanFile) -> Row:
    process, runs = plan.promise.process, plan.promise.runs
    assert process is not None
    assert runs is not None
    return {
        "way": way.name,
        "load_bytes": seen.load_bytes,
        "run_bytes": seen.run_bytes,
        "peak_bytes": max(seen.load_bytes, *seen.run_bytes),
        "mapped_bytes": seen.mapped_bytes,
        "buffer_bytes": seen.buffer_bytes,
        "output_bytes": sum(output.size_bytes for output in seen.outputs[0]),
        "promised_bytes": process.later_runs_bytes,
        "promised_load_bytes": process.load_peak_bytes,
        "ratio": round(max(seen.run_bytes) / process.later_runs_bytes, 4),
        "is_steady": runs.ballast_bytes is not None,
    }


def table(rows: Sequence[Row]) -> list[str]:
    """What a caller has to expect of each way, in words and in figures."""
    found = {(row["model"], row["file"], row["way"]): row for row in rows}
    models = tuple(dict.fromkeys(row["model"] for row in rows))
    plain = [found.get((model, "compiled", PROMISED.name), {}) for model in models]
    lines = [[way.title, *(_cell(found, model, way) for model in models)] for way in WAYS]
    lines += [[title, *(_mib(row.get(key, 0)) for row in plain)] for title, key in EXTRA_LINES]
    return [
        "# What processes hold that call a model in other ways",
        "",
        "Generated by `make bench-callers` from rows of `bench/callers.py`. MiB of resident memory of a fresh process",
        "above one with an empty session, the inputs and buffers of the caller: the most in any run, of the original",
        f"and of the model compiled to {BUDGET}. The promise is what the plan predicts of later runs while the outputs",
        "of the run before are held; **bold** is more than 3 % and 2 MiB above it. Of the other ways nothing is",
        "promised: what is not bold there was measured, no more. Default options but for what the way says,",
        f"{SETTINGS.intra_op_threads} intra-op thread, {RUNS} runs ({FEW_RUNS} where all outputs are held).",
        "Pages of data files that two sessions map count twice, and are there once.",
        "",
        *_summary(rows),
        "",
        *filter(None, (_sentence(way, found, models) for way in WAYS)),
        "",
        *table_lines(["original → compiled", *models], lines),
    ]


def _summary(rows: Sequence[Row]) -> list[str]:
    """Bits, and which figures only many runs show."""
    same = sum(row["outputs_identical"] for row in rows)
    late = [row for row in rows if row["file"] == "compiled" and _most(row) > max(row["run_bytes"][:FEW_RUNS]) + MIB]
    models = {way.title: [row["model"] for row in late if row["way"] == way.name] for way in WAYS}
    crept = "; ".join(f"{title}: {', '.join(names)}" for title, names in models.items() if names)
    alone = [row for row in rows if row["file"] == "compiled" and row["way"] != SESSIONS.name]
    loads = [[row["load_bytes"] for row in alone if row["model"] == model] for model in {row["model"] for row in alone}]
    spread = max((max(each) - min(each) for each in loads), default=0)
    return [
        f"{len(rows)} rows, the same bits as a plain run of the original in {same}. Compiled models that took over",
        f"1 MiB more after run {FEW_RUNS} than until then: {crept or 'none'}. Loading one,",
        f"in which no way has a part, took up to {_mib(spread)} MiB more in one process than in another, which these",
        "figures contain.",
    ]


def _sentence(way: CallingWay, found: Found, models: Sequence[str]) -> str:
    """What a caller of this way has to expect of compiled models, in words; empty where there are no rows."""
    base = DROPPED if way.has_buffers else PROMISED
    keys = [
        [(model, "compiled", way.name), (model, "compiled", base.name), (model, "original", way.name)]
        for model in models
    ]
    rows = [[found[key] for key in each] for each in keys if found.keys() >= set(each)]
    if not rows:
        return ""
    over = [row["model"] for row, *_ in rows if not is_kept(row)]
    kept = f"Beyond the promise in {', '.join(over)}" if over else "Within the promise in every model"
    less = _span([_most(old) / _most(row) for row, _, old in rows], 1)
    words = _words(way, [(row, other) for row, other, _ in rows])
    return f"- **{way.title}**: {way.reason}; {words}. {kept}. The original takes {less} x as much."


def _words(way: CallingWay, pairs: Sequence[tuple[Row, Row]]) -> str:
    """How much more, or less, than in the way that it is to be compared with."""
    if way == PROMISED:
        return f"{_span([row['ratio'] for row, _ in pairs])} x what was promised"
    more = [_most(row) - _most(base) for row, base in pairs]
    if way.further > 0:
        shares = [count / way.further / row["output_bytes"] for count, (row, _) in zip(more, pairs, strict=True)]
        return f"each further generation adds {_span(shares, 1)} x the size of a run's outputs"
    times = _span([_most(row) / _most(base) for row, base in pairs])
    than = "where they are dropped" if way.has_buffers else "the promised way"
    sizes = [count / MIB for count in more]
    change = f"{_span([-size for size in sizes], 1)} MiB less" if max(sizes) <= 0 else f"{_span(sizes, 1)} MiB more"
    return f"{times} x what it takes {than}, {change}"


def _cell(found: Found, model: str, way: CallingWay) -> str:
    old, new = (found.get((model, file, way.name)) for file in FILES)
    if old is None or new is None:
        return ""
    return f"{_mib(_most(old))} → {_mib(_most(new)) if is_kept(new) else f'**{_mib(_most(new))}**'}"


def is_kept(row: Row) -> bool:
    """Whether no run took more than was promised of the compiled model, but for noise."""
    return _most(row) <= float(row["promised_bytes"]) * ROOM_FACTOR + ROOM_BYTES


def _most(row: Row) -> int:
    most: int = max(row["run_bytes"])
    return most


def _span(values: Sequence[float], digits: int = 2) -> str:
    """The least and the most of some figures."""
    least, most = (f"{round(end, digits) + 0:.{digits}f}" for end in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"


def _mib(count: int) -> str:
    return f"{count / MIB:.1f}"


BENCH = Bench("callers", ("model", "file", "way"), of_lines(table), _told)

if __name__ == "__main__":
    main()
