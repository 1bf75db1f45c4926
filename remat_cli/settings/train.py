"""Settings of training, and parsing of `name=value` texts."""

from pathlib import Path
from typing import Any

from remat_cli.base.errors import ConfigError
from remat_cli.base.files import check_target
from remat_cli.core.values.training import StepPaths, TrainOptions


def check_train(options: TrainOptions) -> None:
    """Check that it is said what the loss is, once.

    Raises:
        ConfigError: no loss, or two.
    """
    if options.loss is None and options.loss_output is None:
        raise ConfigError("no loss: add --loss cross-entropy, mse, l1 or dice, or --loss-output NAME")
    if options.loss is not None and options.loss_output is not None:
        raise ConfigError(f"--loss {options.loss} and --loss-output {options.loss_output}: the loss can be only one")
    if options.batch is not None and options.batch < 1:
        raise ConfigError(f"--batch {options.batch}: a batch has at least one sample")
    if options.optimizer is None and options.optimizer_options:
        raise ConfigError("--optimizer-option needs --optimizer: with gradients only nothing is updated")


def step_paths(model: Path, output: Path | None, overwrite: bool) -> StepPaths:
    """Where `train` writes, checked before any work; defaults stand beside the model.

    Raises:
        ConfigError: a path cannot be written, exists without --force, or is the model itself.
    """
    step = output or model.with_name(f"{model.stem}.train.onnx")
    state = step.with_name(f"{step.name.removesuffix('.onnx')}.state.npz")
    check_target(step, sources=(model,), overwrite=overwrite)
    check_target(state, sources=(model, step), overwrite=overwrite)
    return StepPaths(step, state)


def parse_train(value: object) -> object:
    """Options of `remat train`; those of the optimizer and rules also as `name=value` texts.

    Raises:
        ConfigError: not a mapping of options.
    """
    if not isinstance(value, dict):
        raise ConfigError("train must hold options, such as `loss: cross-entropy`")
    given = {str(key).replace("-", "_"): item for key, item in value.items()}
    for key, example in (("optimizer_options", "beta1=0.9"), ("gradient_rules", "MyOp=my_rules:my_op")):
        if key in given:
            given[key] = parse_pairs(given[key], "=", key.replace("_", " "), example)
    return given


def parse_pairs(value: object, separator: str, what: str, example: str) -> dict[str, Any]:
    """A mapping as it is, or `name<separator>value` texts split at the last separator (names may hold colons).

    Raises:
        ConfigError: a text without a separator, or no list.
    """
    if isinstance(value, dict):
        return {str(key): item for key, item in value.items()}
    pairs: dict[str, Any] = {}
    for text in [value] if isinstance(value, str) else as_sequence(value, what, example):
        split = str(text).rpartition(separator) if separator == ":" else str(text).partition(separator)
        if not split[0] or not split[1]:
            raise ConfigError(f"{what} '{text}' is not understood: write {example}")
        pairs[split[0].strip()] = split[2].strip()
    return pairs


def as_sequence(value: object, what: str, example: str) -> list[Any] | tuple[Any, ...]:
    """A value that must be a list.

    Raises:
        ConfigError: it is none; the text says how to write it.
    """
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{what} '{value}' is not understood: write {example}")
    return value
