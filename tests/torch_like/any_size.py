"""Compile random encoders for all sizes and say what became of each: `python -m tests.torch_like.any_size 0 40`."""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime as ort

import remat_cli as remat
from remat_cli.base.errors import RematError
from tests.torch_like.encoders import feeds_of, save_encoder_of
from tests.torch_like.outcome import ERROR, EXACT, FAILED, NO_PLAN
from tests.torch_like.survey import say

MOST_BATCH, LONGEST = 4, 512
SIZES = 10
ROWS = Path(__file__).resolve().parents[2] / "bench" / "results" / "any_size_drawn.jsonl"


class SizesOutcome(msgspec.Struct, frozen=True):
    """What became of one encoder at one budget; `details` say what was broken, or why there is no plan."""

    seed: int
    budget: str
    status: str
    details: tuple[str, ...] = ()


def read_rows() -> list[SizesOutcome]:
    """What was written."""
    lines = ROWS.read_bytes().splitlines() if ROWS.exists() else []
    return [msgspec.json.decode(line, type=SizesOutcome) for line in lines]


def any_size_outcome(seed: int, budget: str, folder: Path) -> SizesOutcome:
    """Compile the encoder of a seed for batches of 1 to 4 and lengths of 1 to 512, and run it at ten sizes."""
    source, target = folder / f"encoder_{seed}.onnx", folder / f"encoder_{seed}.remat.onnx"
    save_encoder_of(seed, source)
    dims = {"batch": f"1..{MOST_BATCH}", "seq": f"1..{LONGEST}"}
    try:
        found = remat.compile(
            str(source), budget=budget, output=str(target), force=True, capped_run=False, time_limit="3s", dim=dims
        )
    except RematError as error:
        return SizesOutcome(seed, budget, ERROR, (str(error),))
    if found.failed_output is not None:
        return SizesOutcome(seed, budget, FAILED, found.verification.failures if found.verification else ())
    if found.output is None:
        return SizesOutcome(seed, budget, NO_PLAN)
    broken = tuple(_differences(seed, source, target))
    return SizesOutcome(seed, budget, FAILED if broken else EXACT, broken)


def _differences(seed: int, source: Path, target: Path) -> list[str]:
    """Sizes at which outputs are not those of the source, run one after another in one session each."""
    before, after = (ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]) for path in (source, target))
    dice, found = np.random.default_rng(seed), []
    for _ in range(SIZES):
        batch, length = int(dice.integers(1, MOST_BATCH + 1)), int(dice.integers(1, LONGEST + 1))
        feeds = feeds_of(seed, batch, length)
        pairs = zip(before.run(None, feeds), after.run(None, feeds), strict=True)
        if not all(ours.tobytes() == theirs.tobytes() for theirs, ours in pairs):
            found.append(f"outputs differ at batch={batch}, seq={length}")
    return found


def main() -> None:
    """One line per row, then how many ended how."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, help="the first seed that is not run")
    parser.add_argument("--budget", default="50%")
    parser.add_argument(
        "--write", action="store_true", help=f"also as lines of {ROWS.name}; seeds that it has are left"
    )
    asked = parser.parse_args()
    known = {row.seed for row in read_rows() if row.budget == asked.budget} if asked.write else set()
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in sorted(set(range(asked.first, asked.last)) - known):
            row = any_size_outcome(seed, asked.budget, Path(folder))
            if asked.write:
                with ROWS.open("ab") as file:
                    file.write(msgspec.json.encode(row) + b"\n")
            ends[row.status] += 1
            say(f"{seed:5} {row.status}  {'; '.join(row.details)}")
    say(", ".join(f"{count} {status}" for status, count in ends.most_common()))


if __name__ == "__main__":
    main()
