"""Models whose weights are more than the budget of the process, run beside the plain model, which holds all of them.

`make bench-weight-paging` runs all of it. `python -m bench.weight_paging --models products` runs a part and prints it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import remat_cli
from bench.bench import Bench, Case, Key
from bench.compiling import RESULTS, Row, mib, table_lines, text
from bench.paging import fastest, timed
from remat_cli.base.errors import ConfigError
from remat_cli.compiling.program import input_specs, make_program
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.runtime.observe.paged_resident import see_resident
from remat_cli.runtime.sessions._ort import Array
from remat_cli.runtime.sessions.feeds import feeds_of

SHARES = (70, 50)  # percent of all weights
HEAD = (
    "model",
    "weights MiB",
    "budget MiB",
    "plan holds MiB",
    "resident MiB",
    "plain resident MiB",
    "read in a run MiB",
    "planned ms",
    "measured ms",
    "plain ms",
    "opening planned ms",
    "bits equal",
)


class _Net:
    """A model that grows op by op, with seeded weights."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int) -> str:
        scale = 1 / np.sqrt(np.prod(shape[1:] if len(shape) > 2 else shape[:1]))
        return self.constant((self._rng.standard_normal(shape) * scale).astype(np.float32))

    def constant(self, array: Array) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(array), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def op(self, kind: str, *inputs: str, made: str | None = None, **attributes: Any) -> str:
        name = made or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], f"{kind}_{len(self.nodes)}", **attributes))
        return name

    def save(self, path: Path, given: onnx.ValueInfoProto, made: onnx.ValueInfoProto) -> None:
        graph = helper.make_graph(self.nodes, path.stem, [given], [made], self.weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def products(path: Path, rows: int = 1024, width: int = 1024, layers: int = 16) -> None:
    """Layers of products on many rows, whose weights are packed."""
    net, last = _Net(), "x"
    for _ in range(layers):
        last = net.op("Relu", net.op("Gemm", last, net.weight(width, width), net.weight(width)))
    net.op("Identity", last, made="y")
    net.save(path, _port("x", rows, width), _port("y", rows, width))


def one_row(path: Path) -> None:
    """The same on one row: no work for its weights."""
    products(path, rows=1)


def convolutions(path: Path, channels: int = 256, blocks: int = 8, side: int = 28) -> None:
    """Residual blocks, whose weights are read where they are."""
    net = _Net()
    last = net.op("Conv", "x", net.weight(channels, 3, 3, 3), pads=[1] * 4)
    for _ in range(blocks):
        inner = net.op("Relu", net.op("Conv", last, net.weight(channels, channels, 3, 3), pads=[1] * 4))
        last = net.op("Add", last, net.op("Conv", inner, net.weight(channels, channels, 3, 3), pads=[1] * 4))
    net.op("GlobalAveragePool", last, made="y")
    net.save(path, _port("x", 1, 3, side, side), _port("y", 1, channels, 1, 1))


def encoder(path: Path, width: int = 512, heads: int = 8, layers: int = 6, length: int = 256) -> None:
    """An encoder of transformers."""
    net, last, each = _Net(), "x", width // heads
    split, joined = net.constant(np.array([1, length, heads, each])), net.constant(np.array([1, length, width]))
    scale = net.constant(np.array(each**-0.5, np.float32))

    def normal(value: str) -> str:
        ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
        return net.op("LayerNormalization", value, net.constant(ones), net.constant(zeros))

    def part(value: str, order: list[int]) -> str:
        made = net.op("MatMul", value, net.weight(width, width))
        return net.op("Transpose", net.op("Reshape", made, split), perm=order)

    for _ in range(layers):
        a = normal(last)
        query, key, value = part(a, [0, 2, 1, 3]), part(a, [0, 2, 3, 1]), part(a, [0, 2, 1, 3])
        shares = net.op("Softmax", net.op("Mul", net.op("MatMul", query, key), scale), axis=-1)
        seen = net.op("Reshape", net.op("Transpose", net.op("MatMul", shares, value), perm=[0, 2, 1, 3]), joined)
        last = net.op("Add", last, net.op("MatMul", seen, net.weight(width, width)))
        wide = net.op("Relu", net.op("MatMul", normal(last), net.weight(width, 4 * width)))
        last = net.op("Add", last, net.op("MatMul", wide, net.weight(4 * width, width)))
    net.op("Identity", last, made="y")
    net.save(path, _port("x", 1, length, width), _port("y", 1, length, width))


MODELS: dict[str, Callable[[Path], None]] = {
    "products": products,
    "one_row": one_row,
    "convolutions": convolutions,
    "encoder": encoder,
}


def _port(name: str, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


@click.command()
@click.option("--models", default=",".join(MODELS), show_default=True, help="Some of these.")
@click.option("--rounds", default=3, show_default=True, help="How often every plan has its turn.")
@click.option("--time-limit", default="10s", show_default=True)
@click.option(
    "--write/--no-write", default=False, help="Write bench/results/weight_paging.{jsonl,md}; other rows stay."
)
def main(models: str, rounds: int, time_limit: str, write: bool) -> None:
    """Run the bench."""

    def measured(name: str, _: Sequence[Key]) -> Iterator[Row]:
        with tempfile.TemporaryDirectory(dir=RESULTS.parent) as folder:
            yield from _rows(name, Path(folder), rounds, time_limit)

    cases = (Case(name, [(name, share) for share in SHARES]) for name in models.split(","))
    BENCH.renew(cases, measured, keeps=write)


def _place(row: Row) -> tuple[int, int]:
    return list(MODELS).index(row["model"]), -int(row["share_percent"])


def _rows(name: str, folder: Path, rounds: int, time_limit: str) -> Iterator[Row]:
    """A row per budget, all run in turns with the plain model."""
    path = folder / f"{name}.onnx"
    MODELS[name](path)
    weights = sum(numpy_helper.to_array(each).nbytes for each in onnx.load(path).graph.initializer)
    plain = remat_cli.compile(path, budget="100%", split="off", verify=False, output=folder / "plain.onnx")
    plans = {"plain": Path(str(plain.plan))}
    reports: dict[int, Any] = {}
    for share in SHARES:
        words: dict[str, Any] = {"budget": f"{weights * share // 100}B", "spill": f"disk:{folder}", "solver": "paging"}
        try:
            found = remat_cli.compile(path, time_limit=time_limit, output=folder / f"{share}.onnx", **words)
        except ConfigError as error:
            click.echo(f"{name} {share} %: {error}", err=True)
            continue
        if found.exit_code == 0:
            plans[str(share)], reports[share] = Path(str(found.plan)), found
        else:
            click.echo(f"{name} {share} %: exit {found.exit_code}", err=True)
    programs = {kind: make_program(read_plan(plan), plan, _made(folder / kind)) for kind, plan in plans.items()}
    feeds = feeds_of(input_specs(read_plan(plans["plain"])), None, None, 0, {})
    turns = [{kind: timed(program, feeds) for kind, program in programs.items()} for _ in range(rounds)]
    best = {kind: fastest([each[kind] for each in turns]) for kind in programs}
    resident = {kind: see_resident(program, feeds) for kind, program in programs.items()}
    for share, report in reports.items():
        seen, all_of_it = resident[str(share)], resident["plain"]
        yield {
            "model": name,
            "share_percent": share,
            "weight_bytes": weights,
            "budget_bytes": report.solution.budget_bytes,
            "peak_bytes": report.solution.peak_bytes,
            "resident_bytes": None if seen is None else seen.peak_bytes + report.verification.paging.input_bytes,
            "plain_resident_bytes": None if all_of_it is None else all_of_it.peak_bytes,
            "read_bytes": report.paging.read_bytes,
            "planned_ms": report.solution.time / 1e6,
            "measured_ms": best[str(share)].fastest.total_ns / 1e6,
            "plain_ms": best["plain"].fastest.total_ns / 1e6,
            "opening_ms": report.paging.opening_ns / 1e6,
            "bits_equal": best[str(share)].outputs == best["plain"].outputs,
        }


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _table(rows: list[Row]) -> str:
    """The results as Markdown, one row per plan."""
    lines = [
        "# Models whose weights are more than the budget, run",
        "",
        "Generated by `make bench-weight-paging`: plans by `remat compile --spill --solver paging`, verified, then run",
        "in turns with the plain model in fresh processes, the least of all runs. The budget, a share of all weights,",
        "bounds the process: *resident* is how far it rises above an idle runtime, inputs included. *read in a run* is",
        "what comes back of weights; nothing is written. *opening* is what opening sessions over them is planned to",
        "take, most of it for packing.",
        "",
    ]
    return "\n".join([*lines, *table_lines(HEAD, [_cells(row) for row in rows])]) + "\n"


def _cells(row: Row) -> list[str]:
    sizes = ("weight_bytes", "budget_bytes", "peak_bytes", "resident_bytes", "plain_resident_bytes", "read_bytes")
    times = ("planned_ms", "measured_ms", "plain_ms", "opening_ms", "bits_equal")
    return [row["model"], *(mib(row[key]) for key in sizes), *(text(row[key]) for key in times)]


BENCH = Bench("weight_paging", ("model", "share_percent"), _table, json.dumps, _place)

if __name__ == "__main__":
    main()
