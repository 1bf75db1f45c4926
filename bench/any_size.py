"""Models compiled once for all sizes: what the largest takes, what others take, and what stays behind.

`python -m bench.any_size` measures what is missing in bench/results/any_size.jsonl and renews the table beside it; the
files that torch exports are taken from a folder (bench/any_size_models.py makes them), the others are built here.
`--only NAME` and `--part compile|bits|times` do less, `--again` more; times want a quiet machine.
"""

import bisect
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime as ort

from bench.bench import Bench, Key, Shard, shard_option
from bench.bench import Case as Wanted
from bench.compiling import Row
from bench.reported_models import (
    save_conformer,
    save_embedder,
    save_keypoints,
    save_neighbours,
    save_pitch,
    save_text_detector,
)
from examples.make_encoder import save_encoder
from remat_cli import compile as compile_file
from remat_cli.base.units import format_bytes
from remat_cli.core.values.promises import is_kept
from remat_cli.runtime.observe.resident import resident_bytes
from remat_cli.runtime.sessions.session import SessionSettings, in_turn_options
from tests.torch_like import any_size as drawn
from tests.torch_like.encoders import save_encoder_of

GENERATED = Path(__file__).with_name("generated") / "any_size"
BITS = 200
SESSIONS, ROUNDS = 4, 6  # of each, and runs in turn at least
SHORT_SECONDS = 1.5  # that short runs are repeated for in each session
WORDS = 60
PARTS = ("compile", "bits", "times")
Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A model, the sizes that it is compiled for, the budget, and the name of the dimension that sizes are told by.

    Without `build` it lies in the folder of exports. `short` are the sizes at which times are compared, `beside` other
    dimensions that are not at their least then.
    """

    title: str
    dims: Mapping[str, str]
    budget: str
    along: str = "seq"
    limits: tuple[str, ...] = ()
    build: Callable[[Path], object] | None = None
    short: tuple[int, ...] = (128, 2048)
    beside: Mapping[str, int] = field(default_factory=dict)

    @property
    def ranges(self) -> dict[str, range]:
        """The sizes of each dimension."""
        found = {name: size.partition(":") for name, size in self.dims.items()}
        ends = {name: [int(end) for end in size.split("..")] for name, (size, _, _) in found.items()}
        return {name: range(each[0], each[-1] + 1, int(found[name][2] or 1)) for name, each in ends.items()}

    @property
    def most(self) -> int:
        """The most along the dimension that counts."""
        return self.ranges[self.along][-1]

    def at(self, size: int) -> dict[str, int]:
        """All dimensions: the one that counts, in its steps, the others at their least where nothing else is said."""
        least = {name: sizes[0] for name, sizes in self.ranges.items()}
        sizes = self.ranges[self.along]
        return {**least, **self.beside, self.along: sizes[max(0, bisect.bisect_right(sizes, size) - 1)]}

    def drawn(self, rng: np.random.Generator) -> dict[str, int]:
        """Sizes within the limits, small ones as often as large ones."""
        ranges = self.ranges
        while True:
            drawn = {n: round(each[0] * (each[-1] / each[0]) ** rng.random()) for n, each in ranges.items()}
            sizes = {n: ranges[n][bisect.bisect_right(ranges[n], size) - 1] for n, size in drawn.items()}
            limits = (limit.split("<=") for limit in self.limits)
            if all(math.prod(sizes[name] for name in names.split("*")) <= int(most) for names, most in limits):
                return sizes


TEXT = {"batch": "1..4", "seq": "1..8192"}
TEXTS = ("batch*seq<=8192",)
CASES = {
    "bert": Case("BERT-like, 12 x 4 x 64", TEXT, "12%", limits=TEXTS),
    "modernbert": Case("ModernBERT-like, 12 x 4 x 64", TEXT, "12%", limits=TEXTS),
    "t5": Case("T5-like, 12 x 4 x 64", TEXT, "12%", limits=TEXTS),
    "plain": Case(
        "encoder, 2 x 12 x 64",
        {"batch": "1", "seq": "1..2048"},
        "20%",
        build=lambda path: save_encoder(path, 2, 768, 12),
    ),
    "narrow": Case(
        "encoder, 12 x 4 x 64",
        {"batch": "1", "seq": "1..2048"},
        "25%",
        build=lambda path: save_encoder(path, 12, 256, 4),
    ),
    "random": Case(
        "drawn encoder (seed 7)",
        {"batch": "1..4", "seq": "1..1024"},
        "30%",
        build=lambda path: save_encoder_of(7, path),
        short=(128, 1024),
    ),
    "whisper": Case("Whisper-like, 6 x 4 x 64", {"frames": "2..3000"}, "40%", "frames", short=(256, 3000)),
    "decoder": Case(
        "decoder with a cache, 4 x 4 x 64",
        {"batch": "1", "seq": "1..512", "past": "1..2048"},
        "40%",
        short=(128, 512),
        beside={"past": 2048},
    ),
    "detector": Case("detector, 256 x 256 pixels", {"batch": "1..16"}, "70%", "batch", short=(1, 16)),
    # after public reports of people who ran out of memory
    "embedder": Case(
        "embedder, 12 x 12 x 32",
        {"batch": "1..32", "seq": "1..512"},
        "11%",
        limits=("batch*seq<=16384",),
        build=save_embedder,
        short=(128, 512),
        beside={"batch": 32},
    ),
    "text": Case(
        "text detector",
        {"height": "32..1280:32", "width": "32..960:32"},
        "30%",
        "height",
        build=save_text_detector,
        short=(320, 1280),
        beside={"width": 960},
    ),
    "conformer": Case(
        "Conformer, 8 x 4 x 64", {"frames": "800..30000"}, "25%", "frames", build=save_conformer, short=(3000, 12000)
    ),
    "neighbours": Case(
        "nearest of 600 patches",
        {"batch": "1..8"},
        "5%",
        "batch",
        build=partial(save_neighbours, kept=600),
        short=(1, 8),
    ),
    "keypoints": Case(
        "keypoints",
        {"height": "64..1536:8", "width": "64..2048:8"},
        "10%",
        "height",
        build=save_keypoints,
        short=(256, 1536),
        beside={"width": 2048},
    ),
    "pitch": Case(
        "pitch of a sound", {"samples": "2048..960000:256"}, "50%", "samples", build=save_pitch, short=(16000, 480000)
    ),
}


def session_of(path: Path, options: Any = None) -> ort.InferenceSession:
    """A session as users open it, where nothing else is said."""
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def feeds_of(session: ort.InferenceSession, sizes: Mapping[str, int], seed: int = 0) -> Feeds:
    """Random inputs; the words of a mask are all shown but a few."""
    rng = np.random.default_rng(seed)
    return {port.name: _drawn(port, [sizes.get(dim, dim) for dim in port.shape], rng) for port in session.get_inputs()}


def _drawn(port: Any, shape: list[int], rng: np.random.Generator) -> np.ndarray:
    if "int64" not in port.type:
        return rng.standard_normal(shape).astype(np.float32)
    if "mask" not in port.name:
        return rng.integers(3, WORDS, shape)
    shown = rng.random(shape) < 0.9
    shown[:, 0] = True
    return shown.astype(np.int64)


def resident_after(path: Path, all_sizes: list[dict[str, int]]) -> int:
    """What a process holds of its own for runs of these sizes, one after the other."""
    session = session_of(path)
    before = resident_bytes().anonymous_bytes
    for sizes in all_sizes:
        session.run(None, feeds_of(session, sizes))
    return resident_bytes().anonymous_bytes - before


def fresh_resident(path: Path, all_sizes: list[dict[str, int]]) -> int:
    """`resident_after` in a process of its own."""
    with ProcessPoolExecutor(1) as pool:
        return pool.submit(resident_after, path, all_sizes).result()


def order(case: Case) -> list[dict[str, int]]:
    """Sizes that rise and fall."""
    most, least = case.most, case.ranges[case.along][0]
    return [case.at(size) for size in (min(100, most), most, most // 16, most // 2, least)]


def compiled(name: str, case: Case, original: Path, ours: Path) -> Row:
    """Compile, and see what verification says and what processes keep."""
    begin = time.monotonic()
    found = compile_file(
        original,
        budget=case.budget,
        dim=dict(case.dims),
        limit=list(case.limits),
        capped_run=False,
        force=True,
        output=ours,
    )
    seconds = time.monotonic() - begin
    if found.output is None:
        failures = found.verification.failures if found.verification is not None else ()
        return {
            "seconds": round(seconds),
            "plan": False,
            "failed": failures[0] if failures else None,
            "load": round(os.getloadavg()[0], 1),
        }
    seen = json.loads(ours.with_suffix(".plan.json").read_text())["verification"]
    runs = seen["family"]["runs"]
    largest = max(runs, key=lambda run: run["peak_bytes"])
    nodes = sum(len(with_inner(n)) for n in onnx.load(ours, load_external_data=False).graph.node)
    resident = [fresh_resident(path, sizes) for path, sizes in resident_cases(case, original, ours)]
    begin = time.monotonic()
    fresh_resident(original, [case.at(case.most)])
    run_seconds = time.monotonic() - begin
    return {
        "plan": True,
        "seconds": round(seconds),
        "run_seconds": round(run_seconds, 1),
        "load": round(os.getloadavg()[0], 1),
        "original_bytes": largest["original_peak_bytes"],
        "promised_bytes": seen["family"]["promised_bytes"],
        "sizes": len(runs),
        "same": sum(run["outputs_identical"] for run in runs),
        "resident_bytes": resident,
        "nodes": nodes,
    }


def resident_cases(case: Case, original: Path, ours: Path) -> list[tuple[Path, list[dict[str, int]]]]:
    """The original and the file after sizes that rise and fall, and the file after the largest alone."""
    return [(original, order(case)), (ours, order(case)), (ours, [case.at(case.most)])]


def with_inner(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A node, and those of the graphs in it."""
    return [node, *(deep for a in node.attribute for each in a.g.node for deep in with_inner(each))]


