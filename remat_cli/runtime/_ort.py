"""Import ONNX Runtime on demand and turn its errors into one line."""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from remat_cli.base.errors import MissingDependency, RuntimeFailure

SILENT = 4  # log severity "fatal only": errors reach the user as exceptions, not as lines on stderr
LONGEST_MESSAGE = 300


def import_ort() -> ModuleType:
    """The onnxruntime module.

    Raises:
        MissingDependency: it is not installed, or its native library does not load.
    """
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        if getattr(error, "name", None) == "onnxruntime":
            raise MissingDependency('ONNX Runtime is not installed: pip install "remat_cli[cpu]"') from None
        raise MissingDependency(
            f'ONNX Runtime does not load ({one_line(error)}): pip install --force-reinstall "remat_cli[cpu]"'
        ) from error


def new_options(ort: ModuleType) -> Any:
    """Session options that differ from the default ones only in that the runtime does not log."""
    options = ort.SessionOptions()
    options.log_severity_level = SILENT
    return options


@contextlib.contextmanager
def runtime_errors(doing: str) -> Iterator[None]:
    """Turn what ONNX Runtime raises inside the block into a RuntimeFailure of one line that starts with `doing`.

    Its exception classes have no common base, so they are told by the module they come from; its Python layer
    raises ValueError and RuntimeError. Anything else passes through.
    """
    try:
        yield
    except Exception as error:
        if not _is_from_runtime(error):
            raise
        raise RuntimeFailure(f"{doing}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """First line of an error's text without the runtime's prefix and source paths, cut to a readable length."""
    text = next(iter(str(error).strip().splitlines()), type(error).__name__)
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"/\S*/(onnxruntime/)", r"\1", text)
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 3] + "..."


def _is_from_runtime(error: Exception) -> bool:
    return type(error).__module__.startswith("onnxruntime") or type(error) in (RuntimeError, ValueError)
