"""The file that pages lie in: nobody else's to read, gone with the process however that ends, past the page cache."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from remat_cli.base.errors import ConfigError, RematError
from remat_cli.base.files import LACKS_ROOM, USER_MISTAKES, WORK_FOLDER
from remat_cli.base.units import format_bytes

CHUNK_BYTES: Final = 8 * 2**20
"""Of a large transfer, so that a run that fails does not wait for the rest."""
PREFIX: Final = f"{WORK_FOLDER}pages_"
NAMELESS_REFUSED: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL})


class SpillFile:
    """One file of so many bytes in a folder, preallocated. It has no name, where the system can do without one.

    Transfers go past the page cache if the file system lets them (`is_direct`); else each chunk is forced out and
    dropped from it, since it would count as this process's memory in a container. Use it in a `with` block.
    """

    def __init__(self, folder: Path, size_bytes: int) -> None:
        """Make the file, and take its room on the disk.

        Raises:
            ConfigError: the folder is gone or cannot be written to.
            RematError: the disk is too full, or failed.
        """
        self.folder, self.size_bytes = folder, size_bytes
        self._name: str | None = None
        with self._errors(f"a file of {format_bytes(size_bytes)} cannot be made"):
            self._descriptor = self._open()
        try:
            with self._errors(f"there is no room for {format_bytes(size_bytes)}"):
                if size_bytes and hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(self._descriptor, 0, size_bytes)
                elif size_bytes:
                    os.ftruncate(self._descriptor, size_bytes)
        except RematError:
            self.close()
            raise
        self.is_direct = past_the_cache(self._descriptor)

    def __enter__(self) -> "SpillFile":
        """The file itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Let go of it."""
        self.close()

    def close(self) -> None:
        """Let go of it; its room is free again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._name is not None:
            Path(self._name).unlink(missing_ok=True)
            self._name = None

    def write(self, offset: int, buffer: Any, is_over: Callable[[], bool] = lambda: False) -> None:
        """Write a whole buffer, whose address, size and place are multiples of a page.

        Raises:
            RematError: the disk is full, or failed.
        """
        view = memoryview(buffer).cast("B")
        with self._errors("writing failed"):
            for begin in range(0, len(view), CHUNK_BYTES):
                if is_over():
                    return
                chunk = view[begin : begin + CHUNK_BYTES]
                done = 0
                while done < len(chunk):
                    done += _some(os.pwrite(self._descriptor, chunk[done:], offset + begin + done))
                if not self.is_direct:
                    os.fdatasync(self._descriptor)
                    _leave_no_pages(self._descriptor, offset + begin, len(chunk))

    def read(self, offset: int, buffer: Any, is_over: Callable[[], bool] = lambda: False) -> None:
        """Fill a whole buffer, whose address, size and place are multiples of a page.

        Raises:
            RematError: the disk failed.
        """
        with self._errors("reading failed"):
            read_pages(self._descriptor, offset, memoryview(buffer).cast("B"), self.is_direct, is_over)

    def _open(self) -> int:
        """A file without a name where there are such; else one that loses its name at once, or at the end."""
        if hasattr(os, "O_TMPFILE"):
            try:
                return os.open(self.folder, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
            except OSError as error:
                if error.errno not in NAMELESS_REFUSED or not self.folder.is_dir():
                    raise
        descriptor, self._name = tempfile.mkstemp(prefix=PREFIX, dir=self.folder)  # mode 0600
        with contextlib.suppress(OSError):  # Windows keeps the name of an open file
            os.unlink(self._name)
            self._name = None
        return descriptor

    @contextlib.contextmanager
    def _errors(self, what: str) -> Any:
        """Errors of the system as one line that names the folder."""
        try:
            yield
        except OSError as error:
            kind = ConfigError if error.errno in USER_MISTAKES else RematError
            reason = str(error.strerror or error)
            if error.errno in LACKS_ROOM:
                with contextlib.suppress(OSError):
                    free = format_bytes(shutil.disk_usage(self.folder).free)
                    reason = f"{error.strerror}, {free} are free: free some, or name another folder"
            raise kind(f"spill disk:{self.folder}: {what}: {reason}") from None


def _some(count: int) -> int:
    """A transfer that moves nothing would never end."""
    if count <= 0:
        raise OSError(errno.EIO, "the file ends too early")
    return count


def read_pages(
    descriptor: int, offset: int, view: memoryview, is_direct: bool, is_over: Callable[[], bool], needed: int = 0
) -> None:
    """Fill a buffer from a place that is a multiple of a page; all of it, or what is `needed` where the file ends.

    Raises:
        OSError: the disk failed, or the file ends too early.
    """
    needed = needed or len(view)
    for begin in range(0, len(view), CHUNK_BYTES):
        if is_over():
            return
        chunk = view[begin : begin + CHUNK_BYTES]
        done, wanted = 0, min(len(chunk), needed - begin)
        while done < wanted:
            done += _some(os.preadv(descriptor, [chunk[done:]], offset + begin + done))
        if not is_direct:
            _leave_no_pages(descriptor, offset + begin, len(chunk))


def _leave_no_pages(descriptor: int, offset: int, size: int) -> None:
    """Drop what was moved from the page cache, where the system can be asked to."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)


def past_the_cache(descriptor: int) -> bool:
    """Ask for transfers past the page cache; whether the file system does them, which a read of a page shows."""
    if not hasattr(os, "O_DIRECT"):
        return False
    import fcntl
    import mmap

    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            os.preadv(descriptor, [page], 0)
    except OSError:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        return False
    return True
