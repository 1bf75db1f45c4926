"""What processes hold: samples, zoo and models of the bench of record, as they are and compiled to 100 %, 50 %, min.

`python -m bench.process` appends a row to `bench/results/process.jsonl` as soon as it is there and skips rows that are
there already; `--write` makes `bench/results/process.md` of them. Each row is one compile as a user would run it, and
processes that load and run both models five times, outputs held.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

import remat_cli
from bench.bench import Bench, Case, Key, Shard, of_lines, shard_option
from bench.compiling import Row, sample_paths, zoo_paths
from bench.real.measure import MODELS
from remat_cli.base.errors import RematError
from remat_cli.compiling.process.resident import limited_pair
from remat_cli.core.values.resident import LimitedRuns
from remat_cli.onnx_io.read.load import DimBindings, inputs_of, load
from remat_cli.report.compile import OneModelReport
from remat_cli.runtime.observe.hard_limit import HardLimitJob
from remat_cli.runtime.observe.resident import ResidentFigures, ResidentJob, measure_resident
from remat_cli.runtime.sessions._ort import PackedArray, pack_all, run_fresh
from remat_cli.runtime.sessions.feeds import make_feeds
from remat_cli.runtime.sessions.session import SessionSettings

BUDGETS = ("100%", "50%", "min")
RUNS, LIMITED_RUNS = 5, 20
THREADS = 1
SETTINGS = SessionSettings(exact=False, intra_op_threads=THREADS)
MIB = 2**20
STEADY_FACTOR, STEADY_ROOM_MIB = 1.15, 4
PREDICTED_SHARE, PREDICTED_ROOM_MIB = 0.03, 2
COLUMNS = (
    *("model", "budget", "load", "was", "run 1", "was", "later", "was"),
    *("predicted", "mapped", "live", "ballast", "run ms", "was"),
)


@click.command()
@click.option("--models", type=click.Path(path_type=Path), default=MODELS, help="Folder of the bench of record.")
@click.option("--only", multiple=True, help="Name of a model; may be repeated. All when left out.")
@click.option("--budgets", default=",".join(BUDGETS), show_default=True)
@click.option("--write", is_flag=True, help="Make the table of the rows that are there.")
@shard_option
def main(models: Path, only: Sequence[str], budgets: str, write: bool, shard: Shard) -> None:
    """Measure what is missing, or write the table."""
    if write:
        BENCH.write()
        return
    with tempfile.TemporaryDirectory() as folder:

        def measured(path: Path, keys: Sequence[Key]) -> Iterator[Row]:
            return (measured_row(name, path, budget, Path(folder)) for name, budget in keys)

        paths = _paths(models, tuple(only), Path(folder))
        cases = (Case(path, [(name, budget) for budget in budgets.split(",")]) for name, path in paths)
        BENCH.run(cases, measured, shard=shard)


def _told(row: Row) -> str:
    return f"{row['model']:22} {row['budget']:>5}  {row['reason'] or 'measured'}"


def _paths(models: Path, only: tuple[str, ...], folder: Path) -> Iterator[tuple[str, Path]]:
    yield from sample_paths(only)
    yield from zoo_paths(folder, only)
    yield from ((path.stem, path) for path in sorted(models.glob("*.onnx")) if not only or path.stem in only)


def measured_row(name: str, path: Path, budget: str, folder: Path) -> Row:
    """One compile, and what processes hold that run the model before and after."""
    output = folder / "out.onnx"
    original = _seen(path)
    row: Row = {"model": name, "budget": budget, "reason": "", "original": figures(original)}
    try:
        report = remat_cli.compile(
            path,
            budget=budget,
            output=output,
            force=True,
            max_overhead="10%" if budget == "min" else None,
            intra_op_threads=THREADS,
            verify="fast",
        )
    except RematError as error:
        return row | {"reason": str(error)}
    assert isinstance(report, OneModelReport)
    if report.output is None or report.exit_code:
        return row | {"reason": report.split_obstacle or report.solution.status}
    plan = remat_cli.read_plan(Path(report.plan or ""))
    promise, seen = plan.promise, report.verification
    assert promise.process is not None
    assert promise.runs is not None
    kept = {tensor.name: tensor.size_bytes for tensor in plan.graph.tensors if tensor.kept}
    compiled = _seen(output)
    proof = None if budget == BUDGETS[0] else limited(path, output, [[original], [compiled]])
    return row | {
        "limited": None if proof is None else msgspec.to_builtins(proof),
        "compiled": figures(compiled),
        "predicted": {
            "load_peak": promise.process.load_peak_bytes,
            "first_run": promise.process.first_run_bytes,
            "later_runs": promise.process.later_runs_bytes,
        },
        "ballast_bytes": promise.runs.ballast_bytes,
        "live_bytes": promise.peak_bytes - promise.fixed_bytes,
        "output_bytes": sum(kept.values()),
        "weight_bytes": plan.profile.weight_bytes,
        "outputs_identical": seen is not None and seen.outputs_identical,
        "order_honoured": seen is not None and seen.order_honoured,
    }


def figures(seen: ResidentFigures) -> Row:
    """What a process holds that loads a model and runs it."""
    return {
        "load_peak": seen.load_peak_bytes.total_bytes,
        "loaded": seen.loaded_bytes.total_bytes,
        "first_run": seen.run_peak_bytes[0].total_bytes,
        "later_runs": max(peak.total_bytes for peak in seen.run_peak_bytes[1:]),
        "anonymous": max(peak.anonymous_bytes for peak in seen.run_peak_bytes),
        "mapped": seen.after_bytes.mapped_bytes,
        "load_seconds": round(seen.load_seconds, 4),
        "run_seconds": min(seen.run_seconds[1:]),
    }


def limited(original: Path, output: Path, seen: Sequence[Sequence[ResidentFigures]]) -> LimitedRuns | None:
    """Both models under a hard limit of the system, between what their processes need."""
    return limited_pair((original, output), seen, HardLimitJob("", _feeds(original), 0, SETTINGS, LIMITED_RUNS))


def _seen(path: Path) -> ResidentFigures:
    return run_fresh(measure_resident, ResidentJob(str(path.resolve()), _feeds(path), SETTINGS, RUNS))


def _feeds(path: Path) -> tuple[PackedArray, ...]:
    return pack_all(make_feeds(inputs_of(load(path, DimBindings()).ir), 0))


def table(rows: Sequence[Row]) -> list[str]:
    """The rows, and what they say about each promise."""
    planned = [row for row in rows if "compiled" in row]
    return [
        "# What processes hold",
        "",
        "Generated by `make bench-process` from rows of `bench/process.py`. MiB of resident memory of a fresh",
        "process above one with an empty session and the inputs: while the model is loaded, in the first run, and at",
        "most in runs 2 to 5 with the outputs of the run before held; *mapped* of these are clean pages of the data",
        f"file. Default options, {THREADS} intra-op thread. *ballast*: `-` where the file is not in the steady form.",
        "",
        *_summary(planned),
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{' --- |' * len(COLUMNS)}",
        *map(_line, planned),
        "",
        *(f"- {row['model']} at {row['budget']}: {row['reason']}" for row in rows if "compiled" not in row),
        *_proofs([row for row in planned if row.get("limited")]),
    ]


def _proofs(rows: Sequence[Row]) -> list[str]:
    """What happened under a hard limit of the system."""
    apart = [row for row in rows if row["limited"]["ours"] and not row["limited"]["original"]]
    return [
        "",
        "## Under a hard limit",
        "",
        f"Both models in processes of their own under one limit, {LIMITED_RUNS} runs each: the compiled one got to the",
        f"end and the original did not in {len(apart)} of {len(rows)} rows, of "
        f"{len({row['model'] for row in apart})} models.",
        "",
        "| model | budget | limit | MiB | compiled | original |",
        "|---|---|---|---|---|---|",
        *(_proof(row) for row in rows),
    ]


def _proof(row: Row) -> str:
    seen = row["limited"]
    compiled = f"{seen['runs']} runs" if seen["ours"] else "died"
    original = f"{seen['runs']} runs" if seen["original"] else _shortly(seen["ended"])
    ends = (seen["kind"], _mib(seen["limit_bytes"]), compiled, original)
    return f"| {' | '.join((row['model'], row['budget'], *ends))} |"


def _shortly(ended: str) -> str:
    """How a process ended, without what the runtime says of where."""
    return "out of memory" if "allocate" in ended else ended


def _line(row: Row) -> str:
    new, old = row["compiled"], row["original"]
    pairs = [_mib(figure[key]) for key in ("load_peak", "first_run", "later_runs") for figure in (new, old)]
    ballast = "-" if row["ballast_bytes"] is None else " + ".join(map(_mib, row["ballast_bytes"])) or "0"
    ends = [_mib(row["predicted"]["later_runs"]), _mib(new["mapped"]), _mib(row["live_bytes"]), ballast]
    times = [f"{1000 * figure['run_seconds']:.1f}" for figure in (new, old)]
    return f"| {' | '.join((row['model'], row['budget'], *pairs, *ends, *times))} |"


def _mib(count: int) -> str:
    return f"{count / MIB:.1f}"


def _summary(rows: Sequence[Row]) -> list[str]:
    """How many rows keep each promise."""
    if not rows:
        return []
    exact = [row for row in rows if row["outputs_identical"] and row["order_honoured"]]
    near = [row for row in rows if _is_near(row["predicted"]["later_runs"], row["compiled"]["later_runs"])]
    steady = [row for row in rows if row["compiled"]["later_runs"] <= _most(row)]
    passed = [row for row in rows if row["budget"] == "100%"]
    heavy = [row for row in passed if row["original"]["later_runs"] > 2 * row["original"]["loaded"]]
    worse = [row["model"] for row in passed if row["compiled"]["later_runs"] > row["original"]["later_runs"] + MIB]
    lines = [
        f"- {len(rows)} rows: same bits and order kept in {len(exact)}",
        f"- later runs within {PREDICTED_SHARE:.0%} + {PREDICTED_ROOM_MIB} MiB of predicted: {len(near)}",
        f"- later runs at most {STEADY_FACTOR} x (live + outputs + weights) + {STEADY_ROOM_MIB} MiB: {len(steady)}",
    ]
    if heavy:
        less = 1 - math.exp(sum(math.log(_ratio(row)) for row in heavy) / len(heavy))
        lines.append(
            f"- passed through (100 %), {len(heavy)} models whose runs dominate: {less:.0%} less in later runs"
        )
        lines.append(f"- passed through and worse by more than 1 MiB: {', '.join(worse) or 'none'}")
    return lines


def _is_near(predicted: int, measured: int) -> bool:
    return abs(predicted - measured) <= PREDICTED_SHARE * measured + PREDICTED_ROOM_MIB * MIB


def _most(row: Row) -> float:
    return STEADY_FACTOR * float(row["live_bytes"] + row["output_bytes"] + row["weight_bytes"]) + STEADY_ROOM_MIB * MIB


def _ratio(row: Row) -> float:
    later: list[int] = [row[key]["later_runs"] for key in ("compiled", "original")]
    return later[0] / later[1]


BENCH = Bench("process", ("model", "budget"), of_lines(table), _told)

if __name__ == "__main__":
    main()
