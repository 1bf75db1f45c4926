"""What the runtime loads and runs, remat reads: the same outputs, bit for bit, from the model as it was read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from remat_cli.base.errors import ModelError
from remat_cli.onnx_io.read.copies import copy_of
from remat_cli.onnx_io.read.interface import fed_inputs
from remat_cli.onnx_io.read.load import DimBindings, load, prepare_optimized, save
from remat_cli.runtime.sessions.session import optimize
from tests.onnx_io.file_forms import (
    DRAWN,
    FORMS,
    SHAPE,
    body,
    branches,
    cast_last,
    external,
    listed,
    model,
    net,
    port,
    residual,
    sparse_weight,
    unread,
)

BOUND = DimBindings(shapes={"x": SHAPE})


def outputs(path: Path) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, {each.name: DRAWN[each.name] for each in session.get_inputs() if each.name in DRAWN})


def is_read_alike(path: Path) -> bool:
    read = load(path, BOUND)
    save(read.ir, path.with_name("read.onnx"))
    pairs = zip(outputs(path), outputs(path.with_name("read.onnx")), strict=True)
    return all(np.array_equal(*pair) for pair in pairs)


@pytest.mark.parametrize("form", FORMS)
def test_what_the_runtime_runs_is_read(tmp_path: Path, form: str) -> None:
    (tmp_path / "model.onnx").write_bytes(FORMS[form]().SerializeToString())
    assert is_read_alike(tmp_path / "model.onnx")


@pytest.mark.parametrize("says_length", [True, False])
def test_weights_in_a_file_of_their_own_lie_anywhere_in_it(tmp_path: Path, says_length: bool) -> None:
    (tmp_path / "model.onnx").write_bytes(external(tmp_path, says_length=says_length).SerializeToString())
    assert is_read_alike(tmp_path / "model.onnx")


REFUSED = (
    "a cast of weights at the end",
    "nodes in reverse",
    "weights that are no inputs, version 3",
    "an output without a type",
    "ops of the runtime's domain, not imported",
    "ai.onnx beside it",
    "sparse weight out of order",
    "a weight twice",
    "a graph without a name",
    "metadata twice",
    "an op that is older than its operator set says",
    "an op that ONNX gave up",
    "a function of another operator set",
    "a wrong function that nobody calls",
)


@pytest.mark.parametrize("form", REFUSED)
def test_the_checker_refuses_what_the_docs_say_it_does(form: str) -> None:
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(FORMS[form]())


def test_nodes_stay_in_the_order_of_the_file(tmp_path: Path) -> None:
    """Fusions follow it, so that a sorted file may have other bits."""
    (tmp_path / "model.onnx").write_bytes(cast_last().SerializeToString())
    assert [each.op_type for each in load(tmp_path / "model.onnx", BOUND).ir.graph][-1] == "Cast"


def test_what_nobody_reads_need_not_be_fed(tmp_path: Path) -> None:
    """An input keeps its default as long as it is one, else it must be fed."""
    (tmp_path / "model.onnx").write_bytes(unread(listed(model())).SerializeToString())
    optimised = prepare_optimized(tmp_path / "model.onnx")
    assert [each.name for each in fed_inputs(optimised.graph)] == ["x"]
    assert [each.name for each in optimised.graph.inputs] == ["x", "w1", "w2", "batches_tracked"]


@pytest.mark.parametrize("form", FORMS)
def test_a_copy_has_its_nodes_in_the_order_of_the_file(tmp_path: Path, form: str) -> None:
    (tmp_path / "model.onnx").write_bytes(FORMS[form]().SerializeToString())
    read = load(tmp_path / "model.onnx", BOUND).ir
    copy = copy_of(read)
    assert [each.name for each in copy.graph] == [each.name for each in read.graph]
    assert {*copy.graph.all_nodes()}.isdisjoint(read.graph.all_nodes())
    assert ir.to_proto(copy).SerializeToString() == ir.to_proto(read).SerializeToString()
    own, theirs = ({value for node in each.graph for value in node.outputs} for each in (copy, read))
    inputs = {value for node in copy.graph.all_nodes() for value in node.inputs}
    assert theirs.isdisjoint(inputs | {*copy.graph.outputs})
    assert {user.graph for value in own for user, _ in value.uses()}.isdisjoint({read.graph})


def test_names_in_bodies_stay_apart_from_those_around_them_when_functions_are_written_out(tmp_path: Path) -> None:
    """The runtime names what it writes in place of calls alike in each graph, and then refuses its own file."""
    path, raw, ours = (tmp_path / f"{name}.onnx" for name in ("model", "raw", "ours"))
    path.write_bytes(FORMS["a function in a branch and around it"]().SerializeToString())
    optimize(path, raw, "basic")
    with pytest.raises(Exception, match="single static assignment"):
        outputs(raw)
    save(prepare_optimized(raw, load(path, BOUND).ir), ours)
    assert all(np.array_equal(*pair) for pair in zip(outputs(path), outputs(ours), strict=True))


def without_rank() -> onnx.ModelProto:
    """Its input says what it holds, and nothing of its shape."""
    return model(inputs=[port("x", None)], outputs=[port("y", None)])


def test_an_input_without_a_rank_wants_a_shape(tmp_path: Path) -> None:
    """The runtime runs it as it is, the checker does not take it."""
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(without_rank())
    path = tmp_path / "model.onnx"
    path.write_bytes(without_rank().SerializeToString())
    assert is_read_alike(path)
    with pytest.raises(ModelError, match=r"--input-shape x:"):
        load(path, DimBindings())


def twins() -> onnx.ModelProto:
    """Two nodes of one name."""
    first, relu, second, last = residual()
    second.name = first.name
    return model([first, relu, second, last])


def test_two_nodes_of_one_name_are_named_anew(tmp_path: Path) -> None:
    """The runtime refuses such a file, the checker takes it: what it means is what it does with other names."""
    onnx.checker.check_model(twins())
    path, fair = tmp_path / "model.onnx", tmp_path / "fair.onnx"
    path.write_bytes(twins().SerializeToString())
    fair.write_bytes(model().SerializeToString())
    with pytest.raises(Exception, match="two nodes with same node name"):
        outputs(path)
    read = load(path, BOUND)
    names = [each.name for each in read.ir.graph]
    assert len(set(names)) == len(names)
    assert names[0] == "first"
    save(read.ir, path.with_name("read.onnx"))
    assert all(map(np.array_equal, outputs(fair), outputs(path.with_name("read.onnx"))))


def test_a_body_out_of_order_is_refused_with_the_name_of_its_node(tmp_path: Path) -> None:
    """By the runtime too, which asks the checker about bodies."""
    made = branches(body(net(prefix="t")[::-1], "tc2"))
    (tmp_path / "model.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(Exception, match="topologically sorted"):
        outputs(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=r"input 'tr1' of node: name: tsecond OpType: Conv"):
        load(tmp_path / "model.onnx", BOUND)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda sparse: sparse.values.ClearField("data_type"), "cannot be read"),
        (
            lambda sparse: sparse.values.ClearField("float_data") or sparse.values.ClearField("raw_data"),
            "cannot be read",
        ),
        (lambda sparse: sparse.dims.__setitem__(0, -16), "has indices beyond it"),
        (lambda sparse: sparse.dims.__setitem__(0, 5), "has indices beyond it"),
        (lambda sparse: setattr(sparse.indices, "data_type", onnx.TensorProto.FLOAT), ""),
    ],
    ids=["no type", "no data", "negative size", "too short", "places that are no whole numbers"],
)
def test_a_broken_sparse_weight_is_refused_in_one_line(tmp_path: Path, spoil, told: str) -> None:
    broken = sparse_weight([0, 3, 9])
    spoil(broken.graph.sparse_initializer[0])
    path = tmp_path / "broken.onnx"
    path.write_bytes(broken.SerializeToString())
    with pytest.raises(ModelError, match=rf"sparse tensor 's' .*{told}"):
        load(path, BOUND)
