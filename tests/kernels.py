"""Compile the kernels of all solvers before several workers of tests would each do it: `python -m tests.kernels`."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from remat_cli import solvers


def main() -> None:
    """Run whatever the package says compiles its kernels."""
    for found in pkgutil.walk_packages(solvers.__path__, f"{solvers.__name__}."):
        module = import_module(found.name)
        if hasattr(module, "ENTRIES"):
            module.warm_up()


if __name__ == "__main__":
    main()
