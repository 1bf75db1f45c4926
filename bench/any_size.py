"""Encoders for any length, compiled once: what the largest takes, what others take, and what stays behind.

`python -m bench.any_size --write` makes bench/results/any_size.md anew; `--length 8192` for the length of the issue.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from examples.make_encoder import save_encoder
from remat_cli import compile as compile_file
from remat_cli.base.units import format_bytes
from remat_cli.runtime.resident import resident_bytes

RESULT = Path(__file__).with_name("results") / "any_size.md"
SHAPES = ((2, 768, 12), (12, 256, 4))  # layers, width, heads
BITS = 200
ROUNDS = 5


def session_of(path: Path) -> ort.InferenceSession:
    """A session as users open it."""
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def feeds(width: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    """One text of a length."""
    return {"x": np.random.default_rng(seed).standard_normal((1, length, width)).astype(np.float32)}


def resident_after(path: Path, width: int, lengths: Sequence[int]) -> int:
    """What a process holds of its own for runs of these lengths, one after the other."""
    session = session_of(path)
    before = resident_bytes().anonymous_bytes
    for length in lengths:
        session.run(None, feeds(width, length))
    return resident_bytes().anonymous_bytes - before


def fresh_resident(path: Path, width: int, lengths: Sequence[int]) -> int:
    """`resident_after` in a process of its own."""
    with ProcessPoolExecutor(1) as pool:
        return pool.submit(resident_after, path, width, lengths).result()


def time_ratio(paths: tuple[Path, Path], width: int, length: int) -> float:
    """Least time of the second over that of the first, in turns."""
    sessions, given, least = [session_of(path) for path in paths], feeds(width, length), [float("inf")] * 2
    rounds = ROUNDS if length > 512 else 8 * ROUNDS
    for _ in range(rounds):
        for at, session in enumerate(sessions):
            begin = time.perf_counter()
            session.run(None, given)
            least[at] = min(least[at], time.perf_counter() - begin)
    return least[1] / least[0]


def equal_sizes(paths: tuple[Path, Path], width: int, most: int) -> int:
    """At how many of BITS random lengths outputs have the same bits; short ones are as frequent as long ones."""
    sessions, generator = [session_of(path) for path in paths], np.random.default_rng(0)
    lengths = np.round(most ** generator.random(BITS)).astype(int)
    same = 0
    for seed, length in enumerate(lengths):
        outputs = [session.run(None, feeds(width, int(length), seed))[0] for session in sessions]
        same += bool(np.array_equal(*outputs))
    return same


def row(shape: tuple[int, int, int], most: int, budget: str, folder: Path) -> str:
    """Compile one encoder and measure it."""
    layers, width, heads = shape
    original = save_encoder(folder / f"encoder_{layers}_{width}.onnx", layers, width, heads)
    begin = time.monotonic()
    found = compile_file(
        original,
        budget=budget,
        dim={"batch": 1, "seq": f"1..{most}"},
        capped_run=False,
        force=True,
        output=folder / "any.onnx",
    )
    seconds = time.monotonic() - begin
    if found.output is None:
        return f"| {layers} x {width} | {most} | {budget} | no plan | | | | | | | |"
    ours = Path(found.output)
    seen = json.loads((folder / "any.plan.json").read_text())["verification"]["family"]
    largest = max(seen["runs"], key=lambda run: run["original_peak_bytes"])
    pair = (original, ours)
    order = [100, most, most // 16, most // 2, 1]
    cells = [
        f"{layers} x {width}",
        str(most),
        budget,
        f"{format_bytes(largest['original_peak_bytes'])} to {format_bytes(seen['promised_bytes'])}",
        f"{100 * seen['promised_bytes'] / largest['original_peak_bytes']:.1f} %",
        *(f"{100 * (time_ratio(pair, width, length) - 1):+.0f} %" for length in (128, min(most, 2048))),
        f"{equal_sizes(pair, width, most)} of {BITS}",
        " / ".join(
            format_bytes(fresh_resident(path, width, lengths))
            for path, lengths in ((original, order), (ours, order), (ours, [most]))
        ),
        str(sum(1 for node in onnx.load(ours, load_external_data=False).graph.node for _ in body_of(node))),
        f"{seconds:.0f} s",
    ]
    return f"| {' | '.join(cells)} |"


def body_of(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A node, and those of the graphs in it."""
    return [node, *(inner for attribute in node.attribute for each in attribute.g.node for inner in body_of(each))]


def main() -> None:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--budget", default="20%")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(shape, options.length, options.budget, Path(folder)) for shape in SHAPES]
    text = "\n".join(
        [
            "# Encoders for any length",
            "",
            f"Made by `python -m bench.any_size --length {options.length} --budget {options.budget} --write`.",
            "Peaks are those of runs at the largest length, without weights. Times are against the original, the",
            "least of runs in turns. Resident is what a process holds of its own after runs of the lengths 100, most,",
            "most/16, most/2, 1: the original, the file, and the file after the largest length alone.",
            "",
            "| layers x width | most | budget | peak at most | share | time at 128 | time at 2,048 | same bits | "
            "resident | nodes | compiled in |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )
    sys.stdout.write(text)
    if options.write:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
