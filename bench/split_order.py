"""Why ops are split after the runtime's optimiser and not before: one residual block, both ways, measured.

`python -m bench.split_order` prints the table behind docs/decisions/0005. Each way cuts the block into the same tiles
along its rows, with a halo, and runs in a default session; outputs are compared with those of the whole block.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
import onnx
from onnx import helper, numpy_helper

from bench.compiling import table_lines
from remat_cli.base.progress import silent
from remat_cli.compiling.prepare import Prepared, prepare
from remat_cli.onnx_io.read.load import save
from remat_cli.runtime.measure.turns import TimeJob, time_models
from remat_cli.runtime.sessions._ort import Array, pack_all, run_fresh, run_session
from remat_cli.runtime.sessions.session import SessionSettings, open_session
from remat_cli.settings.settings import Settings, load_settings
from remat_cli.splitting.tiles.build import split_model
from remat_cli.splitting.tiles.op_view import tile_bounds
from remat_cli.splitting.tiles.steps import TiledRegion, region_steps
from remat_cli.splitting.tiles.tiling import Cutting
from remat_cli.splitting.tiles.view import view_model
from sample_models.make_models import Builder

CHANNELS, SIZE, HEIGHT = 32, 128, 2
STEM_OPS = 2  # Conv and Relu, which are not split
THREADS, ROUNDS, PROCESSES = 1, 200, 3
REORDERS, CUTS = ("ReorderInput", "ReorderOutput"), ("Slice", "Concat")

Outputs = dict[str, Array]


SETTINGS = SessionSettings(exact=False, intra_op_threads=THREADS)


@click.command()
@click.option("--tiles", default="2,4,8", show_default=True, help="Comma-separated.")
def main(tiles: str) -> None:
    """Print the table."""
    cells = [cell for count in map(int, tiles.split(",")) for cell in _compare(count)]
    head = (
        "tiles",
        "split",
        "ops",
        "Reorder",
        "Slice, Concat",
        "fused Add",
        "values that differ",
        "by at most",
        "differ from unfused",
        "time +%",
    )
    click.echo("\n".join(table_lines(head, cells)))


def residual() -> onnx.ModelProto:
    """A stem of Conv and Relu, then the block: Conv, Relu, Conv, Add of what the block reads, Relu."""
    b = Builder("residual", (1, CHANNELS, SIZE, SIZE))
    skip = b.conv_relu("x", CHANNELS)
    return b.build(y=b.merge(b.conv_relu(skip, CHANNELS), skip))


def unfused() -> onnx.ModelProto:
    """The same with the second convolution's result as an output, so that the runtime cannot fuse Add into it."""
    model = residual()
    (like,) = model.graph.output
    more = model.graph.output.add(name=model.graph.node[-2].input[0])
    more.type.CopyFrom(like.type)
    return model


def split_before(whole: onnx.ModelProto, tiles: int) -> onnx.ModelProto:
    """The block in tiles of rows by plain ONNX ops, as a stage before the optimiser would write it."""
    split = onnx.ModelProto()
    split.CopyFrom(whole)
    del split.graph.node[STEM_OPS:], split.graph.value_info[:]
    for number, rows in enumerate(pairwise(tile_bounds(SIZE, tiles))):
        split.graph.node.extend(_tile(whole, number, rows))
    for name in sorted({name for node in split.graph.node for name in node.input if name.startswith("number_")}):
        value = np.array([int(name.removeprefix("number_"))], np.int64)
        split.graph.initializer.append(numpy_helper.from_array(value, name))
    parts = [f"part_{number}" for number in range(tiles)]
    split.graph.node.append(helper.make_node("Concat", parts, [whole.graph.output[0].name], "join", axis=HEIGHT))
    onnx.checker.check_model(split, full_check=True)
    return split


def split_after(whole: Prepared, tiles: int, config: Settings, work: Path) -> Path:
    """The optimised block in the same tiles, as remat writes it."""
    view = view_model(whole.reference, whole.graph, whole.layout_block)
    ops = range(len(whole.graph.ops))
    inside = tuple(op for op in ops if whole.graph.ops[op].op_type not in REORDERS)[1:]  # without the stem
    (exit_name,) = (name for name in view.makes[inside[-1]] if name)
    cutting = Cutting(inside, ((exit_name, HEIGHT),), tiles)
    steps = region_steps(view, cutting)
    if steps is None:
        raise click.ClickException(f"the block cannot be cut into {tiles} tiles")
    path = work / "after.onnx"
    save(split_model(view, list(ops), [TiledRegion(inside, steps)]), path)
    return path


