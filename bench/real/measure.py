"""The bench of record: each model once as it is, then compiled to a few budgets, as a user would.

`python -m bench.real.measure` appends a row to `bench/results/real.jsonl` as soon as it is there and skips rows that
are there already, so that it can be stopped and go on later; `bench/real/report.py` makes tables and a picture of the
rows. Models are files `NAME.onnx` in a folder that `bench/real/export.py` fills.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.bench import Case, Key
from bench.compiling import OUTPUT, PLAN, ROOT, Row
from bench.real.report import BENCH, MAX_OVERHEAD, ORIGINAL, ROWS
from remat_cli.onnx_io.read.load import DimBindings, inputs_of, load
from remat_cli.runtime.sessions._ort import Array
from remat_cli.runtime.sessions.feeds import make_feeds
from remat_cli.runtime.sessions.session import SessionSettings, optimize, run_profiled, runtime_version

MODELS = ROOT / "bench" / "generated" / "real"
BUDGETS = ("80%", "50%", "25%", "min")
THREADS = 1
TIMEOUT = 3600
SOLUTION = (
    "status",
    "budget_bytes",
    "fixed_bytes",
    "floor_bytes",
    "floor_with_splitting_bytes",
    "baseline_peak_bytes",
    "peak_bytes",
    "baseline_time",
    "time",
    "overhead_percent",
    "recomputed_ops",
)
VERIFICATION = (
    "predicted_peak_bytes",
    "measured_peak_bytes",
    "measured_peak_default_session_bytes",
    "original_default_session_peak_bytes",
    "later_runs_block_bytes",
    "smallest_cap_bytes",
    "original_smallest_cap_bytes",
    "predicted_overhead_percent",
    "measured_overhead_percent",
    "outputs_identical",
    "order_honoured",
    "within_budget",
    "capped_run_ok",
    "capped_run_bytes",
    "inferences",
    "first_predicted_peak_bytes",
    "learnt",
    "rounds_of_learning",
    "room_bytes",
)


@dataclass(frozen=True)
class Place:
    """Where a bench finds and puts things."""

    models: Path
    threads: int
    timeout: float

    def cache(self, model: str) -> Path:
        """The profile cache of one model; it begins empty with the first compile of the model."""
        return self.models / "cache" / model


@click.command()
@click.option(
    "--models", type=click.Path(path_type=Path), default=MODELS, show_default=True, help="Folder of NAME.onnx."
)
@click.option("--results", type=click.Path(path_type=Path), default=ROWS, show_default=True, help="Rows go here.")
@click.option("--only", multiple=True, help="Name of a model; may be repeated. All when left out.")
@click.option("--budgets", default=",".join(BUDGETS), show_default=True)
@click.option("--threads", default=THREADS, show_default=True, help="Intra-op threads of every session; 0: all cores.")
@click.option("--timeout", default=TIMEOUT, show_default=True, help="Seconds that one compile may take.")
def main(models: Path, results: Path, only: Sequence[str], budgets: str, threads: int, timeout: float) -> None:
    """Measure what is missing."""
    if results.suffix != ".jsonl":
        raise click.UsageError(f"--results {results}: name a file that ends in .jsonl")
    place = Place(models.resolve(), threads, timeout)
    bench = dataclasses.replace(BENCH, name=results.stem, folder=results.parent)
    known = {bench.key_of(row) for row in bench.rows()}

    def measured(path: Path, keys: Sequence[Key]) -> Iterator[Row]:
        if not any(model == path.stem and budget != ORIGINAL for model, budget in known):
            shutil.rmtree(place.cache(path.stem), ignore_errors=True)
        for _, budget in keys:
            yield original_row(place, path) if budget == ORIGINAL else compiled_row(place, path, budget)

    wanted = (ORIGINAL, *budgets.split(","))
    bench.run((Case(p, [(p.stem, budget) for budget in wanted]) for p in model_paths(place, only)), measured)


def model_paths(place: Place, only: Sequence[str]) -> list[Path]:
    """The models that are asked for, which are there."""
    paths = sorted(place.models.glob("*.onnx"))
    unknown = set(only) - {path.stem for path in paths}
    if unknown or not paths:
        raise click.UsageError(f"no {', '.join(sorted(unknown)) or 'models'} in {place.models}: make bench-real-models")
    return [path for path in paths if not only or path.stem in only]


def original_row(place: Place, path: Path) -> Row:
    """The model as it is: live tensors in its own order and in a default session, as the runtime optimises it."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        optimised = Path(folder) / "optimised.onnx"
        optimize(path, optimised, "all", place.threads)
        feeds = _feeds(path)
        seen = run_profiled(optimised, feeds, SessionSettings(exact=True, intra_op_threads=place.threads))
        in_use = _in_use(place, optimised, feeds)
        resident = _residents(place, path, path, Path(folder))
    return {
        **_row(path, ORIGINAL, place),
        "exit_code": 0,
        "live_peak_bytes": seen.peak_live_bytes,
        "in_use_peak_bytes": in_use,
        "file_bytes": path.stat().st_size,
        "ops": len(seen.executed),
        "resident": resident,
        "seconds": round(time.monotonic() - started, 1),
    }


