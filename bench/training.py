"""Training steps, compiled and verified at several budgets: samples and networks of the papers.

`make bench-train` measures the rows that are missing. `python -m bench.training --models resnet18 --budgets 50%
--bits equal --again` measures a part anew and prints it. Steps are made by `remat train`, figures come from
`remat compile --format json`; nothing is typed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import click

from bench.bench import Bench, Case, Key
from bench.compiling import (
    EXIT_WORDS,
    ROOT,
    Row,
    compile_row,
    machine,
    mib,
    peak_cells,
    promise_cells,
    table_lines,
    text,
)
from remat_cli.report.solution import EXIT_IMPOSSIBLE
from sample_models.papers import paper_model

BUDGETS = ("70%", "50%", "35%", "25%", "min")
SHARES = BUDGETS[:-1]  # those in the summary
TIME_LIMIT, TIGHT_TIME_LIMIT, TIGHT = "30s", "120s", ("35%", "25%")  # tight plans are made of several searches
BITS: Mapping[str, tuple[str, ...]] = {"equal": (), "close": ("--allow-reassociation",)}
ENTROPY = ("--loss", "cross-entropy")
SQUARES = ("--loss", "mse")


@dataclass(frozen=True)
class Network:
    """A network, how its step is made, and how it is built: a sample model, or one of the papers at a size."""

    train: tuple[str, ...]
    batch: int
    sizes: Mapping[str, Any] | None = None
    flags: tuple[str, ...] = field(default=())


# Sizes are such that activations are most of the memory and that a run takes a second or two on two cores.
CASES: Mapping[str, Network] = {
    "chain": Network(SQUARES, 1),
    "resnet": Network(SQUARES, 1),
    "densenet": Network(SQUARES, 1),
    "inception": Network(SQUARES, 1),
    "unet": Network(SQUARES, 1),
    "attention_unet": Network(SQUARES, 1),
    "transformer": Network(SQUARES, 1),
    "detector": Network((*SQUARES, "--output-name", "features"), 1),
    "vgg16": Network(ENTROPY, 16, {"resolution": 64, "width": 0.125}),
    "mobilenet": Network(ENTROPY, 16, {"resolution": 128, "width": 0.5}),
    "resnet18": Network(ENTROPY, 16, {"resolution": 128, "width": 0.25}),
    "resnet50": Network(ENTROPY, 16, {"resolution": 128, "width": 0.25}),
    "unet_paper": Network(ENTROPY, 4, {"resolution": 128, "width": 0.125}),
    "gpt2": Network(ENTROPY, 2, {"length": 128, "layers": 4, "width": 0.25, "vocabulary": 512}),
    "bert": Network(ENTROPY, 2, {"length": 128, "layers": 4, "width": 0.25, "vocabulary": 512}),
}
HEAD = (
    "model",
    "batch",
    "budget",
    "bits",
    "result",
    "baseline MiB",
    "fixed MiB",
    "budget MiB",
    "predicted MiB",
    "measured MiB",
    "default session MiB",
    "original default MiB",
    "smallest cap MiB",
    "original cap MiB",
    "recomputed",
    "tiles",
    "gates",
    "predicted +%",
    "measured +%",
    "bound +%",
    "bits equal",
    "order kept",
    "seconds",
)


@click.command()
@click.option("--models", default="", help="Comma-separated names; all when empty.")
@click.option("--budgets", default=",".join(BUDGETS), show_default=True, help="Some of these.")
@click.option("--bits", default=",".join(BITS), show_default=True, help="Some of these.")
@click.option("--time-limit", default="", help="For each plan. [30s, and 120s below half]")
@click.option("--again", is_flag=True, help="Measure rows that are there already, too.")
@click.option("--write/--no-write", default=False, help="Keep rows in bench/results/training.jsonl and make the page.")
def main(models: str, budgets: str, bits: str, time_limit: str, again: bool, write: bool) -> None:
    """Run the bench."""
    wanted = tuple(filter(None, models.split(","))) or tuple(CASES)
    with tempfile.TemporaryDirectory() as folder:

        def measured(name: str, keys: Sequence[Key]) -> Iterator[Row]:
            return _rows(name, keys, time_limit, Path(folder))

        cases = [Case(name, [(name, *key) for key in product(budgets.split(","), bits.split(","))]) for name in wanted]
        rows = BENCH.run(cases, measured, again=again, keeps=write)
    if write:
        BENCH.write()
    if any(row["exit_code"] not in (0, 3, 4) for row in rows):
        sys.exit(1)


def _place(row: Row) -> tuple[int, ...]:
    return list(CASES).index(row["model"]), BUDGETS.index(row["budget"]), list(BITS).index(row["bits"])


def _told(row: Row) -> str:
    return f"{row['model']:16} {row['budget']:>4} {row['bits']:5}  exit {row['exit_code']}  {row['message']}"


def _rows(name: str, keys: Sequence[Key], time_limit: str, folder: Path) -> Iterator[Row]:
    case = CASES[name]
    step, facts = make_step(name, folder)
    for _, budget, bits in keys:
        limit = time_limit or (TIGHT_TIME_LIMIT if budget in TIGHT else TIME_LIMIT)
        flags = ("--time-limit", limit, *BITS[bits], *case.flags)
        yield compile_row(name, step, budget, flags, folder) | {
            "bits": bits,
            "batch": case.batch,
            "step": facts,
            "time_limit": limit,
        }


def make_step(name: str, folder: Path) -> tuple[Path, Row]:
    """The training step of a case, and what `remat train` says of it."""
    case = CASES[name]
    source = ROOT / "sample_models" / f"{name}.onnx"
    if case.sizes is not None:
        source = folder / f"{name}.onnx"
        source.write_bytes(paper_model(name.removesuffix("_paper"), **case.sizes).SerializeToString())
    step = folder / f"{name}.train.onnx"
    command = [sys.executable, "-m", "remat_cli", "train", str(source), *case.train, "--batch", str(case.batch)]
    command += ["--output", str(step), "--force", "--quiet", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise click.ClickException(done.stderr.strip())
    facts = json.loads(done.stdout)["facts"]
    return step, {key: facts[key] for key in ("parameters", "forward_ops", "backward_ops", "update_ops")}


def _table(rows: list[Row]) -> str:
    """The results as Markdown: what fits, and one row per run."""
    lines = [
        "# Training steps, compiled and verified",
        "",
        "Generated by `make bench-train`: steps by `remat train` (SGD), figures by `remat compile --format json`.",
        "Bytes are totals: parameters and data (fixed), activations, gradients, new parameters. Verified: order",
        "honoured, peak of live tensors as predicted, a hard cap held under which the unplanned step fails, and",
        "outputs equal to those of the unplanned step bit for bit, or, where `bits` says close, within tolerance:",
        "sums over the batch may be added up tile by tile (`--allow-reassociation`). Searches take 30 s, and 120 s",
        "below half; rows whose seconds are fewer may be older, with 30 s. Networks of the papers are",
        "narrower or see smaller images than in the papers (`bench/training.py` has the sizes). Measured time is",
        "noisy: least of a few runs of both",
        "models in turn. Machine: " + machine(rows) + ".",
        "",
        "## How little memory is enough",
        "",
        "Extra time, predicted, of the plans that were verified at each share of what planning can change.",
        "",
    ]
    lines += [*table_lines(("model", "batch", "bits", *SHARES), list(_summary(rows))), "", _counted(rows), ""]
    lines += ["What is proved, for every order, however often ops run and however they are cut:", ""]
    lines += [*_proofs(rows), "", "## Each run", "", *table_lines(HEAD, [_cells(row) for row in rows])]
    return "\n".join(lines) + "\n"


def _summary(rows: Sequence[Row]) -> Iterator[list[str]]:
    """A line per network and kind of bits: the cost at each budget, or what came out instead."""
    known = {BENCH.key_of(row): row for row in rows}
    for name, bits in product(CASES, BITS):
        found = [known.get((name, budget, bits)) for budget in SHARES]
        proved = _ruled_out(rows, name)
        if any(found):
            cells = (_outcome(row, is_proved=budget in proved) for row, budget in zip(found, SHARES, strict=True))
            yield [name, str(CASES[name].batch), bits, *cells]


def _ruled_out(rows: Sequence[Row], name: str) -> tuple[str, ...]:
    """The budgets that are proved impossible for a network, and with them all that are smaller."""
    proved = [SHARES.index(r["budget"]) for r in rows if r["model"] == name and r["exit_code"] == EXIT_IMPOSSIBLE]
    return SHARES[min(proved) :] if proved else ()


def _proofs(rows: Sequence[Row]) -> Iterator[str]:
    """The largest budget of each network that is proved impossible, and what takes more."""
    for name in CASES:
        for row in [r for r in rows if r["model"] == name and r["budget"] in _ruled_out(rows, name)[:1]][:1]:
            solution, reason = row["report"]["solution"], row["report"].get("split_obstacle") or "no op of it fits"
            allowed, fixed = solution["budget_bytes"], solution["fixed_bytes"]
            yield f"- {name}, {row['budget']} is {allowed:,} bytes: {fixed:,} are fixed, and {reason}"


def _outcome(row: Row | None, *, is_proved: bool) -> str:
    if is_proved:
        return "impossible"
    if row is None:
        return "not run"
    if row["exit_code"]:
        return EXIT_WORDS.get(row["exit_code"], f"exit {row['exit_code']}")
    return f"+{row['report']['verification']['predicted_overhead_percent']:.1f} %"


def _counted(rows: Sequence[Row]) -> str:
    """How many runs were verified, of each kind."""
    told = []
    for bits in BITS:
        ran = [row for row in rows if row["bits"] == bits and row["budget"] in SHARES]
        told.append(f"{sum(not row['exit_code'] for row in ran)} of {len(ran)} runs with {bits} bits")
    either = {row["model"]: set[str]() for row in rows}
    for row in rows:
        if not row["exit_code"] and row["budget"] in SHARES:
            either[row["model"]].add(row["budget"])
    reached = sum(map(len, either.values()))
    proved = sum(len(_ruled_out(rows, name)) for name in either)
    counts = f"{reached} of {len(either) * len(SHARES)}, {proved} are proved impossible"
    return f"Verified: {', '.join(told)}; with one or the other {counts}."


def _cells(row: Row) -> list[str]:
    report = row["report"]
    solution = report.get("solution") or {}
    verification = report.get("verification") or {}
    tiles = [region["tiles"] for region in report.get("regions") or ()]
    return [
        row["model"],
        str(row["batch"]),
        row["budget"],
        row["bits"],
        EXIT_WORDS.get(row["exit_code"], f"exit {row['exit_code']}"),
        mib(solution.get("baseline_peak_bytes")),
        mib(solution.get("fixed_bytes")),
        mib(solution.get("budget_bytes")),
        *peak_cells(verification),
        text(solution.get("recomputed_ops")),
        " ".join(map(str, tiles)),
        text(report.get("gates")),
        *promise_cells(solution, verification),
        text(report.get("seconds")),
    ]


BENCH = Bench("training", ("model", "budget", "bits"), _table, _told, _place)

if __name__ == "__main__":
    main()
