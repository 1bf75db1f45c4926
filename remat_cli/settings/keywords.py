"""Words of the command line and of the Python functions as keys of the settings."""

from collections.abc import Mapping
from typing import Any

import msgspec

from remat_cli.core.values.training import TrainOptions
from remat_cli.settings.settings import Settings

WORDS: Mapping[str, str] = {
    "dim": "dims",
    "limit": "limits",
    "input_shape": "input_shapes",
    "input": "inputs",
    "device": "devices",
    "option": "options",
}
"""Words that may be given several times, and the settings that hold all of them."""
TRAIN_WORDS: Mapping[str, str] = {
    **{key: key for key in (field.name for field in msgspec.structs.fields(TrainOptions)) if key != "output"},
    "output_name": "output",
    "freeze": "frozen",
    "gradient_rule": "gradient_rules",
    "optimizer_option": "optimizer_options",
}
"""Words of the training step, and its options that they set."""


def as_flags(words: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The words that are settings, by key and as flags are given (None: not given), and those that are none."""
    keys = {field.encode_name for field in msgspec.structs.fields(Settings)}
    named = {WORDS.get(word, word): value for word, value in with_train(words).items()}
    flags = {key: value for key, value in named.items() if key in keys}
    return flags, {key: value for key, value in named.items() if key not in keys}


def with_train(words: Mapping[str, Any]) -> dict[str, Any]:
    """The words with those of the training step as one setting, `train`, where there are any."""
    rest = {word: value for word, value in words.items() if word not in TRAIN_WORDS}
    given = {TRAIN_WORDS[word]: words[word] for word in words if word in TRAIN_WORDS}
    train = {key: value for key, value in given.items() if value is not None and value != ()}
    if rest.pop("gradients_only", None):
        train["optimizer"] = None
    return {**rest, "train": train} if given else rest
