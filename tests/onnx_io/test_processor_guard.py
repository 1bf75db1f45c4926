"""The guard: the first op of every run, refused where blocks are of another size, and in nobody's way elsewhere."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from remat_cli.compiling.processor import block_here
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.core.values.runs_on import MADE_FOR, is_inside_guard
from remat_cli.onnx_io.read.compiled import compiled_runs_on, runs_on_at
from remat_cli.onnx_io.read.default_order import default_order, priority_order
from remat_cli.onnx_io.read.layout import uses_blocks
from remat_cli.onnx_io.read.load import save
from remat_cli.onnx_io.read.phases import annotate
from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.onnx_io.write.processor_guard import Guard, guard_for, guard_in, with_lone_guards
from remat_cli.onnx_io.write.rewrite import RewriteInfo, Rewritten, rewrite
from remat_cli.onnx_io.write.steady import can_be_steady, seen_through, steady
from remat_cli.ort_rules.steady import PREFIX, SteadyForm
from remat_cli.runtime.sessions.loading import shapes_at_load
from tests.helpers import SUFFIX, Feeds, free_problem, live_peak, profile_events, run_profiled, to_bytes
from tests.onnx_io.graphs import random_schedule
from tests.onnx_io.test_rewrite import Reference, refer_to
from tests.small_cnn import CHANNELS, SIZE, small_cnn

LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
ORDERS = ("DEFAULT", "PRIORITY_BASED")


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Channels in a block on this processor."""
    found = block_here(tmp_path_factory.mktemp("block"))
    if found == 1:
        pytest.skip("the runtime has no blocked layout on this processor")
    return found


def guarded(reference: Reference, schedule: Schedule, block: int) -> Rewritten:
    """The plan as a model with a guard for blocks of so many channels."""
    plan, guard = simulate(free_problem(reference.graph), schedule), guard_for("x86_64", block)
    info = RewriteInfo(1, "", "0.1", {}, reference.source.interface, guard=guard)
    return rewrite(reference.model, reference.graph, plan, info, shapes_at_load)


def run_outside_guard(model: bytes, feeds: Feeds, exact: bool) -> tuple[list[str], list[np.ndarray], int]:
    """Like `run_profiled`, without the ops inside the guard: what it holds for its round began before them."""
    events, outputs = profile_events(model, feeds, exact)
    outer = [event for event in events if not is_inside_guard(event["name"])]
    return [event["name"].removesuffix(SUFFIX) for event in outer], outputs, live_peak(outer)


def in_order(reference: Reference) -> Schedule:
    return Schedule.of_ops(range(len(reference.graph.ops)))


def noisy_cnn(opset: int = 17) -> onnx.ModelProto:
    """The same network behind an op that reads nothing, whose result is added to its input."""
    model = small_cnn(2)
    noise = helper.make_node("RandomNormal", [], ["noise"], name="noise", shape=[1, 3, SIZE, SIZE], seed=1.0)
    added = helper.make_node("Add", ["x", "noise"], ["noisy"], name="add_noise")
    model.graph.node[0].input[0] = "noisy"
    model.graph.node.insert(0, added)
    model.graph.node.insert(0, noise)
    model.opset_import[0].version = opset
    return model


def small_cnn_of(opset: int) -> onnx.ModelProto:
    model = small_cnn(3)
    model.opset_import[0].version = opset
    return model


@pytest.mark.parametrize("opset", [9, 13, 17])
@pytest.mark.parametrize("seed", range(3))
def test_it_runs_first_and_changes_neither_order_nor_bits_nor_what_is_live(tmp_path, block, opset, seed):
    reference = refer_to(small_cnn_of(opset), tmp_path)
    schedule = random_schedule(free_problem(reference.graph), random.Random(seed), 2)
    rewritten = guarded(reference, schedule, block)
    nodes = list(rewritten.model.graph)
    assert nodes[0].name == guard_for("x86_64", block).name
    assert default_order(nodes) == priority_order(nodes) == list(range(len(nodes)))
    predicted = baseline(free_problem(to_graph(rewritten.model, rewritten.observed))).live_peak
    for exact in (True, False):
        executed, outputs, peak = run_outside_guard(to_bytes(rewritten.model), reference.feeds, exact)
        assert executed == [node.name for node in nodes]
        assert tuple(name for name in executed if name not in rewritten.gate_ops) == rewritten.step_ops
        assert all(np.array_equal(a, b) for a, b in zip(reference.run(), outputs, strict=True))
        assert peak == predicted


@pytest.mark.parametrize("opset", [13, 17])
def test_where_the_first_op_reads_nothing_it_is_the_next(tmp_path, block, opset):
    reference = refer_to(noisy_cnn(opset), tmp_path)
    names = [op.name for op in reference.graph.ops]
    rewritten = guarded(reference, in_order(reference), block)
    executed, _, _ = run_outside_guard(to_bytes(rewritten.model), reference.feeds, False)
    assert executed == [node.name for node in rewritten.model.graph]
    before = executed[: executed.index(guard_for("x86_64", block).name)]
    assert [name for name in before if name in names] == ["noise"]
    with pytest.raises(Exception, match=MADE_FOR):
        run_profiled(to_bytes(guarded(reference, in_order(reference), 24 - block).model), reference.feeds, False)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("form", ["plain", "steady"])
