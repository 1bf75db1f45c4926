"""Measures what it takes to open a session in the middle of a run, with weights that it packs, and to close it."""

from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from remat_cli.core.paging.weight_paging import MIB, LoadCosts
from remat_cli.runtime.measure.spill_speed import seconds_of
from remat_cli.runtime.sessions._ort import Advance, Array, host_value, ignore_progress, run_fresh
from remat_cli.runtime.sessions.heap import give_blocks_back
from remat_cli.runtime.sessions.session import SessionSettings, in_turn_options, open_session

PASSES = 12


class OpenJob(msgspec.Struct, frozen=True):
    """Models of one product, by the shape of the weight that each takes by name."""

    models: tuple[tuple[str, tuple[int, int]], ...]
    weight: str
    settings: SessionSettings


class OpenTimes(msgspec.Struct, frozen=True):
    """Seconds that each model took, to be opened and closed."""

    seconds: tuple[float, ...]


def measure_opening(job: OpenJob, advance: Advance = ignore_progress) -> LoadCosts:
    """What opening takes, in a fresh process; `job` has a model with a small weight and one with a large one.

    Raises:
        RuntimeFailure: the runtime refuses a model.
    """
    small, large = run_fresh(time_opening, job, advance).seconds
    (rows, columns), (more_rows, more_columns) = (shape for _, shape in job.models)
    more_mib = 4 * (more_rows * more_columns - rows * columns) / MIB
    return LoadCosts(round(small * 1e9), round(max(0.0, large - small) * 1e9 / more_mib))


def time_opening(job: OpenJob, advance: Advance) -> OpenTimes:
    """The least of some passes of each model, in this process, as in a run that pages: noise only adds."""
    give_blocks_back()
    found = []
    for number, (model, shape) in enumerate(job.models):
        weight = np.ones(shape, np.float32)
        found.append(min(seconds_of(partial(_open, job, Path(model), weight)) for _ in range(PASSES)))
        advance(number + 1, len(job.models))
    return OpenTimes(tuple(found))


def _open(job: OpenJob, model: Path, weight: Array) -> None:
    """Open a session that is given a weight; it is closed when this returns."""
    options = in_turn_options(job.settings)
    options.enable_cpu_mem_arena = False
    value = host_value(weight)
    options.add_initializer(job.weight, value)
    open_session(model, job.settings, options)
