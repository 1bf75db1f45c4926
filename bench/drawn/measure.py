"""Compile models that were drawn for ranges of sizes, and run them at ten: `python -m bench.drawn.measure`.

A row is appended to `bench/results/drawn.jsonl` as soon as it is there; rows that are there already are left. Models
that did not compile, or broke a promise, stay in `bench/generated/drawn`.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import click
import numpy as np
import onnx

from bench.bench import Case, Key, Shard, shard_option
from bench.compiling import OUTPUT, Row
from bench.drawn.compiled import compiled, run_both
from bench.drawn.drawn import Drawn
from bench.drawn.old_models import draw_old
from bench.drawn.report import BENCH, BUDGET, SEEDS, is_kept, is_late
from bench.drawn.torch_models import draw_torch

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "bench" / "generated" / "drawn"
KINDS: Mapping[str, Callable[[int], Drawn]] = {"torch": draw_torch, "old": draw_old}


@click.command()
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="All when left out.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--count", default=SEEDS, show_default=True, help="How many seeds of each kind.")
@click.option("--time-limit", "limit_seconds", default=30.0, show_default=True, help="Seconds of each search.")
@click.option("--again", is_flag=True, help="Also what was measured before.")
@shard_option
def main(kinds: Sequence[str], first: int, count: int, limit_seconds: float, again: bool, shard: Shard) -> None:
    """Measure what is missing, and write the page."""
    seeds = range(first, first + count)
    cases = [Case((kind, seed), [(kind, seed)]) for seed in seeds for kind in kinds or KINDS]
    BENCH.run(cases, partial(measured, limit_seconds=limit_seconds), again=again, shard=shard)
    BENCH.write()


def measured(subject: tuple[str, int], _keys: Sequence[Key], limit_seconds: float) -> Iterator[Row]:
    """The row of one model."""
    kind, seed = subject
    drawn = KINDS[kind](seed)
    GENERATED.mkdir(parents=True, exist_ok=True)
    path = GENERATED / f"{kind}_{seed}.onnx"
    onnx.save(drawn.model, path)
    with tempfile.TemporaryDirectory() as folder:
        row: Row = {"kind": kind, "seed": seed, "families": drawn.families}
        row |= {"ranges": {name: str(each) for name, each in drawn.ranges.items()}, "ops": len(drawn.model.graph.node)}
        row |= {"code": code_state()}
        row |= {"limit_seconds": limit_seconds, "load": round(os.getloadavg()[0], 1)}
        flags = ["--budget", BUDGET, "--time-limit", f"{limit_seconds:.0f}s"]
        flags += [word for name, size in drawn.ranges.items() for word in ("--dim", f"{name}={size}")]
        row |= compiled(path, flags, Path(folder) / OUTPUT, Path(folder) / "cache")
        row |= {"wrong_bits": [], "above_promise": []}
        if row["exit_code"] == 0:
            turns = drawn.sequence(np.random.default_rng(seed))
            row |= run_both(path, Path(folder) / OUTPUT, drawn, turns, row["promised_bytes"])
    if is_kept(row) and not is_late(row):
        path.unlink()
    yield row


def code_state() -> str:
    """The commit whose code is measured, by its time; with a sign where files are changed since."""
    told = ("git", "log", "-1", "--date=format-local:%Y-%m-%d %H:%M", "--format=%cd %h")
    changed = ("git", "status", "--porcelain", "--untracked-files=no", "remat_cli")
    said, dirty = (
        subprocess.run(each, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        for each in (told, changed)
    )
    return f"{said}+" if dirty else said


if __name__ == "__main__":
    main()
