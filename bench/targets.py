"""Files that are compiled here, run on other processors: the original's bits there, or a refusal that says why.

`python -m bench.targets` compiles samples, zoo and small models of the bench of record, runs each file under emulators
and on this processor, appends a row to `bench/results/targets.jsonl` as soon as it is there and skips rows that are
there already; `--write` makes `bench/results/targets.md` of them. Emulation shows bits and refusals, not times.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

import remat_cli
from bench.bench import Bench, Case, Key, Shard, of_lines, shard_option
from bench.compiling import ROOT, Row, sample_paths, table_lines, zoo_paths
from remat_cli.base.errors import RematError
from remat_cli.onnx_io.read.load import DimBindings, inputs_of, load
from remat_cli.runtime.sessions.feeds import make_feeds

PROBE = Path(__file__).with_name("targets_probe.py")
BUILT = ROOT / "build" / "targets"
MODELS = BUILT / "models"  # those of `bench/targets_models.py`
BUDGETS = ("60%", "80%", "100%")  # the first with a plan
ENCODER = ROOT / "examples" / "encoder.onnx"
RANGES: dict[str, dict[str, int | str]] = {"encoder": {"batch": "1..4", "seq": "1..256"}}
SIZES = {"encoder": {"batch": 2, "seq": 77}}  # that files for ranges are run at
GUARD = "made_for_"  # how names of nodes begin that refuse a processor
LONGEST_SECONDS = 3600.0
INTERPRETER = os.path.realpath(sys.executable)  # an emulator runs programs, not scripts that start them
HERE = "here"


@dataclass(frozen=True)
class Processor:
    """A processor, how a Python is started on it, and what must be there for that."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()

    @property
    def missing(self) -> str | None:
        """The first thing that is not here."""
        return next((each for each in self.needs if not (shutil.which(each) or Path(each).exists())), None)


def x86(cpu: str) -> Processor:
    """An x86-64 processor that an emulator plays, with the packages of this environment."""
    emulator = "qemu-x86_64-static"
    environment = {"PYTHONPATH": sysconfig.get_path("platlib"), "OPENBLAS_CORETYPE": cpu}
    return Processor(cpu.lower(), (emulator, "-cpu", cpu, INTERPRETER), environment, (emulator,))


def arm64(cpu: str = "cortex-a76") -> Processor:
    """An ARM processor that an emulator plays, with the Python and packages of `make setup-targets`."""
    emulator, root = "qemu-aarch64-static", BUILT / "arm64" / "root"
    environment = {"PYTHONHOME": str(root / "usr"), "PYTHONPATH": str(BUILT / "arm64" / "site")}
    command = (emulator, "-cpu", cpu, "-L", str(root), str(root / "usr" / "bin" / "python3.11"))
    return Processor(f"arm64 {cpu}", command, environment, (emulator, str(root / "usr" / "bin" / "python3.11")))


PROCESSORS = (Processor(HERE, (sys.executable,)), x86("Haswell"), x86("Nehalem"), arm64())


@click.command()
@click.option("--only", multiple=True, help="Name of a model; may be repeated. All when left out.")
@click.option("--processor", "names", multiple=True, help="Name of a processor; may be repeated. All when left out.")
@click.option("--write", is_flag=True, help="Make the table of the rows that are there.")
@shard_option
def main(only: Sequence[str], names: Sequence[str], write: bool, shard: Shard) -> None:
    """Run what is missing, or write the table."""
    if write:
        BENCH.write()
        return
    processors = [each for each in PROCESSORS if not names or each.name in names]
    for each in processors:
        if each.missing is not None:
            click.echo(f"left out: {each.name}, as {each.missing} is not here: make setup-targets")
    there = {each.name: each for each in processors if each.missing is None}
    with tempfile.TemporaryDirectory() as folder:

        def measured(path: Path, keys: Sequence[Key]) -> Iterator[Row]:
            return rows(keys[0][0], path, [there[processor] for _, processor in keys], Path(folder))

        paths = _paths(tuple(only), Path(folder))
        BENCH.run((Case(path, [(name, each) for each in there]) for name, path in paths), measured, shard=shard)


def _told(row: Row) -> str:
    return f"{row['model']:24} {row['processor']:18} {row['outcome']}"


def _paths(only: tuple[str, ...], folder: Path) -> Iterator[tuple[str, Path]]:
    yield from sample_paths(only)
    yield from ((path.stem, path) for path in (ENCODER,) if not only or path.stem in only)
    yield from ((path.stem, path) for path in sorted(MODELS.glob("*.onnx")) if not only or path.stem in only)
    yield from zoo_paths(folder, only)


