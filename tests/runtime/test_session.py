from __future__ import annotations

import os
import stat
import tempfile

import numpy as np
import pytest
from onnx import TensorProto, helper

from remat_cli.base.errors import MissingDependency, RuntimeFailure
from remat_cli.core.schedule.graph import TensorType
from remat_cli.runtime.observe._events import ProfiledRun, ProfileEvent, read_runs
from remat_cli.runtime.sessions import _ort
from remat_cli.runtime.sessions._ort import pack, unpack
from remat_cli.runtime.sessions.feeds import make_feeds
from remat_cli.runtime.sessions.session import SessionSettings, observation, open_session, run_profiled, runtime_version
from tests.runtime.models import (
    GATES,
    LENGTH,
    MIB,
    ORDER,
    ORIGINAL_ORDER,
    X,
    save_model,
    skip_model,
    untyped,
    value,
    weight,
)

EXACT, DEFAULT = SessionSettings(exact=True), SessionSettings(exact=False)


@pytest.fixture
def feeds():
    return make_feeds([X], 0)


def test_observation_of_a_worked_example(tmp_path, feeds):
    seen = run_profiled(skip_model(tmp_path / "m.onnx"), feeds, EXACT)
    assert seen.executed == ORIGINAL_ORDER
    # a 1 | a + r | a + r + c0 | a + c0 + c1 | a + c1 + c2 | a + c2 + s | a + s + y
    assert seen.live_bytes == (MIB, MIB + 4, 2 * MIB + 4, 4 * MIB, 7 * MIB, 5 * MIB + 4, 2 * MIB + 4)
    assert seen.peak_live_bytes == 7 * MIB
    assert seen.op_live["c2"] == 7 * MIB
    assert seen.baseline_bytes == 0
    assert seen.in_use_peak_bytes >= 7 * MIB
    assert seen.arena_held_bytes >= seen.in_use_peak_bytes
    assert seen.types["c2"] == (TensorType("float", (4, LENGTH)),)
    assert seen.outputs["y"].shape == (1, LENGTH)
    assert seen.runtime_version == runtime_version()
    assert seen.nested_bytes == {}


def test_recomputed_model_keeps_order_and_peak_in_both_kinds_of_session(tmp_path, feeds):
    path = skip_model(tmp_path / "m.onnx", again="Exp")
    for settings, extra_bytes in ((EXACT, 0), (DEFAULT, 4)):  # by default the buffer of r is kept, for s to reuse
        seen = run_profiled(path, feeds, settings)
        assert tuple(op for op in seen.executed if op not in GATES) == ORDER
        assert seen.peak_live_bytes == 6 * MIB + extra_bytes
        assert seen.baseline_bytes == 16  # the gate's constant, two int64


def test_workspace_adds_to_the_op_that_needs_it(tmp_path, feeds):
    seen = run_profiled(skip_model(tmp_path / "m.onnx"), feeds, EXACT)
    assert seen.peak_with_workspace({"y": MIB}) == 7 * MIB
    assert seen.peak_with_workspace({"c2": MIB}) == 8 * MIB


def control_flow_model(path):
    def branch(name, op):
        return helper.make_graph(
            [
                helper.make_node(op, ["x"], [f"{name}0"], name=name),
                helper.make_node("Neg", [f"{name}0"], [name], name=name + "neg"),
            ],
            name,
            [],
            [value(name, TensorProto.FLOAT, [64])],
        )

    nodes = [
        helper.make_node("Exp", ["x"], ["e"], name="e"),
        helper.make_node("If", ["c"], ["i"], name="if", then_branch=branch("t", "Exp"), else_branch=branch("f", "Abs")),
        helper.make_node("Dropout", ["i"], ["d", ""], name="d"),
        helper.make_node("RNN", ["seq", "w", "u"], ["", "h"], name="rnn", hidden_size=2),
        helper.make_node("Add", ["e", "d"], ["y"], name="y"),
    ]
    inputs = [
        value("x", TensorProto.FLOAT, [64]),
        value("c", TensorProto.BOOL, []),
        value("seq", TensorProto.FLOAT, [3, 1, 2]),
    ]
    weights = [weight("w", np.ones((1, 2, 2), np.float32)), weight("u", np.ones((1, 2, 2), np.float32))]
    return save_model(path, nodes, inputs, untyped("y", "h"), weights)


@pytest.mark.parametrize("taken", [True, False])
def test_ops_of_a_taken_branch_belong_to_the_if(tmp_path, taken):
    feeds = {"x": np.ones(64, np.float32), "c": np.array(taken), "seq": np.ones((3, 1, 2), np.float32)}
    seen = run_profiled(control_flow_model(tmp_path / "m.onnx"), feeds, EXACT)
    assert seen.executed == ("e", "if", "d", "rnn", "y")
    assert set(seen.types) == set(seen.executed)
    assert seen.nested_bytes == {"if": 256}  # the branch held two tensors, the If its output


