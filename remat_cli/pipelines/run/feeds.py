"""What is fed to a pipeline, by micro-batch: the user's own arrays, or seeded ones."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from remat_cli.base.errors import ConfigError, ModelError
from remat_cli.pipelines.plan.schedule_file import PipelineFile
from remat_cli.pipelines.run.local import Feed
from remat_cli.runtime.sessions._ort import Array
from remat_cli.runtime.sessions.array_file import read_arrays
from remat_cli.runtime.sessions.feeds import checked, make_feeds

RATE = "learning_rate"


def pipeline_feed(plan: PipelineFile, folder: Path, given: Path | None, seed: int) -> Feed:
    """Inputs by number of the micro-batch: rows of the user's arrays in turn, or drawn anew from seed and number.

    Arrays of a file have the shape of one micro-batch, or one more dimension in front, of micro-batches.

    Raises:
        ModelError: the file does not fit.
    """
    told = {} if plan.told is None else read_arrays(folder / plan.told)
    if given is None:
        return lambda batch: {**make_feeds(plan.inputs, seed + batch), **told}
    arrays = read_arrays(given)
    specs = {spec.name: spec for spec in plan.inputs}
    if unknown := [name for name in arrays if name not in (*specs, *plan.settings)]:
        raise ModelError(f"inputs file {given} holds '{unknown[0]}', which is no input; they are: {', '.join(specs)}")
    if missing := [name for name in specs if name not in arrays]:
        raise ModelError(f"inputs file {given} lacks input '{missing[0]}'")
    rows: dict[str, list[Array]] = {}
    for name, spec in specs.items():
        array = arrays[name]
        batches = list(array) if array.ndim == len(spec.shape) + 1 and len(array) else [array]
        rows[name] = [checked(given, spec, np.asarray(batch)) for batch in batches]
    return lambda batch: {name: each[batch % len(each)] for name, each in rows.items()}


def chosen_settings(plan: PipelineFile, given: Path | None, rate: float) -> Mapping[str, Array]:
    """Values of what updates read besides gradients and state.

    Raises:
        ConfigError: one is neither the learning rate nor in the inputs file.
    """
    arrays = {} if given is None else read_arrays(given)
    found: dict[str, Array] = {RATE: np.array(rate, np.float32)}
    found |= {name: arrays[name] for name in plan.settings if name in arrays}
    if missing := [name for name in plan.settings if name not in found]:
        raise ConfigError(f"updates read '{missing[0]}': give it in a file with --input FILE.npz")
    return {name: found[name] for name in plan.settings}
