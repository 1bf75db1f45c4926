"""How far splitting ops goes: every sample and zoo model and two of its own at a few budgets, against the targets.

`make bench-split` runs all of it. `python -m bench.splitting --models unet,squeezenet --budgets 50%` runs a part and
prints it. Figures come from `remat compile --format json`, times from running both models in turn afterwards.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import onnx

from bench.bench import Bench, Case, Key, read_rows
from bench.compiling import (
    EXIT_WORDS,
    OUTPUT,
    Row,
    compile_row,
    machine,
    mib,
    percent,
    sample_paths,
    table_lines,
    text,
    zoo_paths,
)
from bench.split_targets import (
    ENCODER,
    EXPERIMENT,
    EXPERIMENT_MIB,
    SETTLED,
    TIMED,
    is_settled,
    measured_overhead,
    measured_share,
    predicted_share,
    targets,
)
from remat_cli.onnx_io.read.load import DimBindings, inputs_of, load
from remat_cli.runtime.measure.turns import TimeJob, time_models
from remat_cli.runtime.sessions._ort import pack_all, run_fresh
from remat_cli.runtime.sessions.feeds import make_feeds
from remat_cli.runtime.sessions.session import SessionSettings
from sample_models.make_models import Builder, encoder_layer

BUDGETS = ("min", "50%", "25%")
MORE_BUDGETS = {EXPERIMENT: (f"{EXPERIMENT_MIB}MiB",), ENCODER: ("30%",)}
FLAGS = ("--max-overhead", "10%")
EXPERIMENT_THREADS = 1
LENGTH, WIDTH, HEADS, LAYERS = 1024, 256, 8, 2
LEAST_PROCESSES, MOST_PROCESSES = 3, 9  # each times both models in turn; more of them while times do not settle
PROCESS_NS = 3_000_000_000  # about as long as one of them runs the models
LEAST_ROUNDS, MOST_ROUNDS = 15, 200
HEAD = (
    "model",
    "budget",
    "result",
    "baseline MiB",
    "fixed MiB",
    "predicted share %",
    "measured share %",
    "tiles",
    "regions",
    "recomputed",
    "predicted +%",
    "measured +%",
    "bits equal",
    "cache",
    "seconds",
)
YES_NO = {True: "yes", False: "NO", None: ""}


@dataclass(frozen=True)
class Place:
    """Where one model is compiled: `cache` is the folder of its profile cache."""

    folder: Path
    cache: Path

    def flags(self, model: str, budget: str) -> tuple[str, ...]:
        """What `remat compile` is told besides the budget."""
        settings = self.folder / "settings.yaml"
        settings.write_text(f"cache_dir: {json.dumps(str(self.cache))}\n")
        own = ("--intra-op-threads", str(_threads(model))) if _threads(model) else ()
        scope = ("--budget-scope", "activations") if model == EXPERIMENT else ()
        most = FLAGS if budget == "min" else ()
        return (*most, *own, *scope, "--config", str(settings), "--work-dir", str(self.folder))


@click.command()
@click.option("--models", default="", help="Comma-separated names; all when empty.")
@click.option("--budgets", default="", help="Comma-separated; each model's own when empty.")
@click.option("--write/--no-write", default=False, help="Write bench/results/splitting.{jsonl,md}.")
@click.option("--from-rows", type=click.Path(exists=True, path_type=Path), help="Run nothing: a .jsonl of before.")
def main(models: str, budgets: str, write: bool, from_rows: Path | None) -> None:
    """Run the bench."""
    if from_rows is not None:
        rows = read_rows(from_rows)
        click.echo(_document(rows))
    else:
        rows = BENCH.renew(_cases(_names(models), _names(budgets)), _measured, keeps=write)
    if any(row["exit_code"] not in (0, 3, 4) for row in rows):
        sys.exit(1)


def experiment() -> onnx.ModelProto:
    """Two convolutions and a pool at full image size: whole ops cannot save anything here."""
    b = Builder(EXPERIMENT, (1, 3, 224, 224))
    return b.build(y=b.pool(b.conv_relu(b.conv_relu("x", 64), 64)))


def encoder() -> onnx.ModelProto:
    """Layers of a transformer encoder over a long sequence, spelt out as exporters do."""
    shape = (1, LENGTH, WIDTH)
    b, x = Builder(ENCODER, shape), "x"
    for _ in range(LAYERS):
        x = encoder_layer(b, x, shape, HEADS)
    return b.build(hidden_states=x)


OWN: dict[str, Callable[[], onnx.ModelProto]] = {EXPERIMENT: experiment, ENCODER: encoder}


def _names(option: str) -> tuple[str, ...]:
    return tuple(filter(None, option.split(",")))


def _threads(model: str) -> int:
    return EXPERIMENT_THREADS if model == EXPERIMENT else 0


def _models(folder: Path, wanted: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    for name, build in OWN.items():
        if not wanted or name in wanted:
            path = folder / f"{name}.onnx"
            onnx.save(build(), path)
            yield name, path
    yield from sample_paths(wanted)
    yield from zoo_paths(folder, wanted)


def _measured(subject: tuple[Path, Place], keys: Sequence[Key]) -> Iterator[Row]:
    return (_row(name, subject[0], budget, subject[1], again) for name, budget, again in keys)


def _cases(wanted: tuple[str, ...], budgets: tuple[str, ...]) -> Iterator[Case[tuple[Path, Place]]]:
    """Models and budgets; every model begins with an empty cache, the timed one at every budget.

    The model of which compile time is a target is compiled twice at every budget.
    """
    with tempfile.TemporaryDirectory() as root:
        for name, path in _models(Path(root), wanted):
            for number, budget in enumerate(budgets or (*BUDGETS, *MORE_BUDGETS.get(name, ()))):
                cache = f"{name}_{number}" if name == TIMED else name
                with tempfile.TemporaryDirectory() as folder:
                    keys = [(name, budget, again) for again in ((False, True) if name == TIMED else (False,))]
                    yield Case((path, Place(Path(folder), Path(root) / "caches" / cache)), keys)


def _row(name: str, path: Path, budget: str, place: Place, again: bool) -> Row:
    """One compile and, unless the same was timed before, the times of both models: (original, new) per process."""
    cache = "filled" if place.cache.exists() else "empty"
    row = compile_row(name, path, budget, place.flags(name, budget), place.folder)
    is_timed = row["exit_code"] == 0 and not again
    times = _times(path, place.folder, row["report"]["solution"]["time"], _threads(name)) if is_timed else []
    return {**row, "again": again, "cache": cache, "times_ns": times}


def _times(source: Path, folder: Path, run_ns: int, threads: int) -> list[tuple[int, int]]:
    """Least time of each model per process, in default sessions; in each both run in turn, on the same inputs.

    Whether there are more processes depends on how well times agree, not on what they say.
    """
    job = TimeJob(
        models=(str(folder / "reference.onnx"), str(folder / OUTPUT)),
        feeds=pack_all(make_feeds(inputs_of(load(source, DimBindings()).ir), 0)),
        settings=SessionSettings(exact=False, intra_op_threads=threads),
        rounds=max(LEAST_ROUNDS, min(MOST_ROUNDS, PROCESS_NS // (2 * max(1, run_ns)))),
    )
    times: list[tuple[int, int]] = []
    while len(times) < LEAST_PROCESSES or (len(times) < MOST_PROCESSES and not is_settled(times)):
        times.append(run_fresh(time_models, job))
    return times


def _line(row: Row) -> str:
    share, extra = percent(measured_share(row)), percent(measured_overhead(row))
    again = " again" if row["again"] else ""
    outcome = f"exit {row['exit_code']}  share {share} %  time {extra} %  {text(row['report'].get('seconds'))} s"
    return f"{row['model']:18} {row['budget']:>6}{again}  {outcome}  {row['message']}"


def _document(rows: Sequence[Row]) -> str:
    """The results as Markdown: one line per run, reasons, targets."""
    lines = [
        "# Splitting: how small, how slow",
        "",
        "Generated by `make bench-split` from `remat compile --format json`, `min` with `--max-overhead 10%`.",
        "A share is a peak as a percentage of the baseline's, both without the fixed part (weights and inputs), which",
        "no plan changes.",
        "Measured share: first run of a default session, default options, kernel workspace included. Time measured:",
        f"both models in default sessions of one process, in turn; least of all runs of {LEAST_PROCESSES} to",
        f"{MOST_PROCESSES} processes, until the least times agree to {100 * SETTLED - 100:.0f} %; ~ where they do not.",
        f"`{EXPERIMENT}` runs on one thread and its budget leaves the fixed part out. Seconds are those of the whole",
        f"compile, verification included; every model begins with an empty profile cache. Machine: {machine(rows)}.",
        "",
        *table_lines(HEAD, [_cells(row) for row in rows]),
        *_reasons(rows),
        "",
        "## Targets",
        "",
        *table_lines(("target", "found", "met"), [(t.wanted, t.found, YES_NO[t.is_met]) for t in targets(rows)]),
    ]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> list[str]:
    report = row["report"]
    solution, verification = report.get("solution") or {}, report.get("verification") or {}
    regions = report.get("regions", ())
    return [
        row["model"],
        row["budget"],
        EXIT_WORDS.get(row["exit_code"], f"exit {row['exit_code']}"),
        mib(solution.get("baseline_peak_bytes")),
        mib(solution.get("fixed_bytes")),
        percent(predicted_share(row)),
        percent(measured_share(row)),
        ", ".join(str(region["tiles"]) for region in regions),
        text(len(regions)),
        text(solution.get("recomputed_ops")),
        percent(solution.get("overhead_percent")),
        ("" if is_settled(row["times_ns"]) else "~") * bool(row["times_ns"]) + percent(measured_overhead(row)),
        text(verification.get("outputs_identical")),
        row["cache"],
        text(report.get("seconds")),
    ]


def _reasons(rows: Sequence[Row]) -> Iterator[str]:
    """Why a budget was not met, in the words of the message."""
    failed = [row for row in rows if row["exit_code"] != 0]
    if failed:
        yield from ("", "## Not met, and why", "")
    for row in failed:
        yield f"- {row['model']} at {row['budget']}: {_reason(row)}"


def _reason(row: Row) -> str:
    """What splitting says, else what stopped the command, else what the floor of whole ops consists of."""
    report = row["report"]
    if report.get("split_obstacle") or row["message"]:
        return str(report.get("split_obstacle") or row["message"])
    held = ", ".join(f"{tensor['name']} {mib(tensor['bytes'])} MiB" for tensor in report.get("blockers", ()))
    return f"{report['blocking_op']} holds {held}" if held else "no reason given"


BENCH = Bench("splitting", ("model", "budget", "again"), _document, _line)

if __name__ == "__main__":
    main()
