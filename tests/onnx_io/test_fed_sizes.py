"""Sizes that a model leaves open are those of what it is fed; files of several sizes propose ranges."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from remat_cli.base.errors import ModelError
from remat_cli.base.progress import silent
from remat_cli.compiling.prepare import prepare
from remat_cli.onnx_io.sizes.fed_sizes import fed_sizes, proposed, with_fed
from remat_cli.settings.settings import load_settings

DECLARED = {"x": ["n", 3, "w"], "mask": ["n", None], "any": None}


def shapes(n: int, w: int, length: int = 7) -> dict[str, tuple[int, ...]]:
    return {"x": (n, 3, w), "mask": (n, length), "any": (5,)}


def test_one_file_binds_what_nothing_else_does():
    assert fed_sizes(DECLARED, {"a.npz": shapes(2, 64)}, {}) == {"n": 2, "w": 64}
    assert fed_sizes(DECLARED, {"a.npz": shapes(2, 64)}, {"n": 2}) == {"w": 64}
    assert fed_sizes(DECLARED, {}, {"n": 2}) == {}


def test_files_of_the_same_sizes_bind_them_too():
    assert fed_sizes(DECLARED, dict.fromkeys(("a.npz", "b.npz"), shapes(2, 64)), {}) == {"n": 2, "w": 64}


def test_files_of_different_sizes_propose_ranges_ready_to_be_typed():
    fed = {"a.npz": shapes(6, 64), "b.npz": shapes(1, 320), "c.npz": shapes(2, 960)}
    with pytest.raises(ModelError) as refused:
        fed_sizes(DECLARED, fed, {})
    told = "inputs files a.npz, b.npz, c.npz have different sizes: in place of --inputs give --dim n=1..6 "
    assert str(refused.value) == f"{told}--dim w=64..960:64"
    with pytest.raises(ModelError, match=r"give --dim 'width of x=3..9:3'$"):
        fed_sizes({"x": ["width of x"]}, {"a": {"x": (3,)}, "b": {"x": (9,)}}, {})


@pytest.mark.parametrize(
    ("sizes", "told"), [((4,), "n=4"), ((1, 6), "n=1..6"), ((32, 320, 960), "n=32..960:32"), ((7, 14), "n=7..14:7")]
)
def test_a_proposed_range_has_all_sizes(sizes, told):
    found = proposed("n", sizes)
    assert str(found) == told
    assert len(sizes) == 1 or set(sizes) <= set(found.sizes)


@pytest.mark.parametrize(
    ("fed", "bound", "told"),
    [
        ({"a": {"x": (2, 3, 8), "mask": (4, 7)}}, {}, "'mask' has shape [4, 7], and dimension 'n' is 2 by another one"),
        (
            {"a": shapes(2, 64)},
            {"w": 32},
            "'x' has shape [2, 3, 64], and dimension 'w' is 32 by --dim or --input-shape",
        ),
        ({"a": {"x": (2, 3)}}, {}, "inputs file a: 'x' has shape [2, 3], and the model declares 3 dimensions"),
        (
            {"a": shapes(2, 64), "b": shapes(2, 64, length=9)},
            {},
            "input 'mask' has the shapes [2, 7] in a and [2, 9] in b, and what differs has no name: give one file",
        ),
    ],
)
def test_what_contradicts_is_told_with_file_input_and_both_sizes(fed, bound, told):
    with pytest.raises(ModelError, match=re.escape(told)):
        fed_sizes(DECLARED, fed, bound)


def test_sizes_without_a_name_are_those_that_are_fed():
    assert with_fed([2, None, 3], (2, 7, 3)) == [2, 7, 3]
    assert with_fed(None, (5,)) == [5]
    assert with_fed([2, None], None) == [2, None]


def test_a_model_is_read_at_the_sizes_of_its_inputs_and_compared_on_all_of_them(tmp_path, cache):
    port = helper.make_tensor_value_info
    ports = [port("x", TensorProto.FLOAT, ["n", None, 4]), port("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "open", ports[:1], ports[1:])
    path = tmp_path / "open.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    files = [str(tmp_path / name) for name in ("a.npz", "b.npz")]
    for number, file in enumerate(files):
        np.savez(file, x=np.full((3, 5, 4), number - 0.5, np.float32))
    conditions = load_settings({"inputs": files}).conditions
    (tmp_path / "work").mkdir()
    found = prepare(path, conditions, Path(tmp_path / "work"), silent())
    assert found.source.bound_dims == {"n": 3, "x_dim_1": 5}
    assert [feeds["x"].flat[0] for feeds in (found.feeds, *found.more_feeds)] == [-0.5, 0.5]
    assert found.feeds["x"].shape == (3, 5, 4)
