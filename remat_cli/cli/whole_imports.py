"""Import compiled modules to their end: one in whose import a signal was raised may be half made, and crash later."""

import contextlib
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader
from types import ModuleType

from remat_cli.base.signals import signals_later


@contextlib.contextmanager
def whole_imports() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait, during the block, until the compiled module that is being imported is there."""
    execute = ExtensionFileLoader.exec_module

    def execute_whole(self: ExtensionFileLoader, module: ModuleType) -> None:
        with signals_later():
            execute(self, module)

    ExtensionFileLoader.exec_module = execute_whole  # type: ignore[method-assign]
    try:
        yield
    finally:
        ExtensionFileLoader.exec_module = execute  # type: ignore[method-assign]
