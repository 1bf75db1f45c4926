"""Kernels run by Python as they are written: some hundred times slower, but there at once."""

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any

import numpy as np
from numba.core.dispatcher import Dispatcher


def interpreted(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which with all kernels that it calls is interpreted instead of compiled."""
    plain = _plain(kernel, {})

    @wraps(plain)
    def run(*arguments: Any) -> Any:
        with np.errstate(over="ignore"):  # random numbers are made of products that wrap around
            return plain(*arguments)

    return run


def _plain(kernel: Any, spaces: dict[str, dict[str, Any]]) -> FunctionType:
    written = kernel.py_func
    # The names that a kernel sees, those of its module, with plain functions for kernels.
    module = written.__module__
    if module not in spaces:
        spaces[module] = dict(written.__globals__)
        kernels = {name: value for name, value in written.__globals__.items() if isinstance(value, Dispatcher)}
        spaces[module].update({name: _plain(kernel, spaces) for name, kernel in kernels.items()})
    names = spaces[module]
    return FunctionType(written.__code__, names, written.__name__, written.__defaults__)
