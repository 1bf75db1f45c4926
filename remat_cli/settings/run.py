"""What `run` is asked for: a plan is timed, the stages of a schedule are run; checked before any work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remat_cli.base.errors import ConfigError
from remat_cli.core.pipelines.pipeline_file import is_pipeline


@dataclass(frozen=True)
class RunOptions:
    """What `remat run` is asked for a plan, besides settings.

    `is_capped`: the runtime may not take more of any memory than its budget, however it rounds and splits.
    """

    repeat: int = 5
    trace: Path | None = None
    is_capped: bool = False


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


OF_PLANS = {"repeat": "repeat", "is_capped": "enforce-budget"}
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
    "intra_op_threads": "intra_op_threads",
}
"""Words, and what they are called here."""


def run_request(path: Path, words: Mapping[str, Any]) -> RunOptions | PipelineOptions:
    """What the words ask for, which depends on what the file is; None, False and nothing stand for not given.

    Raises:
        ConfigError: a word that makes no sense for this file, or a value that cannot be used.
    """
    given = {word: value for word, value in words.items() if value not in (None, (), [], {}) and value is not False}
    given |= {"flush": False} if words.get("flush") is False else {}
    is_schedule = is_pipeline(path)
    if wrong := [word for word in (OF_PLANS if is_schedule else OF_SCHEDULES) if word in given]:
        name = OF_PLANS.get(wrong[0], wrong[0]).replace("_", "-")
        what = "a schedule of stages" if is_schedule else "a plan"
        raise ConfigError(f"--{name} makes no sense here: {path} is {what}")
    trace: dict[str, Any] = {"trace": Path(given["trace"])} if "trace" in given else {}
    if not is_schedule:
        return RunOptions(**{word: given[word] for word in OF_PLANS if word in given}, **trace)
    values = {name: given[word] for word, name in OF_SCHEDULES.items() if word in given}
    if "resources" in values:
        values["resources"] = _resources(values["resources"])
    if "state" in values:
        values["state"] = Path(values["state"])
    options = PipelineOptions(**values, **trace)
    if not 0 < options.learning_rate < float("inf"):
        raise ConfigError(f"learning rate {options.learning_rate} must be above 0")
    if options.intra_op_threads < 0:
        raise ConfigError(f"intra_op_threads = {options.intra_op_threads} must not be negative")
    return options


def _resources(texts: Sequence[str] | str) -> dict[str, float]:
    found = {}
    for text in [texts] if isinstance(texts, str) else texts:
        name, _, amount = text.partition("=")
        try:
            found[name] = float(amount)
        except ValueError:
            found[name] = 0.0
        if not name or not 0 < found[name] < 1e6:
            raise ConfigError(f"resource '{text}' is not NAME=N: write --resource gpu=1")
    return found
