"""What `run` is asked for a file: the words that were given, and what they mean for a plan; checked before any work."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remat_cli.base.errors import ConfigError

NOT_GIVEN: tuple[object, ...] = (None, (), [], {})


@dataclass(frozen=True)
class RunOptions:
    """What `remat run` is asked for a plan, besides settings.

    `is_capped`: the runtime may not take more of any memory than its budget, however it rounds and splits.
    """

    repeat: int = 5
    trace: Path | None = None
    is_capped: bool = False


OF_PLANS = {"repeat": "repeat", "trace": "trace", "enforce_budget": "is_capped"}
"""Words, and what they are called here."""


def run_options(path: Path, words: Mapping[str, Any]) -> RunOptions:
    """What the words ask of a plan.

    Raises:
        ConfigError: a word that makes no sense for a plan.
    """
    return RunOptions(**given_words(path, words, OF_PLANS, "a plan"))


def given_words(path: Path, words: Mapping[str, Any], own: Mapping[str, str], what: str) -> dict[str, Any]:
    """The values of those words that are given, by what `own` calls them.

    Raises:
        ConfigError: a word is given that is none of them, and so makes no sense for `what` the file is.
    """
    given = {word: value for word, value in words.items() if value not in NOT_GIVEN}
    if wrong := [word for word in given if word not in own]:
        raise ConfigError(f"--{wrong[0].replace('_', '-')} makes no sense here: {path} is {what}")
    if "trace" in given:
        given["trace"] = Path(given["trace"])
    return {own[word]: value for word, value in given.items()}
