"""Fresh processes that load compiled models with packed weights, beside what was predicted, on several runtimes.

`python -m bench.loading --python PATH` measures with the runtime of that Python (numpy and onnxruntime are enough) too,
once for each time it is given; `--write` makes `bench/results/loading.md` of the rows in `loading.jsonl`. Rows that are
there are not measured again. Each is one file, compiled as a user would, and so many processes that load and run it.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import click
import msgspec

import remat_cli
from bench.bench import Bench, Case, Key, Shard, of_lines, shard_option
from bench.compiling import Row, table_lines
from bench.loading_models import BUDGETS, MODELS
from remat_cli.base.progress import silent
from remat_cli.compiling.prepare import prepare, work_folder
from remat_cli.compiling.process.forecast import model_forecast
from remat_cli.compiling.profile import profile_model
from remat_cli.core.values.resident import ProcessMemory
from remat_cli.onnx_io.read.load import DimBindings, inputs_of, load
from remat_cli.runtime.sessions.session import runtime_version
from remat_cli.settings.settings import load_settings

MEASURE = Path(__file__).with_name("loading_measure.py")
LOADS, RUNS = 20, 4
ALL = "100%"
MIB = 2**20
MORE_SHARE, MORE_BYTES = 0.03, 2 * MIB
LESS_SHARE = 0.15
FIGURES: Mapping[str, str] = MappingProxyType(
    {"load": "loading, at most", "loaded": "once loaded", "first": "first run", "later": "later runs"}
)


@click.command()
@click.option("--python", "pythons", multiple=True, help="A Python with another runtime; may be repeated.")
@click.option("--only", multiple=True, help="Name of a model; may be repeated. All when left out.")
@click.option("--loads", default=LOADS, show_default=True, help="Processes for each file and runtime.")
@click.option("--write", is_flag=True, help="Make the table of the rows that are there.")
@shard_option
def main(pythons: Sequence[str], only: Sequence[str], loads: int, write: bool, shard: Shard) -> None:
    """Measure what is missing, or write the table."""
    if write:
        BENCH.write()
        return
    versions = {_version(python): python for python in (sys.executable, *pythons)}

    def measured(name: str, keys: Sequence[Key]) -> Iterator[Row]:
        return _rows(name, {version: versions[version] for _, version in keys}, loads)

    cases = (Case(name, [(name, version) for version in versions]) for name in only or MODELS)
    BENCH.run(cases, measured, shard=shard)


def _told(row: Row) -> str:
    return f"{row['model']:26} {row['runtime']:8} {', '.join(misses(row))}"


def _rows(name: str, pythons: Mapping[str, str], loads: int) -> Iterator[Row]:
    """Compile one model, and load it on each runtime."""
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder) / "model.onnx", Path(folder) / "out.onnx"
        MODELS[name](source)
        budget = BUDGETS.get(name, ALL)
        report = remat_cli.compile(source, budget=budget, output=output, force=True, intra_op_threads=1, verify="fast")
        if report.plan is None or report.exit_code:
            raise click.ClickException(f"{name} at {budget}: {report.solution.status}")
        promised = remat_cli.read_plan(Path(report.plan)).promise.process
        assert promised is not None
        shapes = {port.name: port.shape for port in inputs_of(load(source, DimBindings()).ir)}
        for version, python in pythons.items():
            yield {
                "model": name,
                "budget": budget,
                "runtime": version,
                "libc": " ".join(platform.libc_ver()),
                "predicted": _figures(promised if version == runtime_version() else predicted(output, version)),
                "measured": [_measured(python, output, shapes) for _ in range(loads)],
                "original": [_measured(python, source, shapes) for _ in range(max(1, loads // 5))],
            }


def predicted(model: Path, version: str) -> ProcessMemory:
    """What `remat inspect` would say of a file where this version is installed."""
    config = load_settings({})
    with work_folder(model, config.work_dir) as work:
        prepared = prepare(model, config.conditions, work, silent())
        profile = profile_model(prepared, config.conditions, silent()).profile
        return model_forecast(prepared, profile, msgspec.structs.replace(prepared.runtime, version=version)).process


def _figures(memory: ProcessMemory) -> dict[str, int]:
    return {
        "load": memory.load_peak_bytes,
        "loaded": memory.loaded_bytes,
        "first": memory.first_run_bytes,
        "later": memory.later_runs_bytes,
    }


def _version(python: str) -> str:
    return _said(python, "-c", "import onnxruntime; print(onnxruntime.__version__)").strip()


def _measured(python: str, model: Path, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """One fresh process."""
    found = json.loads(_said(python, str(MEASURE), str(model), str(RUNS), json.dumps(shapes)))
    return {figure: int(found[figure]) for figure in FIGURES}


def _said(python: str, *arguments: str) -> str:
    done = subprocess.run([python, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{python}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def misses(row: Row) -> tuple[str, ...]:
    """Which figures were measured above the prediction, or predicted too far above the worst process."""
    found = []
    for figure, title in FIGURES.items():
        worst, predicted_bytes = _worst(row, figure), row["predicted"][figure]
        if worst > predicted_bytes * (1 + MORE_SHARE) + MORE_BYTES:
            found.append(f"{title}: {_mib(worst)} for {_mib(predicted_bytes)}")
        elif predicted_bytes > worst * (1 + LESS_SHARE):
            found.append(f"{title}: only {_mib(worst)} for {_mib(predicted_bytes)}")
    return tuple(found)


def table(rows: Sequence[Row]) -> list[str]:
    """Each file on each runtime, then what was not as predicted."""
    missed = [(row, text) for row in rows for text in misses(row)]
    notes = [f"- {row['model']}, {row['runtime']}: {text}" for row, text in missed] or ["None."]
    loads = sorted({len(row["measured"]) for row in rows})
    return [
        "# What processes hold that load weights which kernels pack",
        "",
        "Generated by `make bench-loading`. MiB of resident memory of a fresh process above one with a tiny session:",
        f"{' or '.join(map(str, loads))} processes a row, the least and the most of them, beside what was predicted.",
        "The last column is the original's, most of all. One intra-op thread, outputs held until the next run ended,",
        f"{', '.join(sorted({row['libc'] for row in rows}))}. Files have packed copies and primers.",
        "",
        *table_lines(["model", "budget", "runtime", *FIGURES.values(), "original"], [_cells(row) for row in rows]),
        "",
        f"Above the prediction by more than {MORE_SHARE:.0%} and {_mib(MORE_BYTES)} MiB, or below it by more than",
        f"{LESS_SHARE:.0%} in every process:",
        "",
        *notes,
    ]


def _cells(row: Row) -> list[str]:
    original = max(max(each.values()) for each in row["original"])
    return [row["model"], row["budget"], row["runtime"], *(_cell(row, figure) for figure in FIGURES), _mib(original)]


def _cell(row: Row, figure: str) -> str:
    found = [each[figure] for each in row["measured"]]
    return f"{_mib(min(found))} to {_mib(max(found))} ({_mib(row['predicted'][figure])})"


def _worst(row: Row, figure: str) -> int:
    return max(int(each[figure]) for each in row["measured"])


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.1f}"


BENCH = Bench("loading", ("model", "runtime"), of_lines(table), _told)

if __name__ == "__main__":
    main()
