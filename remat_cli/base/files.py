"""Files written whole or not at all, and the checks that come before any work."""

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from remat_cli.base.errors import ConfigError, RematError
from remat_cli.base.units import format_bytes

USER_MISTAKES = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR})

INLINE_LIMIT_BYTES = 3 * 2**29
"""1.5 GiB: weights above this go to a file beside the model, since protobuf cannot hold 2 GiB."""

LACKS_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Of a full disk, of a quota that is used up, and of a file larger than this process may write (`ulimit -f`)."""

WORK_FOLDER = "remat_"
"""How the names of our temporary files and of folders for them begin, in what is left of a killed process too."""


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file so that, after a kill at any moment, the old one or the new one is there, never half.

    Raises:
        ConfigError: the path cannot be written (permission, missing directory, not a regular file).
        RematError: the disk is full or failed.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


@contextlib.contextmanager
def atomic_path(path: Path, *, outlasts: bool = True) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, and vanishes otherwise.

    The block must create the file. A link is followed, so that it still is one afterwards. What `outlasts` this process
    is on the disk then, whatever happens to the machine.

    Raises:
        ConfigError: the path cannot be written (permission, missing directory, not a regular file).
        RematError: the disk is full or failed.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise ConfigError(f"{path} is not a regular file: choose another output path")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        if outlasts:
            _flush(temporary)
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
        if outlasts:
            _flush(target.parent)
    except OSError as error:
        kind = ConfigError if error.errno in USER_MISTAKES else RematError
        raise kind(f"{path} cannot be written: {error.strerror or error}{_room(error, temporary)}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _room(error: OSError, temporary: Path) -> str:
    """How much a full disk would have taken, and what to do."""
    if error.errno not in LACKS_ROOM or not temporary.parent.is_dir():
        return ""
    if error.errno == errno.EFBIG:
        return "; files of this size are not allowed here: ask for more with `ulimit -f`"
    written = temporary.stat().st_size if temporary.exists() else 0
    free = shutil.disk_usage(temporary.parent).free + written  # what is half written goes again
    place = Path(tempfile.gettempdir()).resolve()
    folders = temporary.relative_to(place).parts if temporary.is_relative_to(place) else ()
    is_ours = any(name.startswith(WORK_FOLDER) for name in folders[:1])
    elsewhere = "set TMPDIR to a folder on another disk" if is_ours else "name files on another disk"
    return f": {format_bytes(free)} are free in {temporary.parent}: make room there, or {elsewhere}"


def check_room(path: Path, largest_bytes: int, all_bytes: int) -> None:
    """Check, as soon as it is known, that files of so many bytes in all can be written beside `path`.

    Raises:
        RematError: its disk has no room for them, or the largest of them is larger than a file may be.
    """
    free = shutil.disk_usage(path.resolve().parent).free
    if all_bytes > free:
        raise RematError(
            f"{path} needs {format_bytes(all_bytes)} on its disk, and {format_bytes(free)} are free there: "
            "make room, or write it to another disk with -o"
        )
    most = most_bytes_of_a_file()
    if most is not None and largest_bytes > most:
        raise RematError(
            f"{path} needs a file of {format_bytes(largest_bytes)}, and this process may write files of "
            f"{format_bytes(most)}: ask for more with `ulimit -f`"
        )


def most_bytes_of_a_file() -> int | None:
    """How large a file this process may write; None where nothing limits that."""
    if os.name == "nt":
        return None
    import resource

    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return None if most == resource.RLIM_INFINITY else most


def _flush(path: Path) -> None:
    """Make the disk hold what was written to a file, or the entries of a directory."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open directories; its rename is durable by itself
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_target(path: Path, *, sources: tuple[Path, ...] = (), overwrite: bool = False) -> None:
    """Check, before any work, that a result can be written to `path`.

    Raises:
        ConfigError: it is a directory, one of the `sources`, exists already, or its directory is not there or
            cannot be written to.
    """
    for source in sources:
        both_exist = path.exists() and source.exists()  # then they may be hard links to one file
        if path.samefile(source) if both_exist else path.resolve() == source.resolve():
            raise ConfigError(f"output {path} would overwrite {source}: choose another path")
    if path.is_dir():
        raise ConfigError(f"output {path} is a directory: give a file name in it")
    if path.exists() and not path.is_file():
        raise ConfigError(f"output {path} is not a regular file: choose another path")
    if path.exists() and not overwrite:
        raise ConfigError(f"output {path} exists: add --force to overwrite it, or choose another path")
    parent = path.parent
    if not parent.is_dir():
        raise ConfigError(f"directory {parent} does not exist: create it, or choose another output path")
    if not os.access(parent, os.W_OK):
        raise ConfigError(f"directory {parent} cannot be written to: choose another output path")


def sha256(*paths: Path) -> str:
    """Hash of what files contain, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()