def rows(name: str, path: Path, processors: Sequence[Processor], folder: Path) -> Iterator[Row]:
    """One compile, and what became of its file on each processor."""
    output, feeds = folder / f"{name}.compiled.onnx", folder / "feeds.npz"
    budget = compiled(path, output, RANGES.get(name))
    if budget is None:
        yield {"model": name, "processor": HERE, "outcome": "not compiled"}
        return
    source = load(path, DimBindings(SIZES.get(name, {}), {}))
    arrays: dict[str, Any] = dict(make_feeds(inputs_of(source.ir), 0))
    np.savez(feeds, **arrays)
    for processor in processors:
        yield {**row(name, processor, path, output, feeds), "budget": budget}


def compiled(path: Path, output: Path, ranges: dict[str, int | str] | None) -> str | None:
    """The smallest of the budgets for which there is a plan, written; None where there is none for any."""
    for budget in BUDGETS:
        try:
            report = remat_cli.compile(path, budget=budget, dim=ranges, output=output, verify="off", force=True)
        except RematError as error:
            click.echo(f"{path.stem}: {error}")
            return None
        if report.output is not None:
            return budget
    return None


def row(name: str, processor: Processor, original: Path, compiled: Path, feeds: Path) -> Row:
    """What became of a file on a processor."""
    found = probed(processor, original, compiled, feeds)
    kept: Row = {"model": name, "processor": processor.name, "machine": platform.machine(), **found}
    return {**kept, "outcome": outcome(found)}


def probed(processor: Processor, original: Path, compiled: Path, feeds: Path) -> Row:
    """What the probe prints there; outputs of the original are kept, as emulators are slow."""
    outputs = BUILT / "outputs" / f"{_digest(original)}.{processor.name.replace(' ', '-')}.npz"
    outputs.parent.mkdir(parents=True, exist_ok=True)
    command = [*processor.command, str(PROBE), *map(str, (feeds, original, outputs, compiled))]
    settings = (f"{name}={value}" for name, value in ({"ORT_DISABLE_TELEMETRY": "1"} | processor.environment).items())
    try:
        done = subprocess.run(
            ["env", *settings, *command], capture_output=True, text=True, check=False, timeout=LONGEST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"died": f"it took more than {LONGEST_SECONDS:.0f} s"}
    line = done.stdout.strip().splitlines()[-1:]
    if done.returncode or not line:
        return {"died": f"exit {done.returncode}: {done.stderr.strip()[-300:]}"}
    printed: Row = json.loads(line[0])
    return {"runtime": printed["runtime"], "original": printed["original"], "file": printed["files"][0]}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def outcome(found: Row) -> str:
    """One of: the original's bits; a refusal, where; or what must not be."""
    if "died" in found:
        return "DIED"
    file, original = found["file"], found["original"]
    if original is not None and original["stage"] != "done":
        return "the original does not run"
    if file["stage"] == "done":
        return "bits" if file["has_same_bits"] else "DIFFERENT"
    if file["stage"] == "load":
        return "refused at load"
    return "refused in the first step" if any(map(is_guard, failed_nodes(file["message"]))) else "FAILED LATE"


def failed_nodes(message: str) -> list[str]:
    """The nodes that an error of the runtime names, those around the one that failed first."""
    return re.findall(r"Name:\s*'([^']*)'", message)


def is_guard(name: str) -> bool:
    """Whether a node is one that refuses processors."""
    return name.startswith(GUARD)


WRONG = frozenset({"DIED", "DIFFERENT", "FAILED LATE"})


def table(found: Sequence[Row]) -> list[str]:
    """A line per model, a column per processor."""
    names = [each.name for each in PROCESSORS]
    models = list(dict.fromkeys(row["model"] for row in found))
    cells = {(row["model"], row["processor"]): row for row in found}
    budgets = {row["model"]: row.get("budget", "") for row in found}
    lines = [[model, budgets[model], *(_cell(cells.get((model, name))) for name in names)] for model in models]
    tried = [row for row in found if row["outcome"] not in ("not compiled", "the original does not run")]
    wrong = [row for row in tried if row["outcome"] in WRONG]
    runtimes = sorted({row["runtime"] for row in tried if "runtime" in row})
    return [
        "# Compiled here, run elsewhere",
        "",
        "Files made by `make bench-targets` on a processor with AVX-512, run on it and on others that an emulator",
        f"plays, with ONNX Runtime {', '.join(runtimes)}. *bits*: outputs are those of the original on that processor,",
        "bit for bit. *refused*: an error that names the processor, at load or in the first step of the first run,",
        "before anything of the model is computed.",
        "",
        *table_lines(["model", "budget", *names], lines),
        "",
        f"{len(tried)} cells, of which {len(wrong)} are wrong: other numbers in silence, or a failure later than that.",
    ]


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    shown = row["outcome"]
    if shown == "DIFFERENT":
        return f"**different by {row['file']['difference']:.1e}**"
    return f"**{shown.lower()}**" if shown in WRONG else str(shown)


BENCH = Bench("targets", ("model", "processor"), of_lines(table), _told)

if __name__ == "__main__":
    main()
