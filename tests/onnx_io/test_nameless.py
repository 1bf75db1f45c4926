"""Dimensions without a name: each stands alone, has sizes by --input-shape, and a name for --dim."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_cli.base.errors import ModelError
from remat_cli.onnx_io.read.load import DimBindings, inputs_of, load
from remat_cli.onnx_io.sizes.nameless import is_no_name
from tests.onnx_io.file_forms import FORMS, port, residual
from tests.onnx_io.file_forms import model as made_of


def written(folder: Path, form: str) -> Path:
    (folder / "model.onnx").write_bytes(FORMS[form]().SerializeToString())
    return folder / "model.onnx"


@pytest.mark.parametrize("text", [None, "", "?", "-1", "12", "*", "None", "unknown"])
def test_what_says_nothing_is_no_name(text: str | None) -> None:
    assert is_no_name(text)


@pytest.mark.parametrize("text", ["N", "batch", "unk__123", "height // 4", "DynamicDimension.0"])
def test_what_says_something_is_a_name(text: str) -> None:
    assert not is_no_name(text)


def test_each_has_a_size_of_its_own(tmp_path: Path) -> None:
    source = load(written(tmp_path, "dimensions ?"), DimBindings(shapes={"x": (1, 8, 16, 24)}))
    assert source.bound_dims == {"batch": 1, "x_dim_2": 16, "x_dim_3": 24}
    assert inputs_of(source.ir)[0].shape == (1, 8, 16, 24)


def test_names_are_for_ranges(tmp_path: Path) -> None:
    names = {"batch": 1, "x_dim_2": 32, "x_dim_3": 48}
    source = load(written(tmp_path, "dimensions ?"), DimBindings(names=names))
    assert source.inputs_at({"x_dim_3": 16})[0].shape == (1, 8, 32, 16)
    free = source.interface_with({"x_dim_3"})
    assert [str(dim) for dim in free.inputs[0].shape or ()] == ["1", "8", "32", "x_dim_3"]
    assert [getattr(dim, "value", dim) for dim in free.outputs[0].shape or ()] == [1, 8, None, None]


def test_one_size_for_all_that_are_written_the_same(tmp_path: Path) -> None:
    source = load(written(tmp_path, "dimensions ?"), DimBindings(names={"batch": 2, "?": 16}))
    assert inputs_of(source.ir)[0].shape == (2, 8, 16, 16)


def test_a_name_with_two_sizes_is_none(tmp_path: Path) -> None:
    path = written(tmp_path, "one name for two sizes")
    assert inputs_of(load(path, DimBindings(shapes={"x": (1, 8, 16, 24)})).ir)[0].shape == (1, 8, 16, 24)
    with pytest.raises(ModelError, match="'size' cannot be both 16 and 24"):
        load(path, DimBindings(names={"size": 16}, shapes={"x": (1, 8, 16, 24)}))


def test_advice_can_be_followed(tmp_path: Path) -> None:
    advice = "add --input-shape x:N,8,N,N, or for a range of what has no name --dim x_dim_2=LOW..HIGH --dim x_dim_3=LOW"
    with pytest.raises(ModelError, match=advice):
        load(written(tmp_path, "dimensions ?"), DimBindings())
    names = made_of([*residual()], inputs=[port("x", ("a batch", 8, 16, 16))])
    (tmp_path / "names.onnx").write_bytes(names.SerializeToString())
    with pytest.raises(ModelError, match=r"add --dim 'a batch=N'$"):
        load(tmp_path / "names.onnx", DimBindings())
