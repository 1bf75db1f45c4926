"""Reading, repairing, refusing and writing models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.program import InputSpec
from remat_cli.onnx_io.read.load import DimBindings, inputs_of, load, outputs_of, prepare_optimized, save
from tests.helpers import optimise, random_feeds, run_profiled
from tests.onnx_io.graphs import model_of

WEIGHT = np.arange(16 * 32, dtype=np.float32).reshape(16, 32) / 100


def simple(shape: tuple[int | str | None, ...] = (16, 32), **how: int) -> onnx.ModelProto:
    nodes = [helper.make_node("Add", ["x", "w"], ["a"], "A"), helper.make_node("Relu", ["a"], ["y"], "B")]
    return model_of(nodes, {"x": shape}, ["y"], {"w": WEIGHT}, **how)  # type: ignore[dict-item]


def written(model: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nothing\.onnx does not exist"):
        load(tmp_path / "nothing.onnx", DimBindings())


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a file"):
        load(tmp_path, DimBindings())


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "is empty"), (b"not a model" * 9, "not an ONNX model"), (b"\x08\x08", "no graph")]
)
def test_not_a_model(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=reason) as error:
        load(path, DimBindings())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_truncated_file(tmp_path: Path, share: float) -> None:
    path = written(simple(), tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ModelError, match=r"model\.onnx"):
        load(path, DimBindings())


def test_invalid_model_has_a_one_line_reason(tmp_path: Path) -> None:
    model = simple()
    model.graph.node[1].input[0] = "nowhere"
    with pytest.raises(ModelError, match="is not valid") as error:
        load(written(model, tmp_path), DimBindings())
    assert "\n" not in str(error.value)


def test_unknown_op_of_the_onnx_domain(tmp_path: Path) -> None:
    model = simple()
    model.graph.node[1].op_type = "NoSuchOp"
    with pytest.raises(ModelError, match="NoSuchOp"):
        load(written(model, tmp_path), DimBindings())


def test_custom_op(tmp_path: Path) -> None:
    model = simple()
    model.graph.node[1].domain = "com.example"
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(ModelError, match=r"unknown op without shape: 'com\.example\.Relu'.*--custom-ops"):
        load(written(model, tmp_path), DimBindings())


def test_old_opset(tmp_path: Path) -> None:
    source = load(written(simple(opset=6), tmp_path), DimBindings())
    assert source.ir.opset_imports[""] == 7
    assert "opset 6" in (source.converted or "")


def test_all_unbound_names_are_listed(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "z"], ["y"], "A")]
    model = model_of(nodes, {"x": ("batch", "inner"), "z": ("inner", "outer")}, ["y"])
    with pytest.raises(ModelError, match=r"--dim batch=N --dim inner=N --dim outer=N"):
        load(written(model, tmp_path), DimBindings())
    with pytest.raises(ModelError, match=r"add --dim outer=N$"):
        load(written(model, tmp_path), DimBindings(names={"batch": 2, "inner": 3}))


def test_unnamed_dimension_wants_a_shape(tmp_path: Path) -> None:
    path = written(simple((None, 32)), tmp_path)
    with pytest.raises(ModelError, match="--input-shape x:N,32"):
        load(path, DimBindings())
    assert inputs_of(load(path, DimBindings(shapes={"x": (16, 32)})).ir) == (InputSpec("x", "float", (16, 32)),)


@pytest.mark.parametrize(
    ("dims", "reason"),
    [
        (DimBindings(names={"M": 4}), "--dim M: no such dimension; there are: N"),
        (DimBindings(names={"N": -1}), "must not be negative"),
        (DimBindings(shapes={"q": (1,)}), "no such input; there are: x"),
        (DimBindings(shapes={"x": (16, 32, 1)}), "declares 2 dimensions"),
        (DimBindings(shapes={"x": (16, 33)}), "fixes a dimension at 32"),
        (DimBindings(shapes={"x": (-1, 32)}), "must not be negative"),
        (DimBindings(names={"N": 4}, shapes={"x": (16, 32)}), "cannot be both 4 and 16"),
    ],
)
def test_bindings_that_do_not_fit(tmp_path: Path, dims: DimBindings, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        load(written(simple(("N", 32)), tmp_path), dims)


def test_bound_dimensions_are_written_and_the_interface_keeps_the_names(tmp_path: Path) -> None:
    source = load(written(simple(("N", 32)), tmp_path), DimBindings(shapes={"x": (16, 32)}))
    assert source.bound_dims == {"N": 16}
    assert source.ir.graph.inputs[0].shape == ir.Shape([16, 32])
    assert source.interface.inputs[0].shape == ir.Shape(["N", 32])
    assert outputs_of(source.ir) == ("y",)


def test_a_file_for_fixed_sizes_declares_them(tmp_path: Path) -> None:
    """An output's dimension that no input names stays free: it may depend on values."""
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("NonZero", ["y"], ["found"])]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("N", 32)) for name in "xy"]
    found = helper.make_tensor_value_info("found", TensorProto.INT64, (2, "K"))
    graph = helper.make_graph(nodes, "g", ports[:1], [ports[1], found])
    path = written(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path)
    source = load(path, DimBindings(batch=16))
    fixed = source.interface_with(frozenset())
    assert [port.shape for port in fixed.inputs] == [ir.Shape([16, 32])]
    assert [port.shape for port in fixed.outputs] == [ir.Shape([16, 32]), ir.Shape([2, "K"])]


