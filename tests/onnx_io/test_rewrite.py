"""A rewritten model runs in the plan's order, gives the same bits, and holds as many bytes as the judge says."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from remat_cli.base.errors import RematError
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Compute, Schedule
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.core.values.gate_form import GateForm
from remat_cli.onnx_io.read.default_order import default_order, priority_order
from remat_cli.onnx_io.read.interface import interface_of
from remat_cli.onnx_io.read.load import DimBindings, SourceModel, inputs_of, load, save
from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.onnx_io.write.rewrite import RewriteInfo, Rewritten, rewrite, set_model_metadata
from remat_cli.runtime.sessions.loading import shapes_at_load
from tests.helpers import free_problem, observe, optimise, random_feeds, run_profiled, to_bytes
from tests.onnx_io.graphs import model_of, random_model, random_schedule

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"


@dataclass(frozen=True)
class Reference:
    source: SourceModel
    model: ir.Model
    graph: Graph
    feeds: Mapping[str, np.ndarray]

    def rewrite(self, schedule: Schedule, gates: GateForm = "size") -> Rewritten:
        plan = simulate(free_problem(self.graph), schedule)
        source = self.source
        info = RewriteInfo(123, source.sha256, "0.1", source.bound_dims, source.interface, gates=gates)
        return rewrite(self.model, self.graph, plan, info, shapes_at_load)

    def run(self, exact: bool = False) -> list[np.ndarray]:
        return run_profiled(to_bytes(self.model), self.feeds, exact)[1]


def clones_of(rewritten: Rewritten) -> int:
    return sum("remat.clone_of" in node.metadata_props for node in rewritten.model.graph)


def refer(path: Path, folder: Path, dims: DimBindings | None = None, *, optimised: bool = True) -> Reference:
    source = load(path, dims or DimBindings())
    model = optimise(source.ir, folder) if optimised else source.ir
    feeds = random_feeds(inputs_of(model))
    return Reference(source, model, to_graph(model, observe(model, feeds)), feeds)


def refer_to(model: onnx.ModelProto, folder: Path, dims: DimBindings | None = None, **how: bool) -> Reference:
    onnx.save(model, folder / "model.onnx")
    return refer(folder / "model.onnx", folder, dims, **how)


SHAPE_BYTES = 128
"""Shapes of gates have a known length, so that a default session may keep a few of their buffers, on the host."""


def check_promises(reference: Reference, rewritten: Rewritten, more_bytes: int = 0) -> None:
    """Order, bits and peak, under exact and under default options; these may hold so many bytes more."""
    graph = to_graph(rewritten.model, rewritten.observed)
    predicted = baseline(free_problem(graph)).live_peak
    expected = reference.run()
    for exact in (True, False):
        executed, outputs, peak = run_profiled(to_bytes(rewritten.model), reference.feeds, exact)
        inner = {node.name for node in ir.traversal.RecursiveGraphIterator(rewritten.model.graph)}
        inner -= {node.name for node in rewritten.model.graph}
        executed = [name for name in executed if name not in inner]
        assert executed == [op.name for op in graph.ops]
        assert tuple(name for name in executed if name not in rewritten.gate_ops) == rewritten.step_ops
        assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(expected, outputs, strict=True))
        assert predicted <= peak <= predicted + (0 if exact else more_bytes)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), ops=st.integers(1, 18), recomputes=st.integers(0, 6), opset=st.sampled_from([9, 17]))
def test_random_schedules_of_random_models(
    tmp_path_factory: pytest.TempPathFactory, seed: int, ops: int, recomputes: int, opset: int
) -> None:
    rng = random.Random(seed)
    reference = refer_to(random_model(rng, ops, opset), tmp_path_factory.mktemp("model"))
    schedule = random_schedule(free_problem(reference.graph), rng, recomputes)
    check_promises(reference, reference.rewrite(schedule))


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32), recomputes=st.integers(0, 6), opset=st.sampled_from([9, 17]))
def test_gates_that_ask_for_shapes_hold_the_order_too(
    tmp_path_factory: pytest.TempPathFactory, seed: int, recomputes: int, opset: int
) -> None:
    """They are for devices beside the host; the runtime optimises a model alike for all, and may fold no gate."""
    rng = random.Random(seed)
    reference = refer_to(random_model(rng, rng.randrange(1, 18), opset), tmp_path_factory.mktemp("model"))
    rewritten = reference.rewrite(random_schedule(free_problem(reference.graph), rng, recomputes), "shape")
    check_promises(reference, rewritten, more_bytes=SHAPE_BYTES)
    helpers = [node for node in rewritten.model.graph if node.name in rewritten.gate_ops]
    counted = [node.inputs[0].name for node in helpers if node.op_type == "Size"]
    assert all(name.endswith("/none") for name in counted)  # nothing of a value is taken
    assert not any(node.op_type == "Unsqueeze" for node in helpers)


@pytest.mark.parametrize("opset", [7, 17])
def test_gates_of_scalars_and_of_what_is_transposed(tmp_path: Path, opset: int) -> None:
    """A scalar has no dimensions to wait for; of a Transpose the runtime would ask the input for its shape."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], "T", perm=[1, 0]),
        helper.make_node("ReduceMean", ["t"], ["s"], "S", keepdims=0),
        helper.make_node("Tanh", ["x"], ["a"], "A"),
        helper.make_node("Mul", ["a", "s"], ["m"], "M"),
        helper.make_node("Transpose", ["a"], ["u"], "U", perm=[1, 0]),
        helper.make_node("MatMul", ["m", "u"], ["y"], "Y"),
    ]
    reference = refer_to(model_of(nodes, {"x": (16, 32)}, ["y"], opset=opset), tmp_path)
    problem = free_problem(reference.graph)
    for seed in range(4):
        rewritten = reference.rewrite(random_schedule(problem, random.Random(seed), 2), "shape")
        check_promises(reference, rewritten, more_bytes=SHAPE_BYTES)


