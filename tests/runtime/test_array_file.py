"""Arrays by name in .npz files, and their shapes alone."""

from __future__ import annotations

import numpy as np
import pytest

from remat_cli.base.errors import ModelError
from remat_cli.runtime.sessions import array_file
from remat_cli.runtime.sessions.array_file import read_arrays, shapes_of, write_arrays

ARRAYS = {"x": np.ones((2, 3), np.float32), "a/b": np.zeros((), np.int64), "empty": np.zeros((0, 4), np.bool_)}


@pytest.mark.parametrize("write", [write_arrays, lambda path, arrays: np.savez_compressed(path, **arrays)])
def test_shapes_are_those_of_the_arrays(tmp_path, write):
    path = tmp_path / "x.npz"
    write(path, ARRAYS)
    assert shapes_of(path) == {name: array.shape for name, array in ARRAYS.items()}
    assert shapes_of(path) == {name: array.shape for name, array in read_arrays(path).items()}


def test_shapes_are_read_from_headers_alone(tmp_path, monkeypatch):
    """A file may hold more than there is memory for twice."""
    write_arrays(tmp_path / "x.npz", ARRAYS)
    monkeypatch.setattr(np.lib.format, "read_array", None)
    monkeypatch.setattr(array_file, "read_arrays", None)
    assert shapes_of(tmp_path / "x.npz")["x"] == (2, 3)


@pytest.mark.parametrize("read", [shapes_of, read_arrays])
def test_what_is_no_such_file_is_refused_in_one_line(tmp_path, read):
    with pytest.raises(ModelError, match="does not exist"):
        read(tmp_path / "none.npz")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(ModelError, match=r"is not an \.npz of plain arrays"):
        read(tmp_path / "bad.npz")
    np.save(tmp_path / "one.npy", ARRAYS["x"])
    with pytest.raises(ModelError, match="holds one array"):
        read(tmp_path / "one.npy")
