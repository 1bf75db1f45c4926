"""Files that are compiled here, run elsewhere: other processors, Node, browsers: the original's bits, or a refusal.

`python -m bench.targets` compiles samples, zoo and small models of the bench of record, has `remat verify --on` run
each file under emulators and on this processor, runs it in the packages of Node and in the browser that are here,
appends a row to `bench/results/targets.jsonl` as soon as it is there and skips rows that are there already; `--write`
makes `bench/results/targets.md` of them. Emulation shows bits, refusals, orders and live peaks, not times.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

import remat_cli
from bench.bench import Bench, Case, Key, Shard, of_lines, shard_option
from bench.compiling import ROOT, Row, sample_paths, zoo_paths
from bench.targets_browser import Browser
from bench.targets_node import PACKAGES, Package, package_row
from bench.targets_page import HERE, page
from remat_cli.base.errors import RematError
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.core.values.elsewhere import GUARD
from remat_cli.onnx_io.read.compiled import runs_on_at

BUILT = ROOT / "build" / "targets"
MODELS = BUILT / "models"  # those of `bench/targets_models.py`
BUDGETS = ("60%", "80%", "100%")  # the first with a plan
ENCODER = ROOT / "examples" / "encoder.onnx"
RANGES: dict[str, dict[str, int | str]] = {"encoder": {"batch": "1..4", "seq": "1..256"}}
FOR_ANY = " for any"
"""Behind the name of a model: rows of its file for any processor."""
SIZES = {"encoder": {"batch": 2, "seq": 77}}  # that files for ranges are run at
LIMIT = "2min"  # of a search, on a machine that may be busy
LONGEST = "1h"  # that an emulator may be silent
INTERPRETER = os.path.realpath(sys.executable)  # an emulator runs programs, not scripts that start them


@dataclass(frozen=True)
class Processor:
    """A processor, how a Python is started on it, and what must be there for that.

    `kind` is one on which files may say that last bits differ.
    """

    name: str
    command: str
    needs: tuple[str, ...] = ()
    kind: str = ""

    @property
    def missing(self) -> str | None:
        """The first thing that is not here."""
        return next((each for each in self.needs if not (shutil.which(each) or Path(each).exists())), None)


def x86(cpu: str) -> Processor:
    """An x86-64 processor that an emulator plays, with the packages of this environment."""
    emulator = "qemu-x86_64-static"
    settings = f"PYTHONPATH={sysconfig.get_path('platlib')} OPENBLAS_CORETYPE={cpu}"
    return Processor(cpu.lower(), f"env {settings} {emulator} -cpu {cpu} {INTERPRETER}", (emulator,))


def arm64(cpu: str = "cortex-a76", files: str = "root") -> Processor:
    """An ARM processor that an emulator plays, with the Python and packages of `make setup-targets`.

    `files` is the folder with those, and with what the system says of the processor.
    """
    emulator, root = "qemu-aarch64-static", BUILT / "arm64" / files
    python = root / "usr" / "bin" / "python3.11"
    settings = f"PYTHONHOME={root / 'usr'} PYTHONPATH={BUILT / 'arm64' / 'site'}"
    return Processor(
        f"arm64 {cpu}", f"env {settings} {emulator} -cpu {cpu} -L {root} {python}", (emulator, str(python))
    )


WITH_SME = replace(arm64("max"), kind="ARM with SME")
PROCESSORS = (
    Processor(HERE, sys.executable),
    x86("Haswell"),
    x86("Nehalem"),
    arm64(),
    arm64("cortex-a53", "root-cortex-a53"),
    WITH_SME,
)
PLACES: tuple[Processor | Package | Browser, ...] = (*PROCESSORS, *PACKAGES)


@click.command()
@click.option("--only", multiple=True, help="Name of a model; may be repeated. All when left out.")
@click.option("--processor", "names", multiple=True, help="Name of a processor; may be repeated. All when left out.")
@click.option("--target", "targets", multiple=True, type=click.Choice(["here", "any"]), default=("here", "any"))
@click.option("--write", is_flag=True, help="Make the table of the rows that are there.")
@shard_option
def main(only: Sequence[str], names: Sequence[str], targets: Sequence[str], write: bool, shard: Shard) -> None:
    """Run what is missing, or write the table."""
    if write:
        BENCH.write()
        return
    there: dict[str, Processor | Package | Browser] = {}
    for each in PLACES:
        if names and each.name not in names:
            continue
        if each.missing is None:
            there[each.name] = each
        else:
            click.echo(f"left out: {each.name}, as {each.missing} is not here: make setup-targets setup-node")
    with tempfile.TemporaryDirectory() as folder:

        def measured(path: Path, keys: Sequence[Key]) -> Iterator[Row]:
            return rows(keys[0][0], path, [there[place] for _, place in keys], Path(folder))

        paths = _paths(tuple(only), Path(folder))
        files = ((f"{name}{FOR_ANY if each == 'any' else ''}", path) for name, path in paths for each in targets)
        BENCH.run((Case(path, [(name, each) for each in there]) for name, path in files), measured, shard=shard)


def _told(row: Row) -> str:
    return f"{row['model']:24} {row['processor']:18} {row['outcome']}"


def _paths(only: tuple[str, ...], folder: Path) -> Iterator[tuple[str, Path]]:
    yield from sample_paths(only)
    yield from ((path.stem, path) for path in (ENCODER,) if not only or path.stem in only)
    yield from ((path.stem, path) for path in sorted(MODELS.glob("*.onnx")) if not only or path.stem in only)
    yield from zoo_paths(folder, only)


def rows(name: str, path: Path, places: Sequence[Processor | Package | Browser], folder: Path) -> Iterator[Row]:
    """One compile, and what became of its file in each place."""
    output, model = folder / f"{path.stem}.compiled.onnx", name.removesuffix(FOR_ANY)
    made = compiled(path, output, RANGES.get(model), "here" if name == model else "any")
    if made is None:
        yield {"model": name, "processor": HERE, "outcome": "not compiled"}
        return
    sizes = SIZES.get(model, {})
    for place in places:
        found = (
            processor_row(place, path, output, sizes)
            if isinstance(place, Processor)
            else package_row(place, path, output, sizes)
        )
        told = {"model": name, "processor": place.name, "machine": platform.machine()}
        yield {**told, **made, **found}


def compiled(path: Path, output: Path, ranges: dict[str, int | str] | None, target: str = "here") -> Row | None:
    """The smallest of the budgets for which there is a plan, written, and what it predicts; None: there is none."""
    for budget in BUDGETS:
        try:
            report = remat_cli.compile(
                path,
                budget=budget,
                dim=ranges,
                target=target,
                output=output,
                time_limit=LIMIT,
                verify="off",
                force=True,
            )
        except RematError as error:
            click.echo(f"{path.stem}: {error}")
            return None
        if report.output is not None and report.plan is not None:
            process = read_plan(Path(report.plan)).promise.process
            return {"budget": budget, "held_bytes": None if process is None else process.later_runs_bytes}
    return None


def processor_row(
    processor: Processor, original: Path, compiled: Path, sizes: Mapping[str, int], how: str = "fast"
) -> Row:
    """What `remat verify --on` says of a file on a processor."""
    words = ["verify", str(compiled), "--original", str(original), "--on", processor.command, "--verify", how]
    dims = [word for name, size in sizes.items() for word in ("--dim", f"{name}={size}")]
    done = subprocess.run(
        [sys.executable, "-m", "remat_cli", *words, *dims, "--run-limit", LONGEST, "--format", "json", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout:
        return {"outcome": "DIED", "message": done.stderr.strip()[-300:]}
    (found,), runs_on = json.loads(done.stdout)["verified_on"], runs_on_at(compiled)
    seen = found["verification"] or {}
    return {
        "runtime": found["place"]["onnxruntime"],
        "outcome": outcome(found),
        "message": found["message"],
        "difference": found["difference"],
        "is_told": processor.kind in runs_on.unlike if runs_on is not None else False,
        "order": seen.get("order_honoured"),
        "process": seen.get("process"),
        "peak_bytes": seen.get("measured_peak_bytes"),
        "promised_bytes": seen.get("budget_bytes" if seen.get("is_other_processor") else "predicted_peak_bytes"),
    }


def outcome(found: Row) -> str:
    """One of: the original's bits; a refusal, where; or what must not be."""
    seen = found["verification"]
    if seen is not None:
        return "bits" if seen["outputs_identical"] else "DIFFERENT"
    if not found["original_runs"]:
        return "the original does not run"
    if not found["loads"]:
        return "refused at load"
    return "refused in the first step" if GUARD.search(found["message"]) else "FAILED LATE"


BENCH = Bench("targets", ("model", "processor"), of_lines(page), _told)

if __name__ == "__main__":
    main()
