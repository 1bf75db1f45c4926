"""`remat compile` as a pass of Olive: `remat_cli.olive.Remat`, whose keys are the words of the command line.

Olive finds it by a package config (`examples/olive`). The class is made when it is first asked for, so that Olive need
not be installed for anything else.
"""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any, Final

import remat_cli
from remat_cli.base.errors import MissingDependency
from remat_cli.base.progress import listening
from remat_cli.commands.asked import settings_of
from remat_cli.commands.compile import compile_model

__all__ = ["Remat"]

OLIVES: Final = ("model", "output", "plan", "force", "work_dir", "on_progress", "options")
"""Words of `compile` that are for Olive to say."""


def keys() -> tuple[str, ...]:
    """The keys of the pass: what `remat_cli.compile` takes, but for files."""
    return tuple(word for word in inspect.signature(remat_cli.compile).parameters if word not in OLIVES)


def __getattr__(name: str) -> Any:
    if name == "Remat":
        return _pass_class()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


@functools.cache
def _pass_class() -> type:
    """The pass, on the base class that Olive has.

    Raises:
        MissingDependency: Olive is not installed.
    """
    try:
        from olive.model import ONNXModelHandler
        from olive.passes import Pass
        from olive.passes.pass_config import PassConfigParam
    except ImportError:
        raise MissingDependency("remat_cli.olive needs Olive: pip install olive-ai") from None

    class Remat(Pass):  # type: ignore[misc]
        """Rewrite an ONNX model so that it runs within a memory budget, with the same outputs, bit for bit."""

        @classmethod
        def _default_config(cls, accelerator_spec: Any) -> dict[str, Any]:
            about = "as of `remat compile`; see help(remat_cli.compile)"
            return {
                word: PassConfigParam(type_=Any, default_value=None, required=word == "budget", description=about)
                for word in keys()
            }

        def _run_for_config(self, model: Any, config: Any, output_model_path: str) -> Any:
            words = {word: value for word in keys() if (value := getattr(config, word, None)) is not None}
            output = Path(output_model_path).with_suffix("") / "model.onnx"
            output.parent.mkdir(parents=True, exist_ok=True)
            settings = settings_of({**words, "output": output, "force": True})
            report = compile_model(Path(model.model_path), settings, listening(None))
            report.raise_for_status()
            told = {"remat": {"verdict": report.verdict, "plan": report.plan}}
            attributes = {**(model.model_attributes or {}), **told}
            return ONNXModelHandler(str(output.parent), onnx_file_name=output.name, model_attributes=attributes)

    return Remat
