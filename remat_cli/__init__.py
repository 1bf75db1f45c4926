"""remat: compile an ONNX model to fit a memory budget, with the same outputs, bit for bit.

The command line in Python: `compile_model(Path("model.onnx"), load_config({"budget": "80%"}), silent())`
returns a report; `load("model.plan.json").run({"x": array})` runs a plan in this process and returns its
outputs by name. Everything is imported when first used, so that `remat --help` stays instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remat_cli.base.errors import RematError
    from remat_cli.base.progress import silent
    from remat_cli.commands.compile import compile_model
    from remat_cli.commands.inspect import inspect_file
    from remat_cli.commands.profile import profile_model
    from remat_cli.commands.run import load
    from remat_cli.commands.solve import solve_instance
    from remat_cli.commands.verify import verify_plan
    from remat_cli.core.plan_file import PlanFile, read_plan
    from remat_cli.settings.config import Config, load_config

__version__ = "0.1.0"

__all__ = [
    "Config",
    "PlanFile",
    "RematError",
    "__version__",
    "compile_model",
    "inspect_file",
    "load",
    "load_config",
    "profile_model",
    "read_plan",
    "silent",
    "solve_instance",
    "verify_plan",
]

_HOME = {
    "Config": "remat_cli.settings.config",
    "PlanFile": "remat_cli.core.plan_file",
    "RematError": "remat_cli.base.errors",
    "silent": "remat_cli.base.progress",
    "compile_model": "remat_cli.commands.compile",
    "inspect_file": "remat_cli.commands.inspect",
    "load": "remat_cli.commands.run",
    "load_config": "remat_cli.settings.config",
    "profile_model": "remat_cli.commands.profile",
    "read_plan": "remat_cli.core.plan_file",
    "solve_instance": "remat_cli.commands.solve",
    "verify_plan": "remat_cli.commands.verify",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name.startswith("_") or name not in __all__:
        raise AttributeError(f"module 'remat_cli' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)