def bits(name: str, case: Case, original: Path, ours: Path) -> Row:
    """At how many of BITS random sizes outputs have the same bits."""
    sessions, rng = [session_of(path) for path in (original, ours)], np.random.default_rng(0)
    same = 0
    for seed in range(BITS):
        feeds = feeds_of(sessions[0], case.drawn(rng), seed)
        outputs = [session.run(None, feeds) for session in sessions]
        same += all(one.tobytes() == other.tobytes() for one, other in zip(*outputs, strict=True))
    return {"asked": BITS, "same": same}


def times(name: str, case: Case, original: Path, ours: Path) -> Row:
    """Least time against the original's at a short and a middling size, runs in turn, in several sets of sessions.

    Where weights come to lie in memory makes one session slower than another of the same file, so that the original
    stands in each set twice: what lies between these two is what the figures may be off by. Threads sleep as soon as a
    run ends: they would go on spinning on the core that the next session's thread is bound to.
    """
    paths = (original, ours, original)
    least = {size: [math.inf] * len(paths) for size in case.short}
    for _ in range(SESSIONS):
        sessions = [session_of(path, in_turn_options(SessionSettings(exact=False))) for path in paths]
        for size in case.short:
            for at, seconds in enumerate(_least_in_turn(sessions, feeds_of(sessions[0], case.at(size)))):
                least[size][at] = min(least[size][at], seconds)
    found = {
        str(size): {"original_seconds": one, "percent": 100 * (own / one - 1), "again_percent": 100 * (again / one - 1)}
        for size, (one, own, again) in least.items()
    }
    return {"at": found, "load": round(os.getloadavg()[0], 1)}


