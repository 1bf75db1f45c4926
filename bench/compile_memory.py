"""What compiling takes in memory: the compiling process, and those that it starts, beside a session on the model.

`python -m bench.compile_memory` measures rows that are missing, for `bench/results/compile_memory.jsonl`; `--mib 320`
chooses other sizes than those of the table, `--write` makes `bench/results/compile_memory.md`. Counted are
private pages that no file stands behind, every few milliseconds: mapped weights can be dropped by the system, these
cannot. A compile of 2.4 GiB takes half an hour on two cores, and over 40 GiB in the folder for temporary files.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper

from bench.bench import Bench, Case, Key, Shard, of_lines, shard_option
from bench.compiling import ROOT, Row, table_lines
from remat_cli.runtime.observe.resident import status_bytes

MIB = 2**20
CASES: tuple[tuple[str, int], ...] = (("inside", 320), ("beside", 320), ("inside", 1216), ("beside", 2432))
BUDGET = "60%"
WIDTH, INNER, ROWS = 1024, 4096, 64
SAMPLE_SECONDS = 0.02
OWN_SHARE, CHILD_SHARE = 0.5, 1.1
SESSION = f"""
import sys
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
session.run(None, {{"x": numpy.ones((1, {ROWS}, {WIDTH}), numpy.float32)}})
"""


@click.command()
@click.option(
    "--mib", multiple=True, type=int, help="MiB of weights; may be repeated. Those of the table when left out."
)
@click.option("--write", is_flag=True, help="Make the table of the rows that are there.")
@shard_option
def main(mib: Sequence[int], write: bool, shard: Shard) -> None:
    """Measure what is missing, or write the table."""
    if write:
        BENCH.write()
        return
    wanted = [(place, size) for size in mib for place in ("inside", "beside")] or CASES
    BENCH.run((Case(case, [case]) for case in wanted), _rows, shard=shard)


def _rows(case: tuple[str, int], _keys: Sequence[Key]) -> Iterator[Row]:
    """One model, run as it is and compiled."""
    place, mib = case
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder) / "model.onnx", Path(folder) / "out.onnx"
        _make(source, mib, is_beside=place == "beside")
        original = _watched([sys.executable, "-c", SESSION, str(source)])
        command = [
            "env",
            f"REMAT_CACHE_DIR={folder}",
            sys.executable,
            "-m",
            "remat_cli",
            "compile",
            str(source),
            "--budget",
            BUDGET,
        ]
        compiled = _watched([*command, "-o", str(output), "--quiet"])
        yield {
            "weights": place,
            "mib": mib,
            "exit_code": compiled.exit_code,
            "seconds": round(compiled.seconds),
            "original_bytes": original.own_bytes,
            "own_bytes": compiled.own_bytes,
            "child_bytes": max(compiled.child_bytes.values(), default=0),
            "together_bytes": compiled.together_bytes,
        }


def _make(path: Path, mib: int, *, is_beside: bool) -> None:
    """A stack of blocks with residual connections, each of two products of 16 MiB of weights."""
    random, nodes, weights, last = np.random.default_rng(0), [], [], "x"
    for block in range(mib // 32):
        for name, shape in ((f"up{block}", (WIDTH, INNER)), (f"down{block}", (INNER, WIDTH))):
            weights.append(numpy_helper.from_array(random.standard_normal(shape, np.float32) / 64, name))
        nodes += [
            helper.make_node("MatMul", [last, f"up{block}"], [f"a{block}"]),
            helper.make_node("Relu", [f"a{block}"], [f"r{block}"]),
            helper.make_node("MatMul", [f"r{block}", f"down{block}"], [f"b{block}"]),
            helper.make_node("Add", [last, f"b{block}"], [f"x{block}"]),
        ]
        last = f"x{block}"
    first, end = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, ROWS, WIDTH)) for name in ("x", last))
    graph = helper.make_graph(nodes, "blocks", [first], [end], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=is_beside, location="model.onnx.data")


@dataclass
class _Seen:
    """The most that a process had of its own, by process of those that it started, and of all at one time."""

    own_bytes: int = 0
    child_bytes: dict[int, int] = field(default_factory=dict)
    together_bytes: int = 0
    seconds: float = 0.0
    exit_code: int = 0


def _watched(command: Sequence[str]) -> _Seen:
    """Run a command and look at its processes until it ends."""
    seen, begin = _Seen(), time.monotonic()
    process = psutil.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        own, children = _own_bytes(process.pid), _children(process)
        seen.own_bytes = max(seen.own_bytes, own)
        for child, count in children.items():
            seen.child_bytes[child] = max(seen.child_bytes.get(child, 0), count)
        seen.together_bytes = max(seen.together_bytes, own + sum(children.values()))
        time.sleep(SAMPLE_SECONDS)
    seen.seconds, seen.exit_code = time.monotonic() - begin, process.returncode
    return seen


def _children(process: psutil.Popen) -> dict[int, int]:
    try:
        return {child.pid: _own_bytes(child.pid) for child in process.children(recursive=True)}
    except psutil.NoSuchProcess:
        return {}


def _own_bytes(process: int) -> int:
    """Private pages that no file stands behind."""
    return status_bytes(Path(f"/proc/{process}/status")).get("RssAnon", 0)


def misses(row: Row) -> tuple[str, ...]:
    """Which bars a row does not reach."""
    found = [f"ended with exit code {row['exit_code']}"] if row["exit_code"] else []
    if row["own_bytes"] > OWN_SHARE * row["mib"] * MIB:
        found.append(f"more than {OWN_SHARE:g} x the weights of its own")
    if row["child_bytes"] > CHILD_SHARE * row["original_bytes"]:
        found.append(f"a process that measures has more than {CHILD_SHARE:g} x the original's")
    return tuple(found)


def _table(rows: list[Row]) -> Iterator[str]:
    yield from (
        "# What compiling takes in memory",
        "",
        f"Generated by `make bench-compile-memory`. `remat compile --budget {BUDGET}` of a stack of products, weights",
        "inside the model file or beside it. Most private pages without a file behind them, in MiB: of a process that",
        "loads the model and runs it once, of the compiling process, of any that it starts, and of all at one time.",
        f"Wanted: the compiling process at most {OWN_SHARE:g} x the weights, each other at most {CHILD_SHARE:g} x the",
        "original's. The smaller a model is, the more do Python and its libraries count, some 125 MiB.",
        "",
    )
    head = (
        "weights",
        "MiB",
        "exit",
        "original",
        "compiling",
        "x weights",
        "others",
        "x original",
        "all",
        "minutes",
        "bars",
    )
    yield from table_lines(
        head,
        [
            [
                row["weights"],
                str(row["mib"]),
                str(row["exit_code"]),
                f"{row['original_bytes'] / MIB:.0f}",
                f"{row['own_bytes'] / MIB:.0f}",
                f"{row['own_bytes'] / MIB / row['mib']:.2f}",
                f"{row['child_bytes'] / MIB:.0f}",
                f"{row['child_bytes'] / row['original_bytes']:.2f}",
                f"{row['together_bytes'] / MIB:.0f}",
                f"{row['seconds'] / 60:.0f}",
                "; ".join(misses(row)) or "reached",
            ]
            for row in rows
        ],
    )


BENCH = Bench(
    "compile_memory",
    key=("weights", "mib"),
    table=of_lines(_table),
    told=lambda row: f"{row['weights']:7} {row['mib']:5} MiB: {', '.join(misses(row)) or 'reached'}",
    place=lambda row: (row["mib"], row["weights"]),
)


if __name__ == "__main__":
    main()
