from __future__ import annotations

import numpy as np
import pytest

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.program import InputSpec
from remat_cli.runtime.sessions._ort import (
    EXTENDED_NAMES,
    NUMPY_NAMES,
    array_of,
    host_value,
    numpy_dtype,
    runtime_dtype,
)
from remat_cli.runtime.sessions.feeds import load_feeds, make_feeds

IMAGE = InputSpec("image", "float", (2, 3))
TOKENS = InputSpec("tokens/ids:0", "int64", (1, 4))


@pytest.mark.parametrize("dtype", [*NUMPY_NAMES, *EXTENDED_NAMES])
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 2)])
def test_values_have_the_type_and_shape(dtype, shape):
    array = make_feeds([InputSpec("x", dtype, shape)], 0)["x"]
    assert runtime_dtype(array) == dtype
    assert array.shape == shape


@pytest.mark.parametrize("dtype", EXTENDED_NAMES)
@pytest.mark.parametrize("shape", [(3, 5), (4,), (), (0, 2)])
def test_types_that_numpy_lacks_come_back_from_the_runtime(dtype, shape):
    count = int(np.prod(shape))
    array = np.arange(1, count + 1).reshape(shape).astype(numpy_dtype(dtype))
    value = host_value(array)
    assert tuple(value.shape()) == shape
    assert np.array_equal(array_of(value), array)


def test_values_depend_on_the_seed_alone():
    assert np.array_equal(make_feeds([IMAGE], 1)["image"], make_feeds([IMAGE], 1)["image"])
    assert not np.array_equal(make_feeds([IMAGE], 1)["image"], make_feeds([IMAGE], 2)["image"])


def test_integers_are_small_indices_and_single_ones_are_one():
    tokens = make_feeds([InputSpec("t", "int64", (1, 64))], 0)["t"]
    assert set(tokens.ravel()) == {0, 1}
    for seed in range(4):
        assert make_feeds([InputSpec("n", "int64", ())], seed)["n"] == 1


def test_unknown_element_type_is_refused():
    with pytest.raises(ModelError, match="'complex64' cannot be fed"):
        make_feeds([InputSpec("x", "complex64", (1,))], 0)


@pytest.fixture
def arrays():
    return make_feeds([IMAGE, TOKENS], 0)


def test_file_comes_back_as_saved(tmp_path, arrays):
    np.savez(tmp_path / "in.npz", **arrays)
    loaded = load_feeds(tmp_path / "in.npz", [IMAGE, TOKENS])
    assert list(loaded) == ["image", "tokens/ids:0"]
    assert all(np.array_equal(loaded[name], arrays[name]) for name in arrays)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "string"])
def test_types_that_files_cannot_hold_come_back_too(tmp_path, dtype):
    spec = InputSpec("x", dtype, (2, 2))
    array = make_feeds([spec], 0)["x"]
    np.savez(tmp_path / "in.npz", x=array.astype(str) if dtype == "string" else array)
    loaded = load_feeds(tmp_path / "in.npz", [spec])["x"]
    assert runtime_dtype(loaded) == dtype
    assert np.array_equal(loaded, array)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"image": None}, r"lacks input 'image'; it holds: 'tokens/ids:0'"),
        ({"extra": np.zeros(1)}, r"holds 'extra', which is no input; the model's are: 'image'"),
        ({"image": np.zeros((3, 2), np.float32)}, r"'image' has shape \[3, 2\], the model takes \[2, 3\]"),
        ({"image": np.zeros((2, 3))}, "'image' is of type double, the model takes float"),
    ],
)
def test_wrong_files_are_one_line(tmp_path, arrays, changed, words):
    kept = {name: array for name, array in {**arrays, **changed}.items() if array is not None}
    np.savez(tmp_path / "in.npz", **kept)
    with pytest.raises(ModelError, match=words) as caught:
        load_feeds(tmp_path / "in.npz", [IMAGE, TOKENS])
    assert "in.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_of_another_kind_are_one_line(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        load_feeds(tmp_path / "none.npz", [IMAGE])
    with pytest.raises(ModelError, match=r"not an \.npz"):
        load_feeds(tmp_path, [IMAGE])
    for content in (b"", b"plain text", b"PK\x03\x04 cut off"):
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(ModelError, match=r"bad\.npz is not an \.npz"):
            load_feeds(tmp_path / "bad.npz", [IMAGE])
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(ModelError, match="holds one array"):
        load_feeds(tmp_path / "one.npy", [IMAGE])
    np.savez(tmp_path / "pickled.npz", image=np.array([{}], dtype=object))
    with pytest.raises(ModelError, match=r"pickled\.npz is not an \.npz of plain arrays"):
        load_feeds(tmp_path / "pickled.npz", [IMAGE])
