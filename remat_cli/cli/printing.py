"""How a command speaks to whoever runs it, whatever its work is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec


class Printing(msgspec.Struct, frozen=True):
    """The form of the result on stdout, and how much progress stderr gets."""

    format: Literal["text", "json"] = "text"
    quiet: bool = False
    verbose: bool = False
    color: bool = True


def printing_of(flags: Mapping[str, Any], file: Path | None) -> Printing:
    """What flags, configuration file and NO_COLOR ask for.

    Raises:
        ConfigError: a value of the file cannot be used.
    """
    from remat_cli.settings.settings import PRINTING, allows_color
    from remat_cli.settings.yaml_file import converted, read_yaml

    values = {**(read_yaml(file) if file else {}), **{key: flags[key] for key in flags if flags[key] is not None}}
    if not allows_color():
        values["color"] = False
    return converted({key: value for key, value in values.items() if key in PRINTING}, Printing)
