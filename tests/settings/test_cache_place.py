from __future__ import annotations

import os
from pathlib import Path

import pytest

from remat_cli.settings.cache_place import (
    default_cache_dir,
    is_temporary,
    keep_kernels,
    may_write,
    usable_cache_dir,
)

NO_PLACE = {"XDG_CACHE_HOME": "/dev/null/cache"}
"""A place that nobody can make, root included."""


@pytest.fixture
def sealed(tmp_path):
    """A folder that nobody can make, root included: it would lie in a file."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "folder"


def test_the_default_place():
    assert default_cache_dir({"REMAT_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert default_cache_dir({"XDG_CACHE_HOME": "/b"}) == Path("/b/remat")
    assert default_cache_dir({}) == Path.home() / ".cache" / "remat"


def test_a_place_that_can_be_written_is_taken(tmp_path):
    assert usable_cache_dir({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "remat"
    assert not (tmp_path / "remat").exists()


def test_a_chosen_place_is_taken_even_if_it_cannot_be_written(sealed):
    assert usable_cache_dir({"REMAT_CACHE_DIR": str(sealed)}) == sealed
    assert not is_temporary(sealed)


def test_without_any_place_there_is_one_for_this_process():
    found = usable_cache_dir(NO_PLACE)
    assert is_temporary(found)
    assert found.is_dir()
    assert os.stat(found).st_mode & 0o077 == 0
    assert usable_cache_dir(NO_PLACE) == found


def test_a_user_without_home_has_one_for_this_process(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert is_temporary(usable_cache_dir({}))


def test_kernels_stay_beside_their_source_where_they_can(tmp_path):
    environment = {"REMAT_CACHE_DIR": str(tmp_path / "cache")}
    keep_kernels(environment, tmp_path / "package" / "__pycache__")
    assert "NUMBA_CACHE_DIR" not in environment


def test_kernels_go_to_the_cache_directory_otherwise(sealed, tmp_path):
    environment = {"REMAT_CACHE_DIR": str(tmp_path / "cache")}
    keep_kernels(environment, sealed)
    assert environment["NUMBA_CACHE_DIR"] == str(tmp_path / "cache" / "kernels")


def test_the_users_own_place_for_kernels_is_left_alone(sealed):
    environment = {"NUMBA_CACHE_DIR": "/mine", "REMAT_CACHE_DIR": "/cache"}
    keep_kernels(environment, sealed)
    assert environment["NUMBA_CACHE_DIR"] == "/mine"


def test_what_may_be_written(tmp_path, sealed):
    assert may_write(tmp_path / "a" / "b")
    assert not may_write(sealed)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