def _least_in_turn(sessions: Sequence[ort.InferenceSession], feeds: Feeds) -> list[float]:
    """The least seconds of a run of each session."""
    least, rounds, begin = [math.inf] * len(sessions), 0, time.monotonic()
    while rounds < ROUNDS or time.monotonic() - begin < SHORT_SECONDS:
        for at, session in enumerate(sessions):
            start = time.perf_counter()
            session.run(None, feeds)
            least[at] = min(least[at], time.perf_counter() - start)
        rounds += 1
    return least


MEASURES: Mapping[str, Callable[[str, Case, Path, Path], Row]] = {"compile": compiled, "bits": bits, "times": times}


def measured(name: str, keys: Sequence[Key], models: Path) -> Iterator[Row]:
    """The parts of a model that are asked for; what is measured of a file, only where there is one."""
    case = CASES[name]
    GENERATED.mkdir(parents=True, exist_ok=True)
    original, ours = models / f"{name}.onnx", GENERATED / f"{name}.any.onnx"
    if case.build is not None:
        original = GENERATED / f"{name}.onnx"
        if not original.exists():
            case.build(original)
    for _, part in keys:
        if part == "compile" or by_part(BENCH.rows()).get((name, "compile"), {}).get("plan"):
            yield {"model": name, "part": part, **MEASURES[part](name, case, original, ours)}


def by_part(rows: list[Row]) -> dict[tuple[str, str], Row]:
    """All that was measured, by model and part; later lines count."""
    return {(row["model"], row["part"]): row for row in rows}


def line(name: str, rows: dict[tuple[str, str], Row]) -> str:
    """One row of the table."""
    case, made = CASES[name], rows[name, "compile"]
    sizes = ", ".join([*(f"{n}={size}" for n, size in case.dims.items()), *case.limits])
    cells = [case.title, sizes, case.budget]
    if not made["plan"]:
        why = "no plan" if made.get("failed") is None else f"verification failed: {made['failed']}"
        return f"| {' | '.join([*cells, why, *['-'] * 6, told(made)])} |"
    same, timed = rows.get((name, "bits")), rows.get((name, "times"), {"at": {}})["at"]
    cells += [
        f"{format_bytes(made['original_bytes'])} to {format_bytes(made['promised_bytes'])}",
        f"{100 * made['promised_bytes'] / made['original_bytes']:.1f} %",
        *(compared(size, timed[str(size)]) if timed else "-" for size in case.short),
        f"{same['same']} of {same['asked']}" if same else "-",
        " / ".join(format_bytes(max(0, each)) for each in made["resident_bytes"]),
        str(made["nodes"]),
        told(made),
    ]
    return f"| {' | '.join(cells)} |"