def test_blocks_of_another_size_are_refused_by_name_before_any_op_runs(tmp_path, block, level, order, form):
    """A guard for the other size of blocks is to this processor what this one's guard is to others."""
    reference = refer_to(small_cnn(), tmp_path)
    model = guarded(reference, in_order(reference), 24 - block).model
    if form == "steady":
        assert can_be_steady(model)
        model = steady(model, SteadyForm((2**19 + 256,)))
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.execution_order = getattr(ort.ExecutionOrder, order)
    options.log_severity_level = 4
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "run")
    session = ort.InferenceSession(to_bytes(model), options, providers=["CPUExecutionProvider"])
    with pytest.raises(Exception, match=r"made_for_x86_64_\w+__compile_again_on_this_processor"):
        session.run(None, dict(reference.feeds))
    ran = Path(session.end_profiling()).read_text()
    assert not [op.name for op in reference.graph.ops if f'"{op.name}_kernel_time"' in ran]


@pytest.mark.parametrize("level", LEVELS)
def test_it_stays_and_lets_its_own_blocks_pass_at_every_level(tmp_path, block, level):
    reference = refer_to(small_cnn(), tmp_path)
    model = steady(guarded(reference, in_order(reference), block).model, SteadyForm())
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    session = ort.InferenceSession(to_bytes(model), options, providers=["CPUExecutionProvider"])
    for _ in range(2):
        outputs = session.run(None, dict(reference.feeds))
        assert all(np.array_equal(a, b) for a, b in zip(reference.run(), outputs, strict=True))
    assert guard_in(ir.load(tmp_path / "loaded.onnx")) == guard_for("x86_64", block)


def test_the_steady_form_takes_it_along_and_gives_it_back(tmp_path, block):
    reference = refer_to(small_cnn(), tmp_path)
    model = guarded(reference, in_order(reference), block).model
    form = steady(model, SteadyForm())
    assert not any(node.name.startswith(MADE_FOR) for node in form.graph)
    body = next(node for node in form.graph if node.name == f"{PREFIX}body").attributes["then_branch"].as_graph()
    own = [node.name for node in body if not node.name.startswith(PREFIX)]
    assert own[0] == guard_in(form).name
    assert guard_in(form) == guard_in(model) == guard_for("x86_64", block)
    assert [node.name for node in seen_through(form).graph] == [node.name for node in model.graph]


def test_a_model_that_remat_cuts_into_sessions_has_one_that_any_session_runs_first(tmp_path, block):
    reference = refer_to(small_cnn(), tmp_path)
    path = tmp_path / "noted.onnx"
    for size, refuses in ((block, False), (24 - block, True)):
        noted = annotate(reference.model, {}, {"remat.version": "0.1"})
        save(with_lone_guards(noted, guard_for("x86_64", size)), path)
        onnx.checker.check_model(onnx.load(path))
        for exact in (True, False):
            if refuses:
                with pytest.raises(Exception, match=MADE_FOR):
                    run_profiled(path, reference.feeds, exact)
            else:
                executed, outputs, _ = run_profiled(path, reference.feeds, exact)
                assert executed[0].startswith(MADE_FOR)
                assert all(np.array_equal(a, b) for a, b in zip(reference.run(), outputs, strict=True))


def test_processors_have_names_that_people_know():
    assert guard_for("x86_64", 16) == Guard("made_for_x86_64_avx512__compile_again_on_this_processor", 16)
    assert guard_for("AMD64", 8) == Guard("made_for_x86_64_without_avx512__compile_again_on_this_processor", 8)
    assert guard_for("aarch64", 16).name == "made_for_arm64__compile_again_on_this_processor"
    assert guard_for("x86_64", 1) is None


def test_blocks_in_the_body_of_an_op_are_found_too():
    value = helper.make_tensor_value_info
    inner = helper.make_node("ReorderOutput", ["x"], ["y"], domain="com.microsoft.nchwc", channels=CHANNELS)
    body = helper.make_graph([inner], "body", [], [value("y", TensorProto.FLOAT, None)])
    choose = helper.make_node("If", ["flag"], ["z"], name="choose", then_branch=body, else_branch=body)
    inputs = [value("x", TensorProto.FLOAT, [1, CHANNELS, 1, 1]), value("flag", TensorProto.BOOL, [])]
    graph = helper.make_graph([choose], "g", inputs, [value("z", TensorProto.FLOAT, None)])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft.nchwc", 1)]
    assert uses_blocks(ir.from_proto(helper.make_model(graph, opset_imports=imports)))


def test_a_compiled_file_without_one_was_made_before(tmp_path, block):
    reference = refer_to(small_cnn(), tmp_path)
    old, path = reference.rewrite(in_order(reference)).model, tmp_path / "old.onnx"
    save(old, path)
    assert runs_on_at(path).is_unguarded
    assert compiled_runs_on(reference.model) is None
    assert not compiled_runs_on(guarded(reference, in_order(reference), block).model).is_unguarded
