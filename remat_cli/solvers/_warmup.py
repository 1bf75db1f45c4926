"""Loading compiled code ahead of need, so that no time limit runs meanwhile and a caller can say what it waits for."""

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any


def load_kernels(modules: Iterable[str], announce: Callable[[], None]) -> None:
    """Load the compiled code of these modules of the package, or compile it, once per machine, after saying so."""
    for name in modules:
        module = _module(name)
        if not is_compiled(module.ENTRIES):
            announce()
        module.warm_up()


def must_compile(modules: Iterable[str]) -> bool:
    """Whether `load_kernels` would have to compile."""
    return not all(is_compiled(_module(name).ENTRIES) for name in modules)


def _module(name: str) -> Any:
    return import_module(f"{__package__}.{name}")


def is_compiled(entries: Iterable[Any]) -> bool:
    """Whether this machine's cache holds these kernels, which Python calls, as the source now stands.

    Where nothing can be kept: whether this process has compiled them.
    """
    return all(_is_cached(entry) if can_keep(entry) else bool(entry.signatures) for entry in entries)


def can_keep(entry: Any) -> bool:
    """Whether there is a place where numba keeps what it compiles of this kernel."""
    return entry.stats.cache_path is not None


def _is_cached(entry: Any) -> bool:
    """Whether numba's cache has an index of this kernel that is not older than its source file."""
    source = Path(entry.py_func.__code__.co_filename)
    found = Path(entry.stats.cache_path).glob(f"{source.stem}.{entry.py_func.__name__}-*.nbi")
    return any(index.stat().st_mtime >= source.stat().st_mtime for index in found)