def test_omitted_outputs_have_no_type(tmp_path):
    feeds = {"x": np.ones(64, np.float32), "c": np.array(True), "seq": np.ones((3, 1, 2), np.float32)}
    seen = run_profiled(control_flow_model(tmp_path / "m.onnx"), feeds, EXACT)
    assert seen.types["d"] == (TensorType("float", (64,)),)
    assert seen.types["rnn"] == (TensorType("float", (1, 1, 2)),)


@pytest.mark.parametrize(
    ("dtype", "element"),
    [
        ("bfloat16", TensorProto.BFLOAT16),
        ("float8e4m3fn", TensorProto.FLOAT8E4M3FN),
        ("float16", TensorProto.FLOAT16),
        ("int8", TensorProto.INT8),
        ("bool", TensorProto.BOOL),
        ("string", TensorProto.STRING),
    ],
)
def test_every_element_type_goes_in_and_out(tmp_path, dtype, element):
    node = helper.make_node("Identity", ["x"], ["y"], name="same")
    path = save_model(tmp_path / "m.onnx", [node], [value("x", element, [2, 3])], [value("y", element, [2, 3])])
    feeds = make_feeds([type(X)("x", dtype, (2, 3))], 3)
    packed = pack("y", run_profiled(path, feeds, EXACT).outputs["y"])
    assert packed == pack("y", feeds["x"])
    assert pack("y", unpack(packed)) == packed


def test_nothing_is_left_on_disk_and_the_folder_may_be_read_only(tmp_path, feeds, monkeypatch):
    path = skip_model(tmp_path / "m.onnx")
    scratch, frozen = tmp_path / "scratch", tmp_path / "frozen"
    scratch.mkdir()
    frozen.mkdir()
    frozen.chmod(stat.S_IRUSR | stat.S_IXUSR)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.chdir(frozen)
    run_profiled(path, feeds, EXACT)
    with pytest.raises(RuntimeFailure):
        run_profiled(path, {"x": np.zeros((2, 2), np.float32)}, EXACT)
    assert os.listdir(scratch) == []
    assert os.listdir(frozen) == []


def test_refused_model_is_one_line(tmp_path, capfd):
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(RuntimeFailure, match=r"^ONNX Runtime refuses bad\.onnx: .*Protobuf parsing failed") as caught:
        run_profiled(path, {}, EXACT)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_wrong_feeds_are_one_line(tmp_path):
    path = skip_model(tmp_path / "m.onnx")
    with pytest.raises(RuntimeFailure, match=r"fails to run m\.onnx: .*\['x'\]"):
        run_profiled(path, {}, EXACT)
    with pytest.raises(RuntimeFailure, match=r"fails to run m\.onnx: Invalid rank for input: x"):
        run_profiled(path, {"x": np.zeros(3, np.float32)}, EXACT)


def test_two_ops_of_one_name_are_refused():
    event = ProfileEvent("n", "Exp", 0, 1, 4, 4, 256, 256, 256, ())
    with pytest.raises(RuntimeFailure, match=r"m\.onnx: two ops are named 'n'"):
        observation(ProfiledRun((event, event), 2), {}, "m.onnx")


def test_profile_without_memory_counters_is_refused(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text('[{"cat": "Node", "name": "n_kernel_time", "ts": 1, "dur": 2, "args": {"op_name": "Exp"}}]')
    path.write_text(path.read_text()[:-1] + ', {"cat": "Session", "name": "model_run", "dur": 2}]')
    (run,) = read_runs(path)
    assert not run.events[0].has_counters
    with pytest.raises(RuntimeFailure, match=r"op 'n' has no 'mem_bytes_requested_in_use'.* install onnxruntime"):
        observation(run, {}, "m.onnx")
    path.write_text("[{")
    with pytest.raises(RuntimeFailure, match="profile cannot be read"):
        read_runs(path)


def test_missing_custom_operators_are_one_line(tmp_path):
    path = skip_model(tmp_path / "m.onnx")
    with pytest.raises(RuntimeFailure, match=r"custom operators /nowhere\.so do not load"):
        open_session(path, SessionSettings(custom_ops=("/nowhere.so",)))


def test_missing_runtime_names_the_next_step(monkeypatch):
    def absent(name):
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr(_ort.importlib, "import_module", absent)
    with pytest.raises(MissingDependency, match=r'pip install "remat_cli\[cpu\]"'):
        _ort.import_ort()