def test_gates_leave_an_op_the_sizes_that_it_asks_for_when_it_is_loaded(tmp_path: Path) -> None:
    """A product of a table with packed weights: all that it reads is constant, and its bias is the smallest."""
    rng = np.random.default_rng(0)
    packed = ["table", "packed", "scales", "", "", "bias"]
    how = {"domain": "com.microsoft", "K": 64, "N": 8, "bits": 4, "block_size": 32}
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"], "A"),
        helper.make_node("MatMulNBits", packed, ["p"], "P", **how),
        helper.make_node("Mul", ["a", "p"], ["m"], "M"),
        helper.make_node("Exp", ["m"], ["e"], "E"),
        helper.make_node("Add", ["e", "p"], ["y"], "Y"),
    ]
    weights = {
        "table": rng.random((16, 64), np.float32),
        "packed": rng.integers(0, 255, (8, 2, 16), np.uint8),
        "scales": rng.random((8, 2), np.float32),
        "bias": rng.random(8, np.float32),
    }
    model = model_of(nodes, {"x": (16, 8)}, ["y"], weights)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    reference = refer_to(model, tmp_path, optimised=False)
    ops = {op.name: number for number, op in enumerate(reference.graph.ops)}
    rewritten = reference.rewrite(Schedule(tuple(Compute(ops[name]) for name in "APMEPY")))
    assert any("/P" in name for name in rewritten.gate_ops)
    check_promises(reference, rewritten)


@pytest.mark.slow
@settings(max_examples=300)
@given(seed=st.integers(0, 2**32), opset=st.sampled_from([9, 13, 17, 21]))
def test_many_random_schedules_of_random_models(
    tmp_path_factory: pytest.TempPathFactory, seed: int, opset: int
) -> None:
    rng = random.Random(seed)
    reference = refer_to(random_model(rng, rng.randrange(5, 40), opset), tmp_path_factory.mktemp("model"))
    schedule = random_schedule(free_problem(reference.graph), rng, rng.randrange(12))
    check_promises(reference, reference.rewrite(schedule))


@pytest.mark.parametrize("name", ["unet", "resnet", "transformer", "detector"])
def test_sample_models_with_random_recomputes(name: str, tmp_path: Path) -> None:
    path = SAMPLES / f"{name}.onnx"
    if not path.exists():
        pytest.skip("run `make models` first")
    reference = refer(path, tmp_path)
    problem = free_problem(reference.graph)
    rewritten = reference.rewrite(random_schedule(problem, random.Random(1), 5))
    assert clones_of(rewritten)
    check_promises(reference, rewritten)


