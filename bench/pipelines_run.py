"""Pipelines run for real on a local Ray: bits, overlap, micro-batches alive, memory and period beside the plan.

`python -m bench.pipelines_run` trains a ResNet18 and a GPT-2 of small sizes, 20 updates of 8 micro-batches, in 4 stages
on 4 actors and in 2 on 2, and adds a row per run to pipelines_run.jsonl; needs the extra `cluster`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import remat_cli as remat
from bench.bench import Bench, Case, Key, of_lines
from bench.compiling import Row
from bench.pipelines_run_report import run_lines
from sample_models.papers import paper_model

STEPS, BATCHES = 20, 8
MODELS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "ResNet18, image 96": ("resnet18", {"batch": 2, "resolution": (96, 96)}, {"loss": "cross-entropy"}),
    "GPT-2 like, 4 layers": (
        "gpt2",
        {"batch": 2, "length": 64, "layers": 4, "heads": 4, "vocabulary": 2000},
        {"loss": "cross-entropy", "optimizer": "adam"},
    ),
}


def main() -> None:
    """Measure what is missing."""
    wanted = [(devices, mode) for devices in (2, 4) for mode in ("--flush", "--no-flush")]
    BENCH.run((Case(name, [(name, *each) for each in wanted]) for name in MODELS), _measured)


def _measured(name: str, keys: Sequence[Key]) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        yield from _runs(name, [(devices, mode) for _, devices, mode in keys], Path(folder))


def _runs(name: str, wanted: Sequence[tuple[int, str]], folder: Path) -> Iterator[Row]:
    paper, sizes, training = MODELS[name]
    onnx.save(paper_model(paper, **sizes), folder / "model.onnx")
    step = folder / "step.onnx"
    remat.train(folder / "model.onnx", output=step, **training)
    whole = _partition(step, 1, folder)
    for devices, mode in wanted:
        schedule = _partition(step, devices, folder)
        plan = json.loads(schedule.read_text(encoding="utf-8"))
        there = _run(schedule, mode, folder / "there.npz")
        here = _run(schedule, mode, folder / "here.npz", "--local")
        row = {"model": name, "devices": devices, "mode": mode, "stages": len(plan["stages"])}
        row |= {"same_losses": there["given"] == here["given"], "same_state": _same(folder)}
        row["same_as_whole"] = None
        if mode == "--flush":
            alone = _run(whole, mode, folder / "here.npz", "--local")
            pairs = zip(alone["given"], there["given"], strict=True)
            row["same_as_whole"] = max(abs(one - other) / abs(one) for one, other in pairs)
        names = ("planned_period_ns", "period_ns", "overlap", "stages", "actors", "losses")
        yield {**row, "report": {key: there[key] for key in names}, "busy_ns_alone": here["actors"]}


def _partition(step: Path, devices: int, folder: Path) -> Path:
    target = folder / f"stages_{devices}"
    if not target.exists():
        how: dict[str, Any] = {"micro_batches": BATCHES, "method": "1f1b-star", "intra_op_threads": 1}
        remat.partition(step, devices=devices, memory="8GiB", output=target, **how)
    return target / "schedule.json"


def _run(schedule: Path, mode: str, output: Path, *words: str) -> dict[str, Any]:
    asked = ["run", schedule, "--steps", STEPS, mode, "--output", output, "--force", "--intra-op-threads", 1, *words]
    command = [sys.executable, "-m", "remat_cli", *map(str, asked), "-q", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{schedule}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _same(folder: Path) -> bool:
    with np.load(folder / "there.npz") as one, np.load(folder / "here.npz") as other:
        return set(one.files) == set(other.files) and all(
            one[name].tobytes() == other[name].tobytes() for name in one.files
        )


def _told(row: Row) -> str:
    return f"{row['model']:22} {row['devices']} devices {row['mode']}"


BENCH = Bench("pipelines_run", ("model", "devices", "mode"), of_lines(run_lines), _told)

if __name__ == "__main__":
    main()
