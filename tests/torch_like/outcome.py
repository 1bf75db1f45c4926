"""One compile of a random model, and what became of it."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

import remat_cli as remat
from remat_cli.base.errors import RematError
from remat_cli.core.values.verification import OneModelSeen
from tests.helpers import run_profiled
from tests.torch_like.feeds import random_inputs
from tests.torch_like.model import torch_like_proto

EXACT, LEARNT, NO_PLAN, FAILED, ERROR = "exact", "learnt", "no plan", "failed", "error"


@dataclass(frozen=True)
class Outcome:
    """What became of one compile: its class, the kinds of what went wrong, and lines that say more."""

    seed: int
    budget: str
    status: str
    kinds: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    ops: int = 0
    baseline_bytes: int = 0
    seconds: float = 0.0
    learnt: tuple[str, ...] = field(default=())

    @property
    def line(self) -> str:
        """The row of the survey."""
        size = f"{self.ops:4} ops {self.baseline_bytes / 2**20:6.2f} MiB {self.seconds:5.1f} s"
        return f"{self.seed:6} {self.budget:>4} {size}  {self.status:8} {'; '.join(self.kinds)}".rstrip()


def save_model(seed: int, folder: Path) -> Path:
    """Write the model of a seed."""
    path = folder / f"torch_like_{seed}.onnx"
    onnx.save(torch_like_proto(seed), path)
    return path


def outcome_of(seed: int, budget: str, folder: Path, **settings: Any) -> Outcome:
    """Compile the model of a seed in this folder; every exception is an outcome."""
    path = save_model(seed, folder)
    families = tuple(_families(path))
    asked = {"time_limit": "3s", "intra_op_threads": 1, "dim": {"batch": 1}, "force": True, **settings}
    if "free_batch" not in families:
        del asked["dim"]
    started = time.monotonic()
    try:
        report = remat.compile(path, budget=budget, **asked)
    except Exception as error:
        kind, lines = _error(error)
        took = time.monotonic() - started
        return Outcome(seed, budget, ERROR, (kind,), lines, families, seconds=took)
    status, kinds, details = _judged(report)
    return Outcome(
        seed,
        budget,
        status,
        kinds,
        details,
        families,
        report.ops,
        report.solution.baseline_peak_bytes,
        report.seconds,
        _learnt(report),
    )


def _families(path: Path) -> list[str]:
    """The families that a model file speaks of."""
    props = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    return props["families"].split(",")


def _error(error: Exception) -> tuple[str, tuple[str, ...]]:
    """The kind of an exception, and where it came from."""
    kind = ("refused: " if isinstance(error, RematError) else "") + type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    where = (f"at {Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)
    return kind, (str(error)[:600], *where)


def _judged(report: Any) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Status, kinds and details of a report."""
    if report.verification is None:
        reason = f"exit {report.exit_code}: {report.solution.status}"
        floor = f"floor {report.solution.floor_bytes:,} budget {report.solution.budget_bytes:,}"
        obstacle = report.split_obstacle or ""
        return NO_PLAN, (reason,), (f"{floor}, blocked by {report.blocking_op}", obstacle)
    seen = report.verification
    if report.exit_code == 0 and seen.passed:
        return (LEARNT if _learnt(report) else EXACT), (), ()
    return FAILED, *_broken(report, seen)


def _broken(report: Any, seen: OneModelSeen) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Kinds and details of broken promises."""
    kinds, details = [], list(seen.failures)
    if not seen.are_outputs_kept:
        kinds.append("outputs")
    if not seen.order_honoured:
        kinds.append("order")
        details += _order_differences(report.failed_output)
    if not seen.is_peak_exact:
        kinds.append(f"peak {seen.measured_peak_bytes - seen.predicted_peak_bytes:+,}")
    if not seen.within_budget:
        over = seen.measured_peak_default_session_bytes - report.solution.budget_bytes
        kinds.append(f"default session {over:+,}")
    if seen.capped_run_ok is False:
        kinds.append("cap")
    if not kinds:
        kinds.append("workspace")
        details.append(f"workspace {seen.measured_workspace_bytes} predicted {seen.predicted_workspace_bytes}")
    return tuple(kinds), tuple(details)


def _order_differences(path: str) -> list[str]:
    """Where runs of a model first leave the order of its file, and ops that the runtime put in or took out."""
    proto = onnx.load(path)
    wanted = [node.name for node in proto.graph.node]
    lines = []
    for is_exact in (True, False):
        seen, _, _ = run_profiled(path, random_inputs(proto, 0), exact=is_exact)
        pair = next(((a, b) for a, b in zip(seen, wanted, strict=False) if a != b), None)
        if pair is not None:
            gone, new = sorted(set(wanted) - set(seen))[:4], sorted(set(seen) - set(wanted))[:4]
            options = "exact" if is_exact else "default"
            lines.append(f"{options} options ran '{pair[0]}', not '{pair[1]}'; gone {gone}, new {new}")
    return lines


def _learnt(report: Any) -> tuple[str, ...]:
    """What runs of a plan taught before it was made again."""
    seen = report.verification
    if seen is None or not seen.rounds_of_learning:
        return ()
    return tuple(f"{each.op_type}: {each.cause} ({each.session})" for each in seen.learnt)