def diamond() -> onnx.ModelProto:
    """x -> a -> b -> c, and c is added to a: recomputing a frees it in between."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"], "A"),
        helper.make_node("Abs", ["a"], ["b"], "B"),
        helper.make_node("Neg", ["b"], ["c"], "C"),
        helper.make_node("Add", ["c", "a"], ["y"], "D"),
    ]
    return model_of(nodes, {"x": ("N", 64)}, ["y"])


@pytest.fixture
def reference(tmp_path: Path) -> Reference:
    return refer_to(diamond(), tmp_path, DimBindings(names={"N": 16}))


def test_names_and_metadata_of_a_recompute(reference: Reference) -> None:
    rewritten = reference.rewrite(Schedule.of_ops([0, 1, 2, 0, 3]))
    assert rewritten.step_ops == ("A", "B", "C", "A/remat_1", "D")
    assert clones_of(rewritten) == 1
    clone = next(node for node in rewritten.model.graph if node.name == "A/remat_1")
    assert clone.outputs[0].name == "a/remat_1"
    expected = {"remat.clone_of": "A", "remat.step": "3", "remat.device": "0"}
    assert dict(clone.metadata_props) == expected
    set_model_metadata(rewritten.model, "remat.predicted_peak_bytes", "7")
    facts = dict(rewritten.model.metadata_props)
    assert facts["remat.version"] == "0.1"
    assert facts["remat.budget_bytes"] == "123"
    assert facts["remat.source_sha256"] == reference.source.sha256
    assert facts["remat.bound_dims"] == "N=16"
    assert facts["remat.predicted_peak_bytes"] == "7"
    check_promises(reference, rewritten)


def test_symbolic_interface_is_kept(reference: Reference) -> None:
    rewritten = reference.rewrite(Schedule.of_ops([0, 1, 2, 3]))
    assert str(rewritten.model.graph.inputs[0].shape) == str(ir.Shape(["N", 64]))
    assert [value.name for value in rewritten.model.graph.outputs] == ["y"]


def test_same_plan_same_bytes(reference: Reference) -> None:
    schedule = Schedule.of_ops([0, 1, 2, 0, 3])
    assert to_bytes(reference.rewrite(schedule).model) == to_bytes(reference.rewrite(schedule).model)


def test_reference_model_is_left_alone(reference: Reference) -> None:
    before = to_bytes(reference.model)
    reference.rewrite(Schedule.of_ops([0, 1, 2, 0, 3]))
    assert to_bytes(reference.model) == before


def test_wasted_recompute_is_refused(reference: Reference) -> None:
    with pytest.raises(RematError, match="step 3 computes 'B/remat_1', which nobody reads"):
        reference.rewrite(Schedule.of_ops([0, 1, 2, 1, 3]))


def test_plan_for_two_devices_is_refused(reference: Reference) -> None:
    plan = simulate(free_problem(reference.graph), Schedule.of_ops([0, 1, 2, 3]))
    moved = type(plan.schedule.steps[0])(0, 1)
    schedule = Schedule((moved, *plan.schedule.steps[1:]))
    plan = type(plan)(**{**{f: getattr(plan, f) for f in plan.__struct_fields__}, "schedule": schedule})
    info = RewriteInfo(1, "", "", {}, reference.source.interface)
    with pytest.raises(RematError, match="one device"):
        rewrite(reference.model, reference.graph, plan, info, shapes_at_load)


def test_order_of_the_file_is_the_order_of_execution(reference: Reference) -> None:
    nodes = list(reference.rewrite(Schedule.of_ops([0, 1, 2, 0, 3])).model.graph)
    assert default_order(nodes) == priority_order(nodes) == list(range(len(nodes)))


def test_newest_instance_of_an_output_has_its_name(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Tanh", ["x"], ["y"], "A"),
        helper.make_node("Abs", ["y"], ["b"], "B"),
        helper.make_node("Add", ["b", "y"], ["z"], "C"),
    ]
    reference = refer_to(model_of(nodes, {"x": (16, 32)}, ["y", "z"]), tmp_path)
    rewritten = reference.rewrite(Schedule.of_ops([0, 1, 0, 2]))
    made = {node.name: node.outputs[0].name for node in rewritten.model.graph}
    assert (made["A"], made["A/remat_1"]) == ("y/remat_0", "y")
    check_promises(reference, rewritten)


def test_odd_interfaces(tmp_path: Path) -> None:
    """An input that is an output, a scalar chain, a Shape op, an unused second output, a left-out optional input."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"], "A"),
        helper.make_node("ReduceSum", ["a"], ["s"], "S", keepdims=0),
        helper.make_node("Neg", ["s"], ["t"], "T"),
        helper.make_node("Clip", ["a", "", "t"], ["b"], "B"),
        helper.make_node("Mul", ["b", "s"], ["c"], "M"),
        helper.make_node("TopK", ["c", "k"], ["d", "unused"], "K"),
        helper.make_node("Shape", ["d"], ["n"], "N"),
        helper.make_node("Expand", ["t", "n"], ["e"], "E"),
        helper.make_node("Add", ["d", "e"], ["y"], "Y"),
    ]
    weights = {"k": np.array([4])}
    model = model_of(nodes, {"x": (16, 32), "extra": (2, 2)}, ["y", "extra"], weights)
    reference = refer_to(model, tmp_path, optimised=False)
    problem = free_problem(reference.graph)
    for seed in range(6):
        rng = random.Random(seed)
        plan = simulate(problem, random_schedule(problem, rng, 3))
        info = RewriteInfo(1, "", "", {}, reference.source.interface)
        rewritten = rewrite(reference.model, reference.graph, plan, info, shapes_at_load)
        graph = to_graph(rewritten.model, rewritten.observed)
        executed, outputs, peak = run_profiled(to_bytes(rewritten.model), reference.feeds, exact=True)
        assert executed == [op.name for op in graph.ops]
        assert peak == baseline(free_problem(graph)).live_peak
        for expected, actual in zip(reference.run(exact=True), outputs, strict=True):
            assert np.array_equal(expected, actual)


