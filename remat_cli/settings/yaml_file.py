"""Read YAML files of settings, and say which key was perhaps meant."""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from remat_cli.base.errors import ConfigError

T = TypeVar("T")


def read_yaml(file: Path, what: str = "configuration") -> dict[str, Any]:
    """The keys and values of a file; `what` names it in messages.

    Raises:
        ConfigError: the file is missing, is not YAML, or holds no mapping.
    """
    import yaml

    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{what} {file} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what} {file} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{what} {file} is not YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{what} {file} must hold `key: value` lines, not a {type(values).__name__}")
    return {str(key).replace("-", "_"): value for key, value in values.items()}


def converted(values: Mapping[str, Any], kind: type[T]) -> T:
    """Values as a struct.

    Raises:
        ConfigError: one cannot be used; the text names key and value.
    """
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        key = re.split(r"[.\[`]", path)[0]
        raise ConfigError(f"{key} = {values.get(key)!r} cannot be used: {message}") from None


def suggest(key: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown key: the nearest known one, or all of them."""
    nearest = difflib.get_close_matches(key, known, 1, 0.5)
    return f"; did you mean '{nearest[0]}'?" if nearest else f"; known keys: {', '.join(known)}"
