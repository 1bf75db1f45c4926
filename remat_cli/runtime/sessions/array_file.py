"""Reads and writes arrays by name in .npz files, of any element type and under any name."""

import contextlib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from remat_cli.base.errors import ModelError
from remat_cli.base.files import atomic_path
from remat_cli.runtime.sessions._ort import Array


def read_arrays(path: Path) -> dict[str, Array]:
    """All arrays of an .npz file; types that numpy lacks are unsigned integers of the same size.

    Raises:
        ModelError: the file is missing or no .npz; one line.
    """
    with _opened(path) as loaded:
        return {name: loaded[name] for name in loaded.files}


def shapes_of(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of all arrays of an .npz file, of which only the headers are read.

    Raises:
        ModelError: the file is missing or no .npz; one line.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    with _opened(path) as loaded:
        for entry in loaded.zip.namelist():
            with loaded.zip.open(entry) as stream:
                is_first = np.lib.format.read_magic(stream) == (1, 0)
                read = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
                shapes[entry.removesuffix(".npy")] = read(stream)[0]
    return shapes


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """An .npz file while it is read.

    Raises:
        ModelError: the file is missing or no .npz; one line.
    """
    try:
        with path.open("rb") as stream:
            loaded: Any = np.load(stream, allow_pickle=False)
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                raise ModelError(f"inputs file {path} holds one array; save all inputs by name with numpy.savez")
            with loaded:
                yield loaded
    except FileNotFoundError:
        raise ModelError(f"inputs file {path} does not exist") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        line = next(iter(str(error).splitlines()), "it is empty")
        raise ModelError(f"inputs file {path} is not an .npz of plain arrays: {line}") from None


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write an .npz file, whole or not at all, as np.savez does; that one takes names as arguments, and so not all.

    Raises:
        ConfigError: the path cannot be written.
        RematError: the disk is full or failed.
    """
    with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, array in arrays.items():
            held = np.asarray(array)
            if held.dtype.kind not in "fiub":  # types that .npz files do not know: unsigned integers of the same size
                held = held.view(f"u{held.dtype.itemsize}")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, held, allow_pickle=False)