def if_model() -> onnx.ModelProto:
    """An If whose branches read `a` from outside; `a` is read again later."""

    def branch(name: str, op_type: str) -> onnx.GraphProto:
        inner = helper.make_node(op_type, ["a"], [f"{name}_out"], f"{name}_op")
        return helper.make_graph([inner], name, [], [helper.make_tensor_value_info(f"{name}_out", 1, None)])

    nodes = [
        helper.make_node("Tanh", ["x"], ["a"], "A"),
        helper.make_node("Abs", ["a"], ["b"], "B"),
        helper.make_node("ReduceMax", ["b"], ["m"], "M", keepdims=0),
        helper.make_node("Cast", ["m"], ["cond"], "P", to=TensorProto.BOOL),
        helper.make_node("If", ["cond"], ["c"], "I", then_branch=branch("yes", "Exp"), else_branch=branch("no", "Neg")),
        helper.make_node("Add", ["c", "a"], ["y"], "Y"),
    ]
    return model_of(nodes, {"x": (16, 32)}, ["y"])


def test_subgraphs_read_the_instance_of_the_plan(tmp_path: Path) -> None:
    reference = refer_to(if_model(), tmp_path)
    names = [op.name for op in reference.graph.ops]
    op_if = reference.graph.ops[names.index("I")]
    assert "control flow" in op_if.why_not_repeatable
    assert "a" in {reference.graph.tensors[t].name for t in op_if.inputs}
    order = ["A", "B", "M", "P", "A", "I", "A", "Y"]
    rewritten = reference.rewrite(Schedule.of_ops([names.index(name) for name in order]))
    assert clones_of(rewritten) == 2
    graph = to_graph(rewritten.model, rewritten.observed)
    assert "a/remat_1" in {graph.tensors[t].name for t in graph.ops[[o.name for o in graph.ops].index("I")].inputs}
    for exact in (True, False):
        executed, outputs, _ = run_profiled(to_bytes(rewritten.model), reference.feeds, exact)
        kept = [name for name in executed if name in set(rewritten.step_ops)]
        assert tuple(kept) == rewritten.step_ops
        assert np.array_equal(outputs[0], reference.run()[0])


def test_half_precision(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], "A"),
        helper.make_node("Transpose", ["a"], ["b"], "B", perm=[1, 0]),
        helper.make_node("MatMul", ["a", "b"], ["c"], "C"),
        helper.make_node("Relu", ["c"], ["d"], "D"),
        helper.make_node("MatMul", ["d", "a"], ["y"], "Y"),
    ]
    reference = refer_to(model_of(nodes, {"x": (32, 64)}, ["y"], elements=TensorProto.FLOAT16), tmp_path)
    problem = free_problem(reference.graph)
    check_promises(reference, reference.rewrite(random_schedule(problem, random.Random(3), 4)))


def test_copies_are_not_fused_with_their_only_reader(tmp_path: Path) -> None:
    """Gemm has two readers in the model, but its copy one, a Relu, with which the runtime could fuse it."""
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], "A"),
        helper.make_node("Erf", ["a"], ["b"], "B"),
        helper.make_node("Neg", ["b"], ["c"], "C"),
        helper.make_node("Relu", ["a"], ["d"], "D"),
        helper.make_node("Add", ["c", "d"], ["y"], "Y"),
    ]
    weights = {"w": np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)}
    reference = refer_to(model_of(nodes, {"x": (16, 32)}, ["y"], weights), tmp_path)
    names = [op.name for op in reference.graph.ops]
    order = [names.index(name) for name in ("A", "B", "C", "A", "D", "Y")]
    check_promises(reference, reference.rewrite(Schedule.of_ops(order)))