def test_repairs(tmp_path: Path) -> None:
    """IR version 3, weights listed as inputs, unnamed and equally named nodes, a Constant node."""
    model = simple()
    model.ir_version = 3
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, WEIGHT.shape))
    constant = numpy_helper.from_array(WEIGHT, "")
    model.graph.node.insert(0, helper.make_node("Constant", [], ["c"], value=constant))
    model.graph.node.append(helper.make_node("Mul", ["y", "c"], ["z"], "B"))
    model.graph.output[0].name = "z"
    path = written(model, tmp_path)
    source = load(path, DimBindings())
    assert source.ir.ir_version == 8
    assert [value.name for value in source.ir.graph.inputs] == ["x"]
    assert [node.op_type for node in source.ir.graph] == ["Add", "Relu", "Mul"]
    names = [node.name for node in source.ir.graph]
    assert all(names)
    assert len(set(names)) == 3
    assert set(source.ir.graph.initializers) == {"w", "c"}
    save(source.ir, tmp_path / "out.onnx")
    feeds = random_feeds(inputs_of(source.ir))
    _, outputs, _ = run_profiled(tmp_path / "out.onnx", feeds, exact=True)
    assert np.array_equal(outputs[0], np.maximum(feeds["x"] + WEIGHT, 0) * WEIGHT)


def test_external_data(tmp_path: Path) -> None:
    model = simple()
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    source = load(tmp_path / "model.onnx", DimBindings())
    tensor = source.ir.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    assert np.array_equal(tensor.numpy(), WEIGHT)
    data = (tmp_path / "weights.bin").read_bytes()
    (tmp_path / "weights.bin").write_bytes(data[:-1] + b"\x01")
    assert load(tmp_path / "model.onnx", DimBindings()).sha256 != source.sha256
    (tmp_path / "weights.bin").write_bytes(data[:-8])
    with pytest.raises(ModelError, match=r"weights\.bin is cut off: tensor 'w'"):
        load(tmp_path / "model.onnx", DimBindings())
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"weights\.bin of tensor 'w' does not exist"):
        load(tmp_path / "model.onnx", DimBindings())


def test_external_data_and_ports_without_shape(tmp_path: Path) -> None:
    model = simple()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert load(tmp_path / "model.onnx", DimBindings()).interface.outputs[0].shape is None


def test_prepare_optimized_drops_what_nobody_reads(tmp_path: Path) -> None:
    model = simple()
    model.graph.initializer.append(numpy_helper.from_array(WEIGHT, "unused"))
    for node in model.graph.node:
        node.name = ""
    reference = prepare_optimized(written(model, tmp_path))
    assert set(reference.graph.initializers) == {"w"}
    assert all(node.name for node in reference.graph)


def test_empty_inputs_at_the_end_are_cut_off(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"]),
        helper.make_node("LayerNormalization", ["a", "s", ""], ["n"]),
        helper.make_node("Clip", ["n", "", "top"], ["y"]),
    ]
    weights = {"w": WEIGHT, "s": np.ones(32, np.float32), "top": np.array(1, np.float32)}
    source = load(written(model_of(nodes, {"x": (16, 32)}, ["y"], weights, opset=17), tmp_path), DimBindings())
    inputs = [[None if value is None else value.name for value in node.inputs] for node in source.ir.graph]
    assert inputs == [["x", "w"], ["a", "s"], ["n", None, "top"]]


def test_weights_of_a_body_may_lie_outside_where_the_checker_needs_a_copy(tmp_path):
    def branch(name: str) -> onnx.GraphProto:
        weight = numpy_helper.from_array(np.ones((1, 512), np.float32), f"{name}/w")
        node = helper.make_node("Mul", ["x", f"{name}/w"], [f"{name}/y"], name=name)
        return helper.make_graph([node], name, [], [helper.make_tensor_value_info(f"{name}/y", 1, None)], [weight])

    choose = helper.make_node("If", ["c"], ["a"], name="if", then_branch=branch("t"), else_branch=branch("e"))
    nodes = [choose, helper.make_node("Relu", ["a"], ["y"], name="relu")]
    inputs = [helper.make_tensor_value_info("x", 1, [1, 512]), helper.make_tensor_value_info("c", 9, [])]
    shapeless = onnx.ValueInfoProto(name="y", type=helper.make_tensor_type_proto(1, None))
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, [shapeless]), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 8
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    assert load(path, DimBindings()).data_files == (tmp_path / "m.data",)


def products_with_bias() -> onnx.ModelProto:
    """A product of three dimensions with a bias, which the optimiser makes a `Gemm` of."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["q"], "product"),
        helper.make_node("Add", ["q", "b"], ["s"], "add"),
        helper.make_node("Sigmoid", ["s"], ["bent"], "sigmoid"),
    ]
    rng = np.random.default_rng(0)
    return model_of(
        nodes, {"x": (2, 5, 8)}, ["bent"], {"w": rng.random((8, 8), np.float32), "b": rng.random(8, np.float32)}
    )


def test_what_one_pass_adds_is_not_in_the_way_of_the_next(tmp_path: Path) -> None:
    optimised = optimise(products_with_bias(), tmp_path)
    assert {"Gemm", "Reshape"} <= {node.op_type for node in optimised.graph}
    # What was optimised is made longer by such a product, as tiles of it are that were left alone before.
    longer, more = ir.to_proto(optimised), products_with_bias()
    for node in more.graph.node:
        node.name = f"more/{node.name}"
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = "bent" if name == "x" else name if name == "w" else f"more/{name}"
    for tensor in more.graph.initializer:
        if tensor.name == "b":
            tensor.name = "more/b"
            longer.graph.initializer.append(tensor)
    longer.graph.node.extend(more.graph.node)
    longer.graph.output[0].name = "more/bent"
    again = optimise(longer, tmp_path)
    assert sum(node.op_type == "Gemm" for node in again.graph) == 2