def drawn_lines() -> list[str]:
    """What became of random encoders."""
    ends = Counter(row.status.strip() for row in drawn.read_rows())
    if not ends:
        return []
    found = ", ".join(f"{count} {status}" for status, count in ends.most_common())
    return [
        "",
        f"Of {ends.total()} random encoders, compiled to 50 % for batches of 1 to {drawn.MOST_BATCH} and lengths of 1",
        f"to {drawn.LONGEST}, verified (bits, order, peaks at up to 16 sizes, what processes keep), then run at",
        f"{drawn.SIZES} random sizes each (`python -m tests.torch_like.any_size 0 200 --write`): {found}.",
    ]


def compared(size: int, timed: Row) -> str:
    """The time against the original's, and a second session of the original against the first, if there was one."""
    again = f" ({timed['again_percent']:+.0f} %)" if "again_percent" in timed else ""
    return f"{timed['percent']:+.0f} %{again} at {size}"


def told(made: Row) -> str:
    """How long compiling and the original at its largest took, and how many others wanted the machine's two cores."""
    run = f", a run {made['run_seconds']:.1f} s" if "run_seconds" in made else ""
    return f"{made['seconds']} s{run}, load {made['load']:.0f}"


def broken(rows: Mapping[tuple[str, str], Row]) -> list[str]:
    """Rows whose bits differ at a size, or whose process holds more after many sizes than after the largest."""
    found = [
        f"{name}: {row['same']} of {row['asked']} same bits"
        for (name, part), row in rows.items()
        if part == "bits" and row["same"] < row["asked"]
    ]
    for (name, part), row in rows.items():
        if part == "compile" and row["plan"]:
            _, after, largest = row["resident_bytes"]
            if not is_kept("after_all_sizes", largest, after):
                found.append(
                    f"{name}: {format_bytes(after)} after many sizes, {format_bytes(largest)} after the largest"
                )
    return found


HEAD = """# Models compiled for all sizes

Made by `python -m bench.any_size`; `make bench-any-size` does it all, exports by torch among it.
Names say layers x heads x width of a head. Peaks are those of a run at the largest sizes, without weights: the
original's, and what the file promises. Times are against the original, the least of runs in turn, in four sessions of
each; in brackets the original in a session of its own once more, against itself. Where that was more than a tenth off
the measurement was thrown away. Rows without brackets are older: threads of either session spun in the other's way, so
that they may be off by a fifth. Same bits: of 200 random sizes, small ones as often as large ones. Resident is what a
process holds of its own after runs of the lengths 100 (or most), most, most/16, most/2, least: the original, the file,
and the file after the largest length alone. Beside the time of compiling stand that of a process which loads the
original and runs it once at the largest length, and the load: how many processes wanted the machine's two cores when
compiling ended.

| model | sizes | budget | peak at most | share | time, short | longer | same bits | resident | nodes | compiled in |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def page(rows: list[Row]) -> str:
    """The table, a line for each model that was compiled."""
    found = by_part(rows)
    lines = [line(name, found) for name in CASES if (name, "compile") in found]
    return HEAD + "\n".join([*lines, *drawn_lines()]) + "\n"


BENCH = Bench("any_size", ("model", "part"), page, json.dumps)


@click.command()
@click.option("--models", type=click.Path(path_type=Path), default=GENERATED, help="Folder of exports by torch.")
@click.option("--only", multiple=True, type=click.Choice(list(CASES)), help="Name of a model; may be repeated.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="What is measured; may be repeated.")
@click.option("--again", is_flag=True, help="Also what was measured before.")
@shard_option
def main(models: Path, only: Sequence[str], parts: Sequence[str], again: bool, shard: Shard) -> None:
    """Measure what is missing and write the table."""
    wanted = (Wanted(name, [(name, part) for part in parts or PARTS]) for name in only or CASES)
    BENCH.run(wanted, partial(measured, models=models), again=again, shard=shard)
    BENCH.write()
    if lost := broken(by_part(BENCH.rows())):
        sys.exit("\n".join(lost))


if __name__ == "__main__":
    main()