def test_weights_are_shared_and_saved_outside(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "A"),
        helper.make_node("Erf", ["a"], ["b"], "B"),
        helper.make_node("Neg", ["b"], ["c"], "C"),
        helper.make_node("Mul", ["c", "a"], ["y"], "Y"),
    ]
    weights = {"w": np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)}
    reference = refer_to(model_of(nodes, {"x": (16, 64)}, ["y"], weights), tmp_path)
    rewritten = reference.rewrite(Schedule.of_ops([0, 1, 2, 0, 3]))
    assert sum(value.shape == ir.Shape([64, 64]) for value in rewritten.model.graph.initializers.values()) == 1
    save(rewritten.model, tmp_path / "out.onnx", external=True)
    assert (tmp_path / "out.onnx.data").is_file()
    _, outputs, _ = run_profiled(tmp_path / "out.onnx", reference.feeds, exact=False)
    assert np.array_equal(outputs[0], reference.run()[0])
    assert interface_of(rewritten.model).inputs[0].name == "x"


def small(*shape: int) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape) / 6).astype(np.float32)


def cache_model() -> onnx.ModelProto:
    """One attention step whose grown cache is an output that is read inside."""
    nodes = [
        helper.make_node("MatMul", ["x", "wk"], ["k"], "K"),
        helper.make_node("Concat", ["past", "k"], ["present"], "P", axis=1),
        helper.make_node("MatMul", ["x", "wq"], ["q"], "Q"),
        helper.make_node("Transpose", ["present"], ["turned"], "T", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "turned"], ["scores"], "S"),
        helper.make_node("Softmax", ["scores"], ["shares"], "SM", axis=-1),
        helper.make_node("MatMul", ["shares", "present"], ["y"], "Y"),
        helper.make_node("Erf", ["q"], ["e"], "E"),
        helper.make_node("Add", ["e", "k"], ["z"], "Z"),
    ]
    ports = {"x": (1, 16, 32), "past": (1, 48, 32)}
    return model_of(nodes, dict(ports), ["y", "present", "z"], {"wk": small(32, 32), "wq": small(32, 32)})


def quantized_model() -> onnx.ModelProto:
    """Convolutions between QuantizeLinear and DequantizeLinear; the skip keeps some of them from being fused away."""
    weights: dict[str, np.ndarray] = {"s": np.array(0.05, np.float32), "z": np.array(0, np.int8)}
    weights |= {name: (small(16, 16, 3, 3) * 300).astype(np.int8) for name in ("w1", "w2")}
    nodes: list[onnx.NodeProto] = []

    def through_int8(name: str) -> str:
        nodes.append(helper.make_node("QuantizeLinear", [name, "s", "z"], [f"{name}_q"], f"{name}_quantize"))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", "s", "z"], [f"{name}_d"], f"{name}_back"))
        return f"{name}_d"

    def convolve(source: str, weight: str, name: str) -> str:
        nodes.append(helper.make_node("DequantizeLinear", [weight, "s", "z"], [f"{weight}_d"], f"{weight}_back"))
        nodes.append(helper.make_node("Conv", [source, f"{weight}_d"], [name], name, pads=[1] * 4))
        return through_int8(name)

    skip = convolve(through_int8("x"), "w1", "a")
    nodes.append(helper.make_node("Relu", [skip], ["r"], "R"))
    deep = convolve(through_int8("r"), "w2", "c")
    nodes.append(helper.make_node("Add", [deep, skip], ["y"], "A"))
    return model_of(nodes, {"x": (1, 16, 16, 16)}, ["y"], weights)


