"""Functions that numba compiles, once per machine where there is a place to keep the result."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function, **options: Any) -> Function:
    """The function compiled by numba, kept for later processes; where nothing can be kept, for this process alone."""
    try:
        return cast(Function, numba.njit(cache=True, **options)(function))
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        return cast(Function, numba.njit(**options)(function))
