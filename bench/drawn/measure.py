"""Compile models that were drawn for ranges of sizes, and run them at ten: `python -m bench.drawn.measure`.

A row is appended to `bench/results/drawn.jsonl` as soon as it is there; rows that are there already are left. Models
that did not compile, or broke a promise, stay in `bench/generated/drawn`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import click
import numpy as np
import onnx
import onnxruntime as ort

from bench.bench import Case, Key, Shard, shard_option
from bench.compiling import ROOT, Row
from bench.drawn.drawn import Drawn
from bench.drawn.old_models import draw_old
from bench.drawn.report import BENCH, BUDGET, SEEDS, is_kept, is_late
from bench.drawn.torch_models import draw_torch
from remat_cli.core.values.promises import is_kept as is_promise_kept
from remat_cli.runtime.sessions._ort import pack_all
from remat_cli.runtime.sessions.feeds import GivenFeeds
from remat_cli.runtime.sessions.session import SessionSettings
from remat_cli.runtime.verify.family import see_at_sizes

GENERATED = Path(__file__).resolve().parents[1] / "generated" / "drawn"
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
        row |= {"limit_seconds": limit_seconds, "load": round(os.getloadavg()[0], 1)}
        row |= _compiled(path, drawn, Path(folder) / "out.onnx", limit_seconds)
        row |= {"wrong_bits": [], "above_promise": []}
        if row["exit_code"] == 0:
            row |= _run(path, Path(folder) / "out.onnx", drawn, seed, row["promised_bytes"])
    if is_kept(row) and not is_late(row):
        path.unlink()
    yield row


def _compiled(path: Path, drawn: Drawn, output: Path, limit_seconds: float) -> Row:
    """What `remat compile` says, with a cache of its own."""
    command = [sys.executable, "-m", "remat_cli", "compile", str(path), "--budget", BUDGET, "--format", "json"]
    command += [word for name, size in drawn.ranges.items() for word in ("--dim", f"{name}={size}")]
    command += ["--time-limit", f"{limit_seconds:.0f}s", "--verify", "fast"]
    command += ["--quiet", "--force", "--output", str(output)]
    started = time.monotonic()
    done = subprocess.run(
        ["env", f"REMAT_CACHE_DIR={output.parent / 'cache'}", *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    report: Row = json.loads(done.stdout) if done.stdout.strip() else {}
    solution, seen = report.get("solution") or {}, report.get("verification") or {}
    failures = "; ".join(seen.get("failures") or [])
    cut = "the search was cut" if (report.get("asked") or {}).get("search_was_cut") else ""
    said = done.stderr.strip().splitlines() or [""]
    return {
        "exit_code": done.returncode,
        "seconds": round(time.monotonic() - started, 1),
        "search_seconds": solution.get("seconds"),
        "original_bytes": solution.get("baseline_peak_bytes"),
        "promised_bytes": (seen.get("family") or {}).get("promised_bytes"),
        "overhead_percent": seen.get("measured_overhead_percent"),
        "reason": failures or ("" if done.returncode == 0 else report.get("split_obstacle") or cut or said[-1][:500]),
    }


def _run(path: Path, made: Path, drawn: Drawn, seed: int, promised_bytes: int) -> Row:
    """Bits and peaks at ten sizes, one after the other in one session each."""
    all_sizes = drawn.sequence(np.random.default_rng(seed))
    feeds = [drawn.feeds_at(sizes, at) for at, sizes in enumerate(all_sizes)]
    before, after = (ort.InferenceSession(str(each), providers=["CPUExecutionProvider"]) for each in (path, made))
    wrong = []
    for sizes, fed in zip(all_sizes, feeds, strict=True):
        pairs = zip(before.run(None, fed), after.run(None, fed), strict=True)
        if not all(one.tobytes() == other.tobytes() for one, other in pairs):
            wrong.append(told(sizes))
    given = [GivenFeeds(pack_all(each)) for each in feeds]
    peaks = see_at_sizes(made, given, SessionSettings(exact=False)).peak_bytes
    above = [
        f"{told(sizes)} ({peak:,} of {promised_bytes:,} bytes)"
        for sizes, peak in zip(all_sizes, peaks, strict=True)
        if not is_promise_kept("runs_at_sizes", promised_bytes, peak)
    ]
    return {"wrong_bits": wrong, "above_promise": above}


def told(sizes: Mapping[str, int]) -> str:
    """Sizes as they are typed."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


if __name__ == "__main__":
    main()
