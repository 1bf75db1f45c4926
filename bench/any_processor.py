"""Files for any processor beside those for the processor here: what each holds, what it costs, whether it has a plan.

`python -m bench.any_processor` compiles samples, the encoder and small models of the bench of record twice, for a
share of each model's own peak, has `remat verify` run each file beside its model in fresh processes, and appends a row
to `bench/results/any_processor.jsonl`; rows that are there are skipped. `--write` makes the page of them.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from bench.bench import Bench, Case, Key, Shard, of_lines, shard_option
from bench.compiling import OUTPUT, Row, run_compiler, sample_paths
from bench.targets import ENCODER, MODELS, RANGES, SIZES
from remat_cli.base.units import format_bytes

BUDGET = "70%"
TARGETS = ("here", "any")
LONGEST_SECONDS = 900.0  # of a compile, its runs of the model included
MOST_TIME, MOST_MEMORY, MOST_OF_ONE = 1.05, 1.10, 1.25
"""What files for any processor may cost beside those for here, so that they are the default: means, and any of them."""

INTRODUCTION = f"""# Files for any processor beside files for the processor here

Made by `make bench-any`: each model at {BUDGET} of its own peak, compiled for here (x86-64 with AVX-512) and with
`--target any`, run beside the original in fresh processes. Live: tensors, weights and inputs in a default session.
Loading and later: by how much a process's resident memory rises. Each search had 30 s. Times are of a machine of two
cores without other work, the least of a few runs: some percent between two rows are noise.
"""


@click.command()
@click.option("--only", multiple=True, help="Name of a model; may be repeated. All when left out.")
@click.option("--time-limit", default="30s", help="Of each compile.")
@click.option("--write", is_flag=True, help="Make the page of the rows that are there.")
@shard_option
def main(only: Sequence[str], time_limit: str, write: bool, shard: Shard) -> None:
    """Measure what is missing, or write the page."""
    if write:
        BENCH.write()
        return
    with tempfile.TemporaryDirectory() as folder:

        def measured(path: Path, keys: Sequence[Key]) -> Iterator[Row]:
            for name, target in keys:
                yield {"model": name, "target": target, **row(name, path, target, time_limit, Path(folder))}

        cases = (Case(path, [(name, target) for target in TARGETS]) for name, path in _paths(tuple(only)))
        BENCH.run(cases, measured, shard=shard)


def _paths(only: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    yield from sample_paths(only)
    more = (ENCODER, *sorted(MODELS.glob("*.onnx")))
    yield from ((path.stem, path) for path in more if not only or path.stem in only)


def row(name: str, path: Path, target: str, time_limit: str, folder: Path) -> Row:
    """One compile, and what its file and the original hold in processes of their own."""
    output = folder / OUTPUT
    dims = [f"--dim={dim}={sizes}" for dim, sizes in RANGES.get(name, {}).items()]
    flags = [f"--budget={BUDGET}", f"--target={target}", f"--time-limit={time_limit}", *dims]
    code, report, said = run_compiler(path, flags, output, folder / "cache", LONGEST_SECONDS)
    if code != 0:
        was_cut = report.get("asked", {}).get("search_was_cut", False)
        outcome = "no plan in time" if was_cut else "no plan"
        return {"outcome": outcome if code in (3, 4) else "FAILED", "message": said[-200:]}
    sizes = [f"--dim={dim}={size}" for dim, size in SIZES.get(name, {}).items()]
    words = ["verify", str(output), "--original", str(path), *sizes, "--format", "json", "--quiet"]
    done = subprocess.run([sys.executable, "-m", "remat_cli", *words], capture_output=True, text=True, check=False)
    seen = json.loads(done.stdout)
    seen = seen.get("verification", seen)
    pair = seen["process"]
    return {
        "outcome": "bits" if seen["outputs_identical"] else "DIFFERENT",
        "live_bytes": [seen["original_default_session_peak_bytes"], seen["measured_peak_default_session_bytes"]],
        "budget_bytes": report["solution"]["budget_bytes"],
        "loading_bytes": [pair[which]["load_peak_bytes"] for which in ("original", "rewritten")],
        "later_bytes": [pair[which]["later_runs_bytes"] for which in ("original", "rewritten")],
        "overhead_percent": seen["measured_overhead_percent"],
    }


def page(rows: Sequence[Row]) -> Iterator[str]:
    """All rows, `any` beside `here`, and the means that decide which of them is the default."""
    yield from INTRODUCTION.splitlines()
    yield ""
    yield "| model | live: original, here, any | loading: original, here, any | later runs | time: here, any |"
    yield "|---|---|---|---|---|"
    found = {(each["model"], each["target"]): each for each in rows}
    names = list(dict.fromkeys(each["model"] for each in rows))
    pairs = {name: (found.get((name, "here")), found.get((name, "any"))) for name in names}
    for name, pair in pairs.items():
        yield f"| {name} | " + " | ".join(_cells(pair)) + " |"
    files = {
        name: [each for each in pair if each is not None and each["outcome"] == "bits"] for name, pair in pairs.items()
    }
    both = [(each[0], each[1]) for each in files.values() if len(each) == len(TARGETS)]
    lost = [name for name, each in files.items() if [row["target"] for row in each] == ["here"] and all(pairs[name])]
    yield ""
    yield f"{len(both)} of {len(pairs)} models have a file of either kind; lost for any: {', '.join(lost) or 'none'}."
    if not both:
        return
    ratios = {what: [_ratio(here, other, what) for here, other in both] for what in ("later_bytes", "loading_bytes")}
    times = [(100 + other["overhead_percent"]) / (100 + here["overhead_percent"]) for here, other in both]
    means = {what: _mean(each) for what, each in ratios.items()} | {"time": _mean(times)}
    yield ""
    later, loading = (f"{means[what]:.2f} (at most {max(each):.2f})" for what, each in ratios.items())
    yield f"Geometric means of any / here: later runs {later}, loading {loading},"
    yield f"time {means['time']:.2f} (at most {max(times):.2f})."
    memory = [*ratios["later_bytes"], *ratios["loading_bytes"]]
    kept = max(means["later_bytes"], means["loading_bytes"]) <= MOST_MEMORY and max(memory) <= MOST_OF_ONE and not lost
    yield ""
    yield f"The rule: any is the default where it costs at most {MOST_TIME - 1:.0%} time and {MOST_MEMORY - 1:.0%} of"
    yield f"the process in the mean, {MOST_OF_ONE - 1:.0%} in any model, none lost. By memory alone it is"
    yield f"{'kept, so that times decide' if kept else 'not kept: the default is here'}."


def _ratio(here: Row, other: Row, what: str) -> float:
    return float(other[what][1]) / max(1, int(here[what][1]))


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _cells(pair: Sequence[Row | None]) -> Iterator[str]:
    """The figures of a model, the outcome instead of them where there is no file."""
    told = [(each or {"outcome": "not measured"}) for each in pair]
    first = next((each for each in told if each["outcome"] == "bits"), None)
    for what in ("live_bytes", "loading_bytes", "later_bytes"):
        before = "-" if first is None else format_bytes(first[what][0])
        after = [format_bytes(each[what][1]) if each["outcome"] == "bits" else each["outcome"] for each in told]
        yield ", ".join((before, *after))
    yield ", ".join(f"{each['overhead_percent']:+.0f} %" if each["outcome"] == "bits" else "-" for each in told)


def _told(each: Row) -> str:
    return f"{each['model']:24} {each['target']:6} {each['outcome']}"


BENCH = Bench("any_processor", ("model", "target"), of_lines(page), _told)

if __name__ == "__main__":
    main()