def _tile(whole: onnx.ModelProto, number: int, rows: tuple[int, int]) -> list[onnx.NodeProto]:
    """Rows of the result from rows of the input and a halo of two."""
    first, _, second, *_ = whole.graph.node[STEM_OPS:]
    skip, inner = first.input[0], _read_by_conv(rows)
    names = {name: f"{name}_{number}" for name in ("wide", "skip", "one", "inner", "two", "sum", "part")}
    return [
        _slice(skip, names["wide"], _read_by_conv(inner)),
        _conv(first, names["wide"], names["one"], inner),
        helper.make_node("Relu", [names["one"]], [names["inner"]], names["inner"]),
        _conv(second, names["inner"], names["two"], rows),
        _slice(skip, names["skip"], rows),
        helper.make_node("Add", [names["two"], names["skip"]], [names["sum"]], names["sum"]),
        helper.make_node("Relu", [names["sum"]], [names["part"]], names["part"]),
    ]


def _read_by_conv(rows: tuple[int, int]) -> tuple[int, int]:
    """Rows that a 3x3 convolution reads for rows of its result."""
    return max(0, rows[0] - 1), min(SIZE, rows[1] + 1)


def _slice(source: str, name: str, rows: tuple[int, int]) -> onnx.NodeProto:
    reads = [source, *(f"number_{value}" for value in (*rows, HEIGHT))]
    return helper.make_node("Slice", reads, [name], name)


def _conv(whole: onnx.NodeProto, reads: str, makes: str, rows: tuple[int, int]) -> onnx.NodeProto:
    """A 3x3 convolution for some rows of its result: padded only at the image's border."""
    pads = [int(rows[0] == 0), 1, int(rows[1] == SIZE), 1]
    return helper.make_node("Conv", [reads, *whole.input[1:]], [makes], makes, kernel_shape=[3, 3], pads=pads)


def _compare(tiles: int) -> list[list[str]]:
    """Rows of the table for one number of tiles; the whole block first."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        config = load_settings({"intra_op_threads": THREADS})
        whole = prepared(residual(), folder / "whole", config)
        before = prepared(split_before(residual(), tiles), folder / "before", config)
        after = prepared(split_after(whole, tiles, config, folder / "whole"), folder / "after", config)
        plain = outputs_of(prepared(unfused(), folder / "unfused", config))
        ways = {"none": whole, "before": before, "after": after}
        return [_cells((str(tiles), name), whole, way, plain) for name, way in ways.items()]


def prepared(model: onnx.ModelProto | Path, work: Path, config: Settings) -> Prepared:
    """A model, optimised until nothing changes."""
    work.mkdir(exist_ok=True)
    path = model if isinstance(model, Path) else work / "model.onnx"
    if not isinstance(model, Path):
        onnx.save(model, path)
    return prepare(path, config.conditions, work, silent())


def _cells(names: tuple[str, ...], whole: Prepared, way: Prepared, plain: Outputs) -> list[str]:
    types = Counter(op.op_type for op in way.graph.ops)
    fused = sum(op.op_type == "Conv" and len(op.inputs) > 1 for op in way.graph.ops)
    (output, expected), *_ = outputs_of(whole).items()
    found = outputs_of(way)[output]
    return [
        *names,
        str(sum(types.values())),
        str(sum(types[kind] for kind in REORDERS)),
        str(sum(types[kind] for kind in CUTS)),
        str(fused),
        str(int((expected != found).sum())),
        f"{np.abs(expected - found).max():.1e}",
        str(int((plain[output] != found).sum())),
        f"{_time_percent(whole, way):.1f}",
    ]


def outputs_of(model: Prepared) -> Outputs:
    """What a default session makes of the model's inputs."""
    return run_session(open_session(model.reference_path, SETTINGS), model.feeds)


def _time_percent(whole: Prepared, way: Prepared) -> float:
    """Extra time of one way, both run in turn; least of all runs of all processes."""
    models = (str(whole.reference_path), str(way.reference_path))
    job = TimeJob(models=models, feeds=pack_all(whole.feeds), settings=SETTINGS, rounds=ROUNDS)
    times = [run_fresh(time_models, job) for _ in range(PROCESSES)]
    first, second = (min(pair[which] for pair in times) for which in (0, 1))
    return 100 * (second / first - 1)


if __name__ == "__main__":
    main()
