"""Ops measured one by one: what is found is kept, what crashes or differs is not used."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from remat_cli.base.errors import RuntimeFailure
from remat_cli.core.schedule.program import InputSpec
from remat_cli.runtime.measure import op_profiler
from remat_cli.runtime.measure.findings import OpFinding
from remat_cli.runtime.measure.op_profiler import (
    NOT_TAKEN,
    OpJob,
    OpRequest,
    difference_from_cpu,
    measure_call,
    measure_op,
    measure_ops,
)
from remat_cli.runtime.sessions.feeds import read_value, record_values
from remat_cli.runtime.sessions.session import SessionSettings
from tests.runtime import op_worker
from tests.runtime.models import ORIGINAL_ORDER, X, save_model, skip_model, untyped, value

QUICK = OpRequest(SessionSettings(intra_op_threads=1), runs=3, warmups=1, least_seconds=0.0)
SMALL = InputSpec("x", "float", (4, 8))


def one_op(path, op_type, spec=SMALL, **attributes):
    inputs = [value(spec.name, TensorProto.FLOAT, spec.shape)]
    return save_model(path, [helper.make_node(op_type, ["x"], ["y"], "op", **attributes)], inputs, untyped("y"))


@pytest.fixture
def call(tmp_path):
    return one_op(tmp_path / "call.onnx", "Neg", InputSpec("x", "float", (1,)))


def job(path, name, op_type="Exp"):
    return OpJob(name, str(one_op(path / f"{name}.onnx", op_type)), (SMALL,), {})


def test_every_op_is_measured_in_turn(tmp_path, call):
    seen, found = [], []
    ops = [job(tmp_path, "a"), job(tmp_path, "b", "Tanh")]
    measure_ops(ops, QUICK, call, found.append, lambda done, total: seen.append((done, total)))
    assert [finding.name for finding in found] == ["a", "b"]
    assert all(finding.time_ns > 0 and finding.noise_percent >= 0 and not finding.reason for finding in found)
    assert seen[-1] == (2, 2)
    assert seen == sorted(seen)


def test_an_op_that_the_runtime_refuses_does_not_stop_the_others(tmp_path, call):
    found = []
    broken = job(tmp_path, "broken", "NoSuchOp")
    measure_ops([broken, job(tmp_path, "a")], QUICK, call, found.append)
    assert found[0].time_ns is None
    assert "NoSuchOp" in found[0].reason
    assert str(tmp_path) not in found[0].reason
    assert "\n" not in found[0].reason
    assert found[1].time_ns is not None


def test_a_crash_costs_the_op_it_happened_in(tmp_path, call, monkeypatch):
    monkeypatch.setattr(op_profiler, "measure_ops_here", op_worker.crash_in_bad_ops)
    found, seen = [], []
    ops = [OpJob(name, "", (), {}) for name in ("a", "bad1", "bad2", "b", "bad3")]
    measure_ops(ops, QUICK, call, found.append, lambda done, total: seen.append((done, total)))
    assert [finding.name for finding in found] == ["a", "bad1", "bad2", "b", "bad3"]
    assert [finding.time_ns is None for finding in found] == [False, True, True, False, True]
    assert "crashed the provider" in found[1].reason
    assert "signal 11" in found[1].reason
    assert seen[-1] == (5, 5)


def test_a_provider_that_never_runs_anything_is_an_error(tmp_path, call, monkeypatch):
    monkeypatch.setattr(op_profiler, "measure_ops_here", op_worker.crash_at_once)
    with pytest.raises(RuntimeFailure, match="signal 11"):
        measure_ops([OpJob("a", "", (), {})], QUICK, call, pytest.fail)


def test_what_was_found_is_kept_when_the_user_interrupts(tmp_path, call):
    found: list[OpFinding] = []

    def keep(finding):
        found.append(finding)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_ops([job(tmp_path, "a"), job(tmp_path, "b")], QUICK, call, keep)
    assert found[0].name == "a"
    assert [finding.name for finding in found] in (["a"], ["a", "b"])


def outputs_of(path, change):
    feeds = {"x": read_value(SMALL, None, 0)}
    return feeds, {"y": change(np.exp(feeds["x"]))}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda y: y * np.float32(1 + 1e-6), ""),
        (lambda y: y * np.float32(1.01), "differs from the CPU by 1.0e-02 of the largest value"),
        (lambda y: y * np.float32(np.nan), "differs from the CPU in its values"),
        (lambda y: y[:2], r"output float32[2, 8] instead of float32[4, 8]"),
        (lambda y: y.astype(np.float64), r"output float64[4, 8] instead of float32[4, 8]"),
    ],
)
def test_outputs_must_be_those_of_the_cpu(tmp_path, change, reason):
    path = one_op(tmp_path / "m.onnx", "Exp")
    found = difference_from_cpu(path, *outputs_of(path, change))
    assert found == reason if not reason else reason in found


def test_an_op_that_is_random_has_no_one_answer(tmp_path):
    path = one_op(tmp_path / "m.onnx", "RandomNormalLike")
    feeds = {"x": read_value(SMALL, None, 0)}
    assert difference_from_cpu(path, feeds, {"y": np.zeros((4, 8), np.float32)}) == ""
    assert "instead of" in difference_from_cpu(path, feeds, {"y": np.zeros((4, 7), np.float32)})


def test_a_provider_that_computes_something_else_is_not_used(tmp_path, monkeypatch):
    path = one_op(tmp_path / "m.onnx", "Exp")
    honest = op_profiler.run_session
    calls = []

    def wrong_at_first(session, feeds):
        calls.append(session)
        made = honest(session, feeds)
        return {name: array + 1 for name, array in made.items()} if len(calls) == 1 else made

    monkeypatch.setattr(op_profiler, "run_session", wrong_at_first)
    finding = measure_op(OpJob("op", str(path), (SMALL,), {}), QUICK)
    assert finding.time_ns is None
    assert finding.reason.startswith("differs from the CPU by")


def test_an_op_left_to_the_cpu_is_not_supported(tmp_path, monkeypatch):
    def refuse(path, settings, options=None):
        raise RuntimeFailure(
            f"ONNX Runtime refuses {path.name}: This session contains graph nodes that are assigned to the default CPU "
            "EP, but fallback to CPU EP has been explicitly disabled by the user."
        )

    monkeypatch.setattr(op_profiler, "open_session", refuse)
    finding = measure_op(job(tmp_path, "a"), QUICK)
    assert (finding.time_ns, finding.reason) == (None, NOT_TAKEN)


def test_a_call_costs_something(call):
    assert measure_call(call, SessionSettings(intra_op_threads=1)) > 0


def test_values_of_a_run_are_recorded(tmp_path):
    path = skip_model(tmp_path / "m.onnx")
    feeds = {"x": read_value(X, None, 0)}
    files = record_values(path, feeds, ("x", "y"), tmp_path)
    assert read_value(X, files["x"], 1).tobytes() == feeds["x"].tobytes()
    assert read_value(X, files["y"], 1).shape == X.shape
    assert read_value(X, files["y"], 1).tobytes() != feeds["x"].tobytes()
    assert len(ORIGINAL_ORDER) == 7
