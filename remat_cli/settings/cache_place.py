"""Where measured costs and compiled kernels are kept: the user's cache directory, or a temporary one without it."""

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

from remat_cli.base.files import WORK_FOLDER

KERNEL_FOLDER: Final = Path(__file__).resolve().parents[1] / "solvers" / "search" / "__pycache__"
"""Where numba keeps compiled kernels by itself, if it can: beside their source."""
NUMBA_FOLDER: Final = "NUMBA_CACHE_DIR"
"""Numba reads this while it is imported."""
CHOSEN: Final = "REMAT_CACHE_DIR"
TRIED_BYTES: Final = 2**16


def default_cache_dir(environment: Mapping[str, str]) -> Path:
    """REMAT_CACHE_DIR, else `remat` in XDG_CACHE_HOME, else in ~/.cache.

    Raises:
        RuntimeError: the user has no home.
    """
    if chosen := environment.get(CHOSEN):
        return Path(chosen).expanduser()
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "remat"


def usable_cache_dir(environment: Mapping[str, str]) -> Path:
    """The default directory, or where nobody chose it and it cannot be written, one that goes with this process."""
    try:
        usual = default_cache_dir(environment)
    except RuntimeError:
        return _made_in(tempfile.gettempdir())
    return usual if environment.get(CHOSEN) or may_write(usual) else _made_in(tempfile.gettempdir())


def is_temporary(folder: Path) -> bool:
    """Whether a cache directory is one that goes with this process."""
    return _made_in.cache_info().currsize > 0 and folder == _made_in(tempfile.gettempdir())


def keep_kernels(environment: MutableMapping[str, str], folder: Path = KERNEL_FOLDER) -> None:
    """Let numba keep compiled kernels in remat's cache directory where it cannot beside their source.

    It would then want a home, and refuse to compile without one. Processes that are started from here do the same.
    """
    if not environment.get(NUMBA_FOLDER) and not may_write(folder):
        environment[NUMBA_FOLDER] = str(usable_cache_dir(environment) / "kernels")


def may_write(folder: Path) -> bool:
    """Whether files can be made in a folder, which is made where it is missing: tried, as a disk may be full.

    What the system says of access is not enough: a root may enter folders in which nobody can make a file.
    """
    there = next((each for each in (folder, *folder.parents) if each.exists()), None)
    if there is None or not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return False
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(TRIED_BYTES))
    except OSError:
        return False
    return True


@functools.cache
def _made_in(parent: str) -> Path:
    """A new folder, the same for all of this process, which is removed when it ends."""
    folder = tempfile.mkdtemp(prefix=f"{WORK_FOLDER}cache_", dir=parent)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
