"""remat: compile an ONNX model to fit a memory budget, with the same outputs, bit for bit.

The command line in Python: `compile_model(Path("model.onnx"), load_settings({"budget": "80%"}), SilentProgress())`
returns a report; `load("model.plan.json").run({"x": array})` runs a plan in this process and returns its
outputs by name. Everything is imported when first used, so that `remat --help` stays instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remat_cli.base.errors import RematError
    from remat_cli.base.progress import SilentProgress
    from remat_cli.commands.compile import compile_model
    from remat_cli.commands.inspect import inspect_file
    from remat_cli.commands.profile import profile_ops
    from remat_cli.commands.run import load
    from remat_cli.commands.solve import solve_instance
    from remat_cli.commands.verify import verify_plan
    from remat_cli.core.plan_file import PlanFile, read_plan
    from remat_cli.settings.settings import Settings, load_settings

__version__ = "0.1.0"

__all__ = [
    "PlanFile",
    "RematError",
    "Settings",
    "SilentProgress",
    "__version__",
    "compile_model",
    "inspect_file",
    "load",
    "load_settings",
    "profile_ops",
    "read_plan",
    "solve_instance",
    "verify_plan",
]

_HOME = {
    "Settings": "remat_cli.settings.settings",
    "PlanFile": "remat_cli.core.plan_file",
    "RematError": "remat_cli.base.errors",
    "SilentProgress": "remat_cli.base.progress",
    "compile_model": "remat_cli.commands.compile",
    "inspect_file": "remat_cli.commands.inspect",
    "load": "remat_cli.commands.run",
    "load_settings": "remat_cli.settings.settings",
    "profile_ops": "remat_cli.commands.profile",
    "read_plan": "remat_cli.core.plan_file",
    "solve_instance": "remat_cli.commands.solve",
    "verify_plan": "remat_cli.commands.verify",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name.startswith("_") or name not in __all__:
        raise AttributeError(f"module 'remat_cli' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)