def quantized_outputs_model() -> onnx.ModelProto:
    """Several outputs that DequantizeLinear makes, as of a network that is supervised at several depths."""
    weights: dict[str, np.ndarray] = {"s": np.array(0.05, np.float32), "z": np.array(0, np.int8)}
    nodes: list[onnx.NodeProto] = []
    for number, kind in enumerate(("Relu", "Sigmoid", "Tanh")):
        weights |= {f"w{number}": small(8, 8, 3, 3)}
        nodes.append(helper.make_node("Conv", ["x", f"w{number}"], [f"a{number}"], f"A{number}", pads=[1] * 4))
        nodes.append(helper.make_node(kind, [f"a{number}"], [f"b{number}"], f"B{number}"))
        nodes.append(helper.make_node("QuantizeLinear", [f"b{number}", "s", "z"], [f"q{number}"], f"Q{number}"))
        nodes.append(helper.make_node("DequantizeLinear", [f"q{number}", "s", "z"], [f"y{number}"], f"D{number}"))
    return model_of(nodes, {"x": (1, 8, 16, 16)}, ["y0", "y1", "y2"], weights)


def data_dependent_model() -> onnx.ModelProto:
    """Shapes that depend on values, and an output that is a Shape."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "A"),
        helper.make_node("NonZero", ["a"], ["places"], "N"),
        helper.make_node("Transpose", ["places"], ["turned"], "T"),
        helper.make_node("GatherND", ["a", "turned"], ["found"], "G"),
        helper.make_node("Exp", ["found"], ["e"], "E"),
        helper.make_node("Mul", ["e", "found"], ["y"], "M"),
        helper.make_node("Shape", ["places"], ["shape"], "S"),
        helper.make_node("Cast", ["shape"], ["count"], "C", to=TensorProto.FLOAT),
    ]
    return model_of(nodes, {"x": (16, 32)}, ["y", "count"])


def image_model() -> onnx.ModelProto:
    """Resize, Split with results that a repeat leaves unread, pooling, ConvTranspose."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "A", pads=[1] * 4),
        helper.make_node("Resize", ["a", "", "scales"], ["b"], "B", mode="nearest"),
        helper.make_node("Split", ["b"], ["s1", "s2"], "S", axis=1),
        helper.make_node("MaxPool", ["s1"], ["p"], "P", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Concat", ["s2", "s1"], ["c"], "C", axis=1),
        helper.make_node("ConvTranspose", ["p", "t"], ["u"], "U", strides=[2, 2]),
        helper.make_node("Add", ["c", "u"], ["d"], "D"),
        helper.make_node("Relu", ["d"], ["y"], "Y"),
    ]
    weights = {"w": small(6, 3, 3, 3), "t": small(3, 6, 2, 2), "scales": np.array([1, 1, 2, 2], np.float32)}
    return model_of(nodes, {"x": (1, 3, 16, 16)}, ["y"], weights)


@pytest.mark.parametrize(
    "make", [cache_model, quantized_model, quantized_outputs_model, data_dependent_model, image_model]
)
@pytest.mark.parametrize("seed", range(3))
def test_special_models(make: Callable[[], onnx.ModelProto], seed: int, tmp_path: Path) -> None:
    reference = refer_to(make(), tmp_path)
    problem = free_problem(reference.graph)
    check_promises(reference, reference.rewrite(random_schedule(problem, random.Random(seed), 4)))


def test_declared_shapes_hold_for_other_data(tmp_path: Path) -> None:
    """The shapes seen in one run are not written down as facts."""
    reference = refer_to(data_dependent_model(), tmp_path)
    rewritten = reference.rewrite(random_schedule(free_problem(reference.graph), random.Random(2), 3))
    feeds = random_feeds(inputs_of(reference.model), seed=7)
    expected = run_profiled(to_bytes(reference.model), feeds, exact=False)[1]
    actual = run_profiled(to_bytes(rewritten.model), feeds, exact=False)[1]
    assert expected[0].shape != reference.run()[0].shape
    assert all(np.array_equal(a, b) for a, b in zip(expected, actual, strict=True))


def test_portable_reference_under_exact_options(tmp_path: Path) -> None:
    path = SAMPLES / "resnet.onnx"
    if not path.exists():
        pytest.skip("run `make models` first")
    source = load(path, DimBindings())
    model = optimise(source.ir, tmp_path, extended=True)
    feeds = random_feeds(inputs_of(model))
    reference = Reference(source, model, to_graph(model, observe(model, feeds)), feeds)
    rewritten = reference.rewrite(random_schedule(free_problem(reference.graph), random.Random(1), 5))
    graph = to_graph(rewritten.model, rewritten.observed)
    executed, outputs, peak = run_profiled(to_bytes(rewritten.model), feeds, exact=True)
    assert executed == [op.name for op in graph.ops]
    assert peak == baseline(free_problem(graph)).live_peak
    assert np.array_equal(outputs[0], reference.run(exact=True)[0])
