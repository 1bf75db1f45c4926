"""What compiled samples ask of a runtime: operator set, domains, file format; and what other versions make of them.

`python -m bench.opsets --write` compiles every sample model to 60 % and writes `bench/results/opsets.md`. Each
`--python PATH` names the Python of an environment with numpy and another version of ONNX Runtime, in which the file
and its original are run on the same inputs; one that is not there is left out with a line.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import click
import numpy as np
import onnx

from bench.bench import Bench, Case, Key
from bench.compiling import OUTPUT, ROOT, Row, compile_row, sample_paths
from remat_cli.onnx_io.read.checking import all_nodes
from remat_cli.onnx_io.read.load import DimBindings, inputs_of, load
from remat_cli.runtime.sessions.feeds import make_feeds
from remat_cli.splitting.tiles.build import FILL_OP

BUDGET = "60%"
RUN = ROOT / "bench" / "opsets_run.py"
ABOUT = (
    "# What compiled samples ask of a runtime",
    "",
    "Made by `make bench-opsets`. Each sample is compiled to 60 %. The file declares the operator set of its source,",
    "unless an op of it needs a newer one: `TensorScatter` does, which fills tiles in place. It names the domains that",
    "its ops have and no others. The columns of versions give the largest difference of outputs from those of the",
    "original in the same version, on the same inputs, and in brackets beside the largest output. Where a version",
    "fuses the original otherwise than the one that compiled the file, the last bits differ.",
    "",
)


@click.command()
@click.option("--python", "pythons", multiple=True, type=click.Path(path_type=Path), help="One more version's Python.")
@click.option("--only", multiple=True, help="Name of a sample; may be repeated. All when left out.")
@click.option("--write", is_flag=True, help="Write rows and table into bench/results.")
def main(pythons: Sequence[Path], only: Sequence[str], write: bool) -> None:
    """Compile the samples, and run them in every version."""
    here = [Path(sys.executable), *(python for python in pythons if is_there(python))]
    cases = (Case(path, [(name,)]) for name, path in sample_paths(tuple(only)))
    BENCH.renew(cases, partial(sample_rows, pythons=here), keeps=write)


def page(rows: Sequence[Row]) -> str:
    """The table, and how it was made."""
    return "\n".join([*ABOUT, *table(rows)]) + "\n"


def is_there(python: Path) -> bool:
    """Whether a Python is there; a line says so if not."""
    if not python.exists():
        click.echo(f"left out: {python} does not exist", err=True)
    return python.exists()


def sample_rows(path: Path, keys: Sequence[Key], pythons: Sequence[Path]) -> Iterator[Row]:
    """The row of a sample."""
    for (name,) in keys:
        with tempfile.TemporaryDirectory() as folder:
            done = compile_row(name, path, BUDGET, ["--verify", "fast"], Path(folder))
            row = {"model": name, "exit_code": done["exit_code"], "message": done["message"]}
            if not done["exit_code"]:
                row |= asked_by(path, Path(folder) / OUTPUT)
                row["runs"] = [run_in(python, path, Path(folder) / OUTPUT) for python in pythons]
        yield row


def asked_by(source: Path, file: Path) -> Row:
    """What a file asks of a runtime."""
    before, after = (onnx.load(path, load_external_data=False) for path in (source, file))
    versions = {entry.domain: entry.version for entry in after.opset_import}
    ops = Counter(node.op_type for node in all_nodes(after.graph))
    return {
        "source_opset": {entry.domain: entry.version for entry in before.opset_import}[""],
        "opset": versions.pop(""),
        "domains": versions,
        "ir_version": after.ir_version,
        "filled": ops[FILL_OP],
    }


def run_in(python: Path, source: Path, file: Path) -> Row:
    """Both models in one version of the runtime."""
    feeds = file.with_name("feeds.npz")
    if not feeds.exists():
        arrays: Row = dict(make_feeds(inputs_of(load(source, DimBindings()).ir), 0))
        np.savez(feeds, **arrays)
    command = [str(python), "-I", str(RUN), str(source), str(file), str(feeds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: Row = json.loads(done.stdout)
    return found


def table(rows: Sequence[Row]) -> list[str]:
    """A line for each file, with a column for each version that ran one."""
    done = [row for row in rows if not row["exit_code"]]
    versions = list(dict.fromkeys(run["runtime"] for row in done for run in row["runs"]))
    heads = ["file", "source's opset", "opset", "file format", "other domains", "tiles filled in place", *versions]
    lines = [f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * 3} --- | ---: |{' --- |' * len(versions)}"]
    for row in done:
        domains = ", ".join(f"`{domain}` {version}" for domain, version in sorted(row["domains"].items()))
        runs = {run["runtime"]: said_of(run) for run in row["runs"]}
        cells = [row["model"], row["source_opset"], row["opset"], row["ir_version"], domains or "none", row["filled"]]
        lines.append(f"| {' | '.join(map(str, [*cells, *(runs.get(version, '') for version in versions)]))} |")
    return [*lines, *(f"\n{row['model']} was not compiled: {row['message']}" for row in rows if row["exit_code"])]


def said_of(run: Row) -> str:
    """What a version made of a file."""
    if run["original_error"]:
        return "does not run the original"
    if run["file_error"]:
        return f"**refused**: {run['file_error']}"
    return "same bits" if run["same_bits"] else f"{run['difference']:.1e} ({run['relative']:.1e})"


def _told(row: Row) -> str:
    return f"{row['model']:16} exit {row['exit_code']}  {row['message']}"


BENCH = Bench("opsets", ("model",), page, _told)

if __name__ == "__main__":
    main()
