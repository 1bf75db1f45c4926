from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from remat_cli.base import files
from remat_cli.base.errors import ConfigError, RematError
from remat_cli.base.files import atomic_path, atomic_write, check_room, check_target

ROOT = Path(__file__).resolve().parents[2]


def test_writes_and_replaces(tmp_path):
    target = tmp_path / "out.bin"
    atomic_write(target, b"one")
    atomic_write(target, b"two")
    assert target.read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["out.bin"]


def test_a_failed_block_leaves_the_old_file(tmp_path):
    target = tmp_path / "out.bin"
    target.write_bytes(b"old")

    def write_half():
        with atomic_path(target) as temporary:
            temporary.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.bin"]


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    def full(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(
        RematError, match=r"cannot be written: No space left on device: [\d.]+ \w+ are free in .*: make room"
    ) as caught:
        atomic_write(tmp_path / "out", b"x")
    assert not isinstance(caught.value, ConfigError)
    assert list(tmp_path.iterdir()) == []
    assert str(caught.value).endswith("or name files on another disk")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "remat_work").mkdir()
    with pytest.raises(RematError, match=r"or set TMPDIR to a folder on another disk$"):
        atomic_write(tmp_path / "remat_work" / "out", b"x")


def test_room_is_asked_for_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=2**20))
    monkeypatch.setattr(files, "most_bytes_of_a_file", lambda: None)
    check_room(tmp_path / "m.onnx", 2**20, 2**20)
    with pytest.raises(RematError, match=r"m.onnx needs 1.50 MiB on its disk, and 1.00 MiB are free there: make room"):
        check_room(tmp_path / "m.onnx", 2**20, 3 * 2**19)
    monkeypatch.setattr(files, "most_bytes_of_a_file", lambda: 2**19)
    with pytest.raises(
        RematError, match=r"a file of 1.00 MiB, and this process may write files of 512.00 KiB: .*ulimit"
    ):
        check_room(tmp_path / "m.onnx", 2**20, 2**20)


def test_no_permission_is_the_users_to_fix(tmp_path, monkeypatch):
    def denied(self, data):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "write_bytes", denied)
    with pytest.raises(ConfigError, match="Permission denied"):
        atomic_write(tmp_path / "out", b"x")


def test_missing_directory(tmp_path):
    with pytest.raises(ConfigError, match="No such file or directory"):
        atomic_write(tmp_path / "no" / "out", b"x")


def test_devices_are_never_replaced():
    with pytest.raises(ConfigError, match="not a regular file"):
        atomic_write(Path(os.devnull), b"x")


def test_links_stay_links_and_modes_stay_modes(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link.symlink_to(real)
    atomic_write(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert real.stat().st_mode & 0o777 == 0o640


@pytest.mark.slow
def test_after_a_kill_the_file_is_old_or_new(tmp_path):
    target = tmp_path / "out"
    target.write_bytes(b"0" * 10**6)
    code = (
        "import pathlib, sys; from remat_cli.base.files import atomic_write\n"
        "for n in range(10**6): atomic_write(pathlib.Path(sys.argv[1]), str(n % 10).encode() * 10**6)"
    )
    for attempt in range(5):
        with subprocess.Popen([sys.executable, "-c", code, str(target)], cwd=ROOT) as writer:
            with contextlib.suppress(subprocess.TimeoutExpired):
                writer.wait(0.3 + 0.05 * attempt)
            writer.send_signal(signal.SIGKILL)
        data = target.read_bytes()
        assert len(data) == 10**6
        assert len(set(data)) == 1


def test_good_target(tmp_path):
    source = tmp_path / "in"
    source.write_bytes(b"")
    check_target(tmp_path / "out", sources=(source,))


def test_existing_target_needs_overwrite(tmp_path):
    target = tmp_path / "out"
    target.write_bytes(b"")
    with pytest.raises(ConfigError, match="exists: add --force"):
        check_target(target)
    check_target(target, overwrite=True)


@pytest.mark.parametrize("spelling", ["in", "./in", "sub/../in", "link", "hard"])
def test_the_input_is_never_a_target(tmp_path, monkeypatch, spelling):
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    Path("in").write_bytes(b"")
    Path("link").symlink_to("in")
    os.link("in", "hard")
    with pytest.raises(ConfigError, match="would overwrite in"):
        check_target(Path(spelling), sources=(Path("in"),), overwrite=True)


def test_directories_are_no_targets(tmp_path):
    with pytest.raises(ConfigError, match="is a directory"):
        check_target(tmp_path, overwrite=True)
    with pytest.raises(ConfigError, match="does not exist: create it"):
        check_target(tmp_path / "no" / "out")
    with pytest.raises(ConfigError, match="not a regular file"):
        check_target(Path(os.devnull), overwrite=True)
