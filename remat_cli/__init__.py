"""remat: compile an ONNX model to fit a memory budget, with the same outputs, bit for bit.

The command line in Python: `compile_model(Path("model.onnx"), load_config({"budget": "80%"}), SilentProgress())`
returns a report; `load("model.plan.json").run({"x": array})` runs a plan in this process and returns its
outputs by name. Everything is imported when first used, so that `remat --help` stays instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remat_cli.config import Config, load_config
    from remat_cli.core.errors import RematError
    from remat_cli.core.plan_file import PlanFile, read_plan
    from remat_cli.core.progress import SilentProgress
    from remat_cli.pipeline import compile_model, inspect_file, profile_model, solve_instance, verify_plan
    from remat_cli.pipeline_run import load

__version__ = "0.1.0"

__all__ = [
    "Config",
    "PlanFile",
    "RematError",
    "SilentProgress",
    "__version__",
    "compile_model",
    "inspect_file",
    "load",
    "load_config",
    "profile_model",
    "read_plan",
    "solve_instance",
    "verify_plan",
]

_HOME = {
    "Config": "remat_cli.config",
    "PlanFile": "remat_cli.core.plan_file",
    "RematError": "remat_cli.core.errors",
    "SilentProgress": "remat_cli.core.progress",
    "load": "remat_cli.pipeline_run",
    "load_config": "remat_cli.config",
    "read_plan": "remat_cli.core.plan_file",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use; those not listed elsewhere are the pipeline's."""
    if name.startswith("_") or name not in __all__:
        raise AttributeError(f"module 'remat_cli' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME.get(name, "remat_cli.pipeline")), name)
