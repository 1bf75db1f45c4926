"""How long two models take beside each other: the only comparison of times that a busy machine does not spoil."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from remat_cli.runtime._arrays import Array, pack_all
from remat_cli.runtime._process import Advance, ignore_progress, run_fresh
from remat_cli.runtime._trials import TimeJob, time_models
from remat_cli.runtime.session import SessionSettings

ROUNDS = 7


def time_in_turn(
    models: tuple[Path, Path], feeds: Mapping[str, Array], settings: SessionSettings, advance: Advance = ignore_progress
) -> tuple[int, int]:
    """Least time of a run of each of two models, in nanoseconds, in one fresh process in which runs alternate.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run a model.
    """
    paths = (str(models[0].resolve()), str(models[1].resolve()))
    return run_fresh(time_models, TimeJob(paths, pack_all(feeds), settings, ROUNDS), advance)
