"""Things that tables name by `module:name`, so that a table imports nothing and a row can be left out."""

import importlib
from typing import Any


def named(target: str) -> Any:
    """What a name such as `remat_cli.cli.run:run_command` stands for; imports the module."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
