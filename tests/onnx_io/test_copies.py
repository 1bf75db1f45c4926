"""Copies of models whose nodes stand in any order: nothing moves, and the original stays as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from remat_cli.onnx_io.read.copies import copy_of
from remat_cli.onnx_io.read.load import DimBindings, load
from remat_cli.onnx_io.write.contents import inline
from remat_cli.onnx_io.write.save import save_work
from tests.onnx_io.file_forms import FORMS, SHAPE, model, residual, weight

FORM_NAMES = ("a function", "a function in a branch", "nodes in reverse", "what bodies read stands behind them")


@pytest.mark.parametrize("form", FORM_NAMES)
def test_a_copy_says_what_the_model_says(form: str) -> None:
    read = ir.from_proto(FORMS[form]())
    before = ir.to_proto(read).SerializeToString(deterministic=True)
    copy = copy_of(read)
    assert ir.to_proto(copy).SerializeToString(deterministic=True) == before
    copy.graph.remove(copy.graph[0], safe=False)
    copy.metadata_props["own"] = "1"
    assert ir.to_proto(read).SerializeToString(deterministic=True) == before


def test_tensors_are_shared() -> None:
    read = ir.from_proto(FORMS["nodes in reverse"]())
    assert copy_of(read).graph.initializers["w1"].const_value is read.graph.initializers["w1"].const_value


def test_large_weights_beside_nodes_in_any_order_are_written(tmp_path: Path) -> None:
    """Whatever writes or hashes a model as it was read makes a copy of it."""
    large = np.random.default_rng(0).normal(size=(16, 8, 64, 64)).astype(np.float32)
    nodes = [onnx.helper.make_node("ReduceSum", ["large"], ["n"], "sum", keepdims=0), *residual()]
    nodes.append(onnx.helper.make_node("Mul", ["c1", "n"], ["z"], "mul"))
    made = model(nodes[::-1], weights=[*model().graph.initializer, weight("large", large)])
    (tmp_path / "model.onnx").write_bytes(made.SerializeToString())
    source = load(tmp_path / "model.onnx", DimBindings(shapes={"x": SHAPE}))
    save_work(source.ir, tmp_path / "work.onnx")
    written = onnx.load(tmp_path / "work.onnx")
    assert [each.name for each in written.graph.node] == [each.name for each in made.graph.node]
    assert len(b"".join(map(bytes, inline(source.ir)))) > large.nbytes
