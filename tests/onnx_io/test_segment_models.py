"""Segments as models: names by instance, what is captured by subgraphs, weights in files that are shared."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.base.errors import RematError
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.segments import Segment, cut_plan
from remat_cli.core.schedule.simulate import simulate
from remat_cli.onnx_io.read.load import prepare_optimized, save
from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.onnx_io.write.segment_models import SegmentSource, WrittenSegments, write_segments
from tests.helpers import free_problem, observe

SIZE = 1024
FLOAT = TensorProto.FLOAT


def branches():
    """`y = big if any(x) else small`: both branches read values from outside, one of them a weight."""
    then = helper.make_graph([helper.make_node("Add", ["big", "w"], ["t"], name="t")], "then", [], [value("t")])
    other = helper.make_graph([helper.make_node("Neg", ["small"], ["e"], name="e")], "else", [], [value("e")])
    return helper.make_node("If", ["cond"], ["y"], name="if", then_branch=then, else_branch=other)


def value(name, shape=(SIZE,), kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("Mul", ["x", "w"], ["big"], name="big"),
        node("Exp", ["x"], ["small"], name="small"),
        node("ReduceSum", ["small"], ["sum"], name="sum", keepdims=0),
        node("Greater", ["sum", "zero"], ["cond"], name="cond"),
        branches(),
        node("Mul", ["small", "w"], ["z"], name="z"),
    ]
    weights = [
        numpy_helper.from_array(np.arange(SIZE, dtype=np.float32), "w"),
        numpy_helper.from_array(np.float32(0), "zero"),
    ]
    graph = helper.make_graph(nodes, "g", [value("x")], [value("y"), value("z")], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


FEEDS = {"x": np.linspace(-1, 1, SIZE, dtype=np.float32)}


@pytest.fixture
def source(tmp_path):
    """A plan that computes `small` twice, each op in a session of its own."""
    return source_of(tmp_path, external=False)


def source_of(folder, external: bool, again: str = "small") -> SegmentSource:
    save(ir.from_proto(model()), folder / "m.onnx", external=external)
    reference = prepare_optimized(folder / "m.onnx")
    graph = to_graph(reference, observe(ir.from_proto(model()), FEEDS))
    problem = free_problem(graph)
    order = [op.name for op in graph.ops]
    names = [*order[:-1], again, order[-1]]
    plan = simulate(problem, Schedule.of_ops([order.index(name) for name in names]))
    return SegmentSource(reference, graph, problem, plan)


def every_op_alone(problem: Problem, source: SegmentSource) -> list[Segment]:
    segments = []
    kept = {max(i for i, x in enumerate(source.plan.instances) if x.tensor == t) for t in kept_tensors(problem)}
    for number in range(len(source.plan.schedule.steps)):
        reads, makes = source.plan.reads[number], source.plan.makes[number]
        later = {i for r in source.plan.reads[number + 1 :] for i in r}
        segments.append(Segment(0, (number,), reads, tuple(i for i in makes if i in later or i in kept)))
    return segments


def kept_tensors(problem: Problem) -> list[int]:
    return [number for number, tensor in enumerate(problem.tensors) if tensor.kept]


def run_all(written: WrittenSegments, folder) -> dict[str, np.ndarray]:
    values = dict(FEEDS)
    for file in written.files:
        session = ort.InferenceSession(folder / file.file, providers=["CPUExecutionProvider"])
        assert tuple(i.name for i in session.get_inputs()) == file.reads
        made = session.run(list(file.makes), {name: values[name] for name in file.reads})
        values |= dict(zip(file.makes, made, strict=True))
    return values


@pytest.mark.parametrize("external", [False, True])
def test_segments_of_one_op_each_give_what_the_model_gives(tmp_path, external):
    source = source_of(tmp_path, external)
    folder = tmp_path / "work"
    folder.mkdir()
    written = write_segments(source, every_op_alone(source.problem, source), folder)
    expected = ort.InferenceSession(tmp_path / "m.onnx").run(["y", "z"], FEEDS)
    values = run_all(written, folder)
    assert values["y"].tobytes() == expected[0].tobytes()
    assert values["z"].tobytes() == expected[1].tobytes()
    assert list(written.weights) == ["w"]
    assert written.weights["w"].size_bytes == 4 * SIZE


def test_a_repeated_op_and_what_it_makes_have_names_of_their_own(source, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    written = write_segments(source, every_op_alone(source.problem, source), folder)
    ops = [name for file in written.files for name in file.ops]
    assert ops.count("small") == 1
    assert "small/remat_1" in ops
    assert len(set(written.instances)) == len(written.instances)
    again = next(file for file in written.files if file.ops == ("small/remat_1",))
    (made,) = again.makes
    assert made == "small/remat_1"
    assert sum(made in file.reads for file in written.files) == 1


def test_what_a_branch_reads_from_outside_is_an_input(source, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    written = write_segments(source, every_op_alone(source.problem, source), folder)
    file = next(file for file in written.files if file.ops == ("if",))
    assert set(file.reads) == {"cond", "big", "small/remat_1"}
    assert set(file.weights) == {"w"}


def test_one_segment_is_the_whole_model(source, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (segment,) = (a for a in cut_plan(source.problem, source.plan).actions if isinstance(a, Segment))
    (file,) = write_segments(source, [segment], folder).files
    assert file.reads == ("x",)
    assert set(file.makes) == {"y", "z"}
    assert len(file.ops) == len(source.plan.schedule.steps)


def test_external_data_is_linked_not_copied(tmp_path):
    source = source_of(tmp_path, external=True)
    folder = tmp_path / "work"
    folder.mkdir()
    written = write_segments(source, every_op_alone(source.problem, source), folder)
    assert (folder / written.weights["w"].file).samefile(tmp_path / "m.onnx.data")
    assert (folder / "weights.data").stat().st_size == 0


def test_a_run_that_nobody_reads_is_refused(tmp_path):
    source = source_of(tmp_path, external=False, again="cond")
    with pytest.raises(RematError, match="computes what nobody reads"):
        write_segments(source, [], tmp_path)