def compiled_row(place: Place, path: Path, budget: str) -> Row:
    """One compile in a process of its own, then the resident memory of what it wrote."""
    cache = place.cache(path.stem)
    row = {**_row(path, budget, place), "cache": "filled" if cache.exists() else "empty"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = time.monotonic()
        code, report, said = _compile(place, path, budget, folder)
        row |= {"exit_code": code, "seconds": round(time.monotonic() - started, 1)}
        row |= {"reason": _reason(place, code, report, said) if code != 0 else "", **_figures(report)}
        if (folder / OUTPUT).exists():
            row["in_use_peak_bytes"] = _in_use(place, folder / OUTPUT, _feeds(path))
            row["resident"] = _residents(place, path, folder / OUTPUT, folder)
    return row


def _row(path: Path, budget: str, place: Place) -> Row:
    machine = f"{platform.machine()}, Python {platform.python_version()}, ONNX Runtime {runtime_version()}"
    return {"model": path.stem, "budget": budget, "threads": place.threads, "machine": machine, "reason": ""}


def _compile(place: Place, path: Path, budget: str, folder: Path) -> tuple[int | None, Row, str]:
    """Exit code (None: stopped), report, and what was said on stderr."""
    settings = folder / "settings.yaml"
    settings.write_text(f"cache_dir: {json.dumps(str(place.cache(path.stem)))}\n")
    command = [sys.executable, "-m", "remat_cli", "compile", str(path), "--budget", budget, "--format", "json"]
    command += ["--quiet", "--force", "--output", str(folder / OUTPUT), "--plan", str(folder / PLAN)]
    command += ["--config", str(settings), "--intra-op-threads", str(place.threads)]
    command += ["--max-overhead", MAX_OVERHEAD] if budget == "min" else []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=place.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, {}, ""
    return process.returncode, json.loads(out) if out.strip() else {}, err.strip()


def _reason(place: Place, code: int | None, report: Row, said: str) -> str:
    """Why there is no verified plan, in the words of the command."""
    if code is None:
        return f"stopped after {place.timeout:.0f} s"
    blockers = ", ".join(f"{tensor['name']} {tensor['bytes'] / 2**20:.1f} MiB" for tensor in report.get("blockers", ()))
    words = (
        said.splitlines()[-1] if said else "",
        report.get("split_obstacle") or "",
        f"{report['blocking_op']} holds {blockers}" if report.get("blocking_op") and blockers else "",
    )
    return "; ".join(filter(None, words)) or "no reason given"


def _figures(report: Row) -> Row:
    """What is kept of a report."""
    solution, verification = report.get("solution") or {}, report.get("verification") or {}
    found: Row = {name: solution.get(name) for name in SOLUTION} | {
        name: verification.get(name) for name in VERIFICATION
    }
    regions = report.get("regions", ())
    found |= {"tiles": [region["tiles"] for region in regions], "gates": report.get("gates")}
    return found | {"notes": verification.get("notes", [])}


def _feeds(path: Path) -> dict[str, Array]:
    return make_feeds(inputs_of(load(path, DimBindings()).ir), 0)


def _in_use(place: Place, model: Path, feeds: dict[str, Array]) -> int:
    """The most of its arena that a default session has in use in its first run, beyond packed weights.

    Chunks count whole, also where a tensor does not fill them.
    """
    seen = run_profiled(model, feeds, SessionSettings(exact=False, intra_op_threads=place.threads))
    return seen.in_use_peak_bytes - seen.baseline_bytes


def _residents(place: Place, source: Path, model: Path, folder: Path) -> dict[str, Any] | None:
    """Figures of a fresh process with default options, and of one without the memory pattern; Linux only."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    feeds = folder / "feeds.npz"
    arrays: dict[str, Any] = dict(_feeds(source))
    np.savez(feeds, **arrays)
    found = {}
    for name, pattern in (("default", "on"), ("without_pattern", "off")):
        command = [sys.executable, "-m", "bench.real.resident", str(model), str(feeds), str(place.threads), pattern]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        found[name] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
