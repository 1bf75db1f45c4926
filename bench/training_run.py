"""Trains with a step in a process of its own, as the loop does that `remat train` prints."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from remat_cli.runtime.observe.resident import ready, resident_bytes, watch_here, watched
from remat_cli.runtime.sessions._ort import Advance, run_session
from remat_cli.runtime.sessions.session import SessionSettings, open_session

STEPS = 100
CLASSES, TOKENS = 10, 96  # of what is drawn


class TrainingJob(msgspec.Struct, frozen=True):
    """Train with a step for so many batches, which are drawn from a seed."""

    step: str
    state: str
    learning_rate: float
    steps: int = STEPS


class Trained(msgspec.Struct, frozen=True):
    """The loss of each step, the most that the process held meanwhile beyond its start, and the seconds of all runs."""

    losses: tuple[float, ...]
    peak_bytes: int
    seconds: float


def train(job: TrainingJob, advance: Advance) -> Trained:
    """Train as the loop does that `remat train` prints; to be run in a fresh process."""
    settings = SessionSettings(exact=False)
    state = dict(np.load(job.state))
    _, _tiny = ready((), settings)
    _, watch = watch_here()
    baseline = resident_bytes().total_bytes
    losses, seconds = list[float](), 0.0
    session, peak, _ = watched(lambda: open_session(Path(job.step), settings), watch)
    peaks = [peak.total_bytes - baseline]
    batches = drawn(session, frozenset(state), job.steps)
    rate = np.array(job.learning_rate, np.float32)
    for number, batch in enumerate(batches):
        feeds = {**state, **batch, "learning_rate": rate}
        results, peak, took = watched(partial(run_session, session, feeds), watch)
        peaks.append(peak.total_bytes - baseline)
        seconds += took
        state = {name.removesuffix(".next"): each.copy() for name, each in results.items() if name.endswith(".next")}
        losses.append(float(results["loss"]))
        results.clear()
        advance(number + 1, job.steps)
    return Trained(tuple(losses), max(peaks), seconds)


def drawn(session: Any, state: frozenset[str], steps: int) -> Iterator[dict[str, Any]]:
    """Batches that can be learnt: images that show their class, texts in which each token leads to the next."""
    shapes = {each.name: tuple(each.shape) for each in session.get_inputs() if each.name not in state}
    dice, shape = np.random.default_rng(0), shapes["x"]
    patterns = dice.standard_normal((CLASSES, *shape[1:])).astype(np.float32)
    for _ in range(steps):
        if len(shape) == 2:
            first, pace = dice.integers(0, TOKENS, (shape[0], 1)), dice.integers(1, 4, (shape[0], 1))
            tokens = (first + pace * np.arange(shape[1] + 1)) % TOKENS
            yield {"x": tokens[:, :-1].astype(np.int64), "target": tokens[:, 1:].astype(np.int64)}
        else:
            classes = dice.integers(0, CLASSES, shape[0])
            noise = dice.standard_normal(shape).astype(np.float32)
            yield {"x": patterns[classes] + noise, "target": classes}
