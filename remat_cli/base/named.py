"""Things that tables name by `module:name`, so that a table imports nothing and a row can be left out."""

import importlib
from typing import Any, Final

from remat_cli.base.errors import MissingDependency

PLANNERS: Final = ("numba", "ortools")
"""Libraries that only planning needs, which an installation that runs plans can do without."""
GET_PLANNERS: Final = 'pip install "remat_cli[plan]"'


def named(target: str) -> Any:
    """What a name such as `remat_cli.cli.run:run_command` stands for; imports the module.

    Raises:
        MissingDependency: the module needs a library of PLANNERS, which is not installed.
    """
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in PLANNERS:
            raise
        raise MissingDependency(f"planning needs {library}, which is not installed: {GET_PLANNERS}") from error
