"""What `run` is asked for a schedule of stages, checked before any work."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remat_cli.base.errors import ConfigError
from remat_cli.settings.run import given_words


@dataclass(frozen=True)
class PipelineOptions:
    """What `remat run` is asked for a schedule, besides settings.

    `micro_batches` None: as many as planned. `state` is the folder of saved states (None: `state` beside the schedule,
    where one is needed). `address` None: a cluster of this machine alone.
    """

    is_local: bool = False
    address: str | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    steps: int = 1
    is_flushed: bool = True
    micro_batches: int | None = None
    learning_rate: float = 0.001
    state: Path | None = None
    resume: bool = False
    trace: Path | None = None
    intra_op_threads: int = 0


OF_SCHEDULES = {
    "local": "is_local",
    "address": "address",
    "resource": "resources",
    "steps": "steps",
    "flush": "is_flushed",
    "micro_batches": "micro_batches",
    "learning_rate": "learning_rate",
    "state": "state",
    "resume": "resume",
    "trace": "trace",
    "intra_op_threads": "intra_op_threads",
}
"""Words, and what they are called here."""


def pipeline_options(path: Path, words: Mapping[str, Any]) -> PipelineOptions:
    """Turn the words of `run` into options for a schedule.

    Raises:
        ConfigError: a word that makes no sense for a schedule, or a value that cannot be used.
    """
    values = given_words(path, words, OF_SCHEDULES, "a schedule of stages")
    if "resources" in values:
        texts, found = values["resources"], {}
        for text in [texts] if isinstance(texts, str) else texts:
            name, _, amount = text.partition("=")
            try:
                found[name] = float(amount)
            except ValueError:
                found[name] = 0.0
            if not name or not 0 < found[name] < 1e6:
                raise ConfigError(f"resource '{text}' is not NAME=N: write --resource gpu=1")
        values["resources"] = found
    if "state" in values:
        values["state"] = Path(values["state"])
    options = PipelineOptions(**values)
    if not 0 < options.learning_rate < float("inf"):
        raise ConfigError(f"learning rate {options.learning_rate} must be above 0")
    if options.intra_op_threads < 0:
        raise ConfigError(f"intra_op_threads = {options.intra_op_threads} must not be negative")
    return options
