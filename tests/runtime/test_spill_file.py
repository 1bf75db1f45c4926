"""The file of pages: exact bytes, nobody else's to read, nothing left behind, one line where it cannot be."""

from __future__ import annotations

import mmap
import os
import resource
import stat

import pytest

from remat_cli.base.errors import ConfigError, RematError
from remat_cli.runtime.paging import spill_file
from remat_cli.runtime.paging.spill_file import SpillFile

PAGE = mmap.PAGESIZE


@pytest.fixture(params=["nameless", "named", "cached"])
def way(request, monkeypatch):
    """With and without files that have no name, with and without transfers past the page cache."""
    if request.param != "nameless":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    if request.param == "cached":
        monkeypatch.delattr(os, "O_DIRECT", raising=False)
    return request.param


def block(pages: int, seed: int) -> mmap.mmap:
    made = mmap.mmap(-1, pages * PAGE)
    made.write(bytes((seed + i) % 251 for i in range(pages * PAGE)))
    return made


def test_what_is_written_is_read(way, tmp_path, monkeypatch):
    monkeypatch.setattr(spill_file, "CHUNK_BYTES", 2 * PAGE)
    with SpillFile(tmp_path, 8 * PAGE) as file:
        file.write(0, block(3, 1))
        file.write(3 * PAGE, block(5, 2))
        for offset, pages, seed in ((0, 3, 1), (3 * PAGE, 5, 2)):
            found = mmap.mmap(-1, pages * PAGE)
            file.read(offset, found)
            assert found[:] == block(pages, seed)[:]
        if way == "cached":
            assert not file.is_direct


def test_nothing_is_left_and_nobody_else_may_read(way, tmp_path):
    with SpillFile(tmp_path, PAGE) as file:
        status = os.fstat(file._descriptor)
        assert stat.S_IMODE(status.st_mode) == 0o600
        assert status.st_nlink == 0
        assert status.st_blocks * 512 >= PAGE
        assert not list(tmp_path.iterdir())


def test_a_system_that_keeps_names_of_open_files_loses_it_at_the_end(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", lambda path: (_ for _ in ()).throw(PermissionError(13, "in use")))
        file = SpillFile(tmp_path, PAGE)
    assert len(list(tmp_path.iterdir())) == 1
    file.close()
    assert not list(tmp_path.iterdir())


def test_two_files_do_not_meet(tmp_path):
    with SpillFile(tmp_path, PAGE) as one, SpillFile(tmp_path, PAGE) as other:
        one.write(0, block(1, 1))
        other.write(0, block(1, 9))
        found = block(1, 0)
        one.read(0, found)
        assert found[:] == block(1, 1)[:]


def test_a_folder_that_has_gone_is_the_users_mistake(way, tmp_path):
    with pytest.raises(ConfigError, match=r"gone: a file of 4\.00 KiB cannot be made: No such file"):
        SpillFile(tmp_path / "gone", PAGE)


def test_a_disk_without_room_is_one_line_and_leaves_nothing(way, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 * PAGE, before[1]))
    try:
        with pytest.raises(RematError, match=r"no room for 1.00 MiB: File too large, .* are free: free some"):
            SpillFile(tmp_path, 2**20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_a_transfer_that_fails_is_one_line(tmp_path, monkeypatch):
    with SpillFile(tmp_path, PAGE) as file:
        monkeypatch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(RematError, match="writing failed: Input/output error"):
            file.write(0, block(1, 1))
        monkeypatch.setattr(os, "preadv", lambda *_: 0)
        with pytest.raises(RematError, match="reading failed: the file ends too early"):
            file.read(0, block(1, 1))
