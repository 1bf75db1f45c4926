"""Compile what exporters wrote, at one size and for ranges, and run it: `python -m bench.exporters.measure`.

A row is appended to `bench/results/exporters.jsonl` as soon as it is there; rows that are there already are left.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np

from bench.bench import Case, Key, Shard, shard_option
from bench.compiling import OUTPUT, ROOT, Row
from bench.drawn.compiled import compiled, run_both
from bench.exporters.recipe import Exported
from bench.exporters.report import ASKS, BENCH, ONE

BUILT = ROOT / "build" / "exporters"
MODELS, CACHE = BUILT / "models", BUILT / "cache"


@click.command()
@click.option("--only", multiple=True, help="Name of a model; may be repeated. All when left out.")
@click.option("--asks", default=",".join(ASKS), show_default=True, help="What rows are measured, in this order.")
@click.option("--models", default=MODELS, type=click.Path(exists=True, path_type=Path), show_default=True)
@click.option("--time-limit", default="10s", show_default=True, help="Of each search.")
@click.option("--again", is_flag=True, help="Also what was measured before.")
@shard_option
def main(only: Sequence[str], asks: str, models: Path, time_limit: str, again: bool, shard: Shard) -> None:
    """Measure what is missing, and write the page."""
    paths = sorted(path for path in models.glob("*.onnx") if not only or path.stem in only)
    for ask in asks.split(","):
        cases = [Case(path, [(path.stem, ask)]) for path in paths]
        BENCH.run(cases, lambda path, keys: measured(path, keys, time_limit), again=again, shard=shard)
    BENCH.write()


def measured(path: Path, keys: Sequence[Key], time_limit: str) -> Iterator[Row]:
    """The rows of one model."""
    model = Exported.read(path)
    ranges = {name: model.drawn.ranges[name] for name in model.names}
    largest = {name: each.most for name, each in ranges.items()}
    opset = next((each.version for each in model.drawn.model.opset_import if each.domain in ("", "ai.onnx")), None)
    for _, ask in keys:
        flags = ["--budget", ASKS[ask], "--time-limit", time_limit]
        flags += [word for dim in model.dims(largest if ask == ONE else ranges) for word in ("--dim", dim)]
        row: Row = {"model": path.stem, "ask": ask, "exporter": model.exporter, "shows": model.shows, "opset": opset}
        row |= {"flags": flags, "wrong_bits": [], "above_promise": []}
        turns = [*model.drawn.sequence(np.random.default_rng(0))[:7], largest]
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / OUTPUT
            row |= compiled(path, flags, output, CACHE)
            if row["exit_code"] == 0:
                turns = [largest] * 3 if ask == ONE else turns
                row |= run_both(path, output, model.drawn, turns, row["promised_bytes"], exact=ask == ONE)
        yield row


if __name__ == "__main__":
    main()
