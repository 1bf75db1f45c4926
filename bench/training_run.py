"""Trains with a step in a process of its own, as the loop does that `remat train` prints."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from remat_cli.runtime.observe.resident import ready, resident_bytes, watch_here, watched
from remat_cli.runtime.sessions._ort import Advance, Array, run_session
from remat_cli.runtime.sessions.session import SessionSettings, open_session

STEPS = 100
CLASSES, TOKENS = 10, 96  # of what is drawn


class TrainingJob(msgspec.Struct, frozen=True):
    """Train with a step for so many batches, which are drawn from a seed.

    Where it is `nudged`, every weight begins one unit in its last place higher: what that alone does to the losses no
    other order of sums can be blamed for.
    """

    step: str
    state: str
    learning_rate: float
    steps: int = STEPS
    nudged: bool = False


class Trained(msgspec.Struct, frozen=True):
    """The loss of each step, the most that the process held meanwhile beyond its start, and the seconds of all runs.

    `mapped_bytes` are pages of files beside that, such as code of the runtime that ran for the first time: the system
    can drop them, and plans promise nothing of them.
    """

    losses: tuple[float, ...]
    peak_bytes: int
    mapped_bytes: int
    seconds: float


def train(job: TrainingJob, advance: Advance) -> Trained:
    """Train as the loop does that `remat train` prints; to be run in a fresh process."""
    settings = SessionSettings(exact=False)
    state = dict(np.load(job.state))
    if job.nudged:
        state = {name: nudged(array) for name, array in state.items()}
    _, _tiny = ready((), settings)
    _, watch = watch_here()
    np.random.default_rng(0).standard_normal(1)  # else the code that draws data would count as the step's
    baseline = resident_bytes()
    losses, seconds = list[float](), 0.0
    session, peak, _ = watched(lambda: open_session(Path(job.step), settings), watch)
    peaks = [peak.above(baseline)]
    batches = drawn(session, frozenset(state), job.steps)
    rate = np.array(job.learning_rate, np.float32)
    for number, batch in enumerate(batches):
        feeds = {**state, **batch, "learning_rate": rate}
        results, peak, took = watched(partial(run_session, session, feeds), watch)
        peaks.append(peak.above(baseline))
        seconds += took
        for name, array in state.items():
            array[...] = results[f"{name}.next"]
        losses.append(float(results["loss"]))
        results.clear()
        advance(number + 1, job.steps)
    most, mapped = (max(map(attrgetter(name), peaks)) for name in ("anonymous_bytes", "mapped_bytes"))
    return Trained(tuple(losses), most, mapped, seconds)


def nudged(array: Array) -> Array:
    """The next larger numbers, of those that are not zero: what an optimizer remembers is at first."""
    if array.dtype.kind != "f":
        return array
    return np.where(array == 0, array, np.nextafter(array, np.inf, dtype=array.dtype))


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
