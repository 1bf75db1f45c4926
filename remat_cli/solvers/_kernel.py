"""Functions that numba compiles, once per machine where there is a place to keep the result."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from remat_cli.base.signals import signals_later

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function, **options: Any) -> Function:
    """The function compiled by numba, kept for later processes; where nothing can be kept, for this process alone.

    Ctrl-C waits while one is compiled: an exception in the middle would leave numba with half of it, and be told as a
    fault of numba's.
    """
    try:
        kernel = numba.njit(cache=True, **options)(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        kernel = numba.njit(**options)(function)
    compile_alone = kernel.compile

    def compile_whole(signature: Any) -> Any:
        with signals_later():
            return compile_alone(signature)

    kernel.compile = compile_whole
    return cast(Function, kernel)
