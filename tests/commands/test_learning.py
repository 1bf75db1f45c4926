"""Verification as a loop: what runs show is learnt, planned with, kept for the next model, and told."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper

from remat_cli.base.progress import silent
from remat_cli.commands.compile import compile_model
from remat_cli.compiling.one_model import settle
from remat_cli.onnx_io.read import op_facts
from remat_cli.runtime.measure import profilers
from remat_cli.settings.settings import load_settings
from tests.report.samples import verification

ROOT = Path(__file__).resolve().parents[2]
EXTRA_BYTES = 700


@pytest.fixture
def looks(monkeypatch):
    """Verifications as they are made, with (budget, planned bytes); `over` says by how much each is over it."""
    seen, over = [], []

    def look(run, whole, work, capped, progress):
        budget_bytes, planned_bytes = run.plan.request.budget_bytes, run.plan.promise.peak_bytes
        extra = over[min(len(seen), len(over) - 1)]
        seen.append((budget_bytes, planned_bytes))
        peak_bytes = budget_bytes + extra if extra else planned_bytes
        found = msgspec.structs.replace(
            verification(),
            within_budget=not extra,
            predicted_peak_bytes=planned_bytes,
            measured_peak_bytes=planned_bytes,
            measured_peak_default_session_bytes=peak_bytes,
        )
        return found, ()

    monkeypatch.setattr(settle, "verify_model", look)
    return seen, over


def compiled(tmp_path, model, budget):
    path = shutil.copy(ROOT / "sample_models" / f"{model}.onnx", tmp_path / "net.onnx")
    words = {"budget": budget, "split": "off", "time_limit": "1s", "cache_dir": str(tmp_path / "cache"), "force": True}
    return compile_model(Path(path), load_settings(words), silent())


def test_a_plan_leaves_room_and_is_verified_again(tmp_path, looks):
    seen, over = looks
    over += [EXTRA_BYTES, 0]
    report = compiled(tmp_path, "unet", "70%")
    (budget_bytes, _), (same_budget_bytes, peak_bytes) = seen
    assert EXTRA_BYTES <= report.verification.room_bytes < 0.02 * budget_bytes
    assert budget_bytes == same_budget_bytes == report.solution.budget_bytes
    assert peak_bytes <= budget_bytes - EXTRA_BYTES
    assert report.verification.rounds_of_learning == 1
    assert report.exit_code == 0


def test_the_least_budget_is_what_sessions_need(tmp_path, looks):
    seen, over = looks
    over += [EXTRA_BYTES, 0]
    report = compiled(tmp_path, "transformer", "min")
    (budget_bytes, peak_bytes), (larger_bytes, _) = seen
    assert peak_bytes <= budget_bytes < peak_bytes + 64  # small buffers that a default session keeps
    assert larger_bytes == budget_bytes + EXTRA_BYTES == report.solution.budget_bytes
    assert report.verification.room_bytes == EXTRA_BYTES
    props = {entry.key: entry.value for entry in onnx.load(report.output).metadata_props}
    assert int(props["remat.budget_bytes"]) == larger_bytes


def test_memory_that_never_comes_right_is_no_plan_and_no_broken_promise(tmp_path, looks):
    _, over = looks
    over += [2**30]
    report = compiled(tmp_path, "unet", "80%")
    assert report.exit_code == 4
    assert report.output is None
    assert not (tmp_path / "net.remat.onnx").exists()


def chain(path):
    names = ["x", "a", "b", "c", "y"]
    nodes = [
        helper.make_node(op, [read], [made], made)
        for op, read, made in zip(("Exp", "Neg", "Exp", "ReduceMax"), names, names[1:], strict=False)
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [2**16]), ("y", [1]))
    ]
    graph = helper.make_graph(nodes, "chain", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_wrong_rule_is_found_set_right_and_kept(tmp_path, monkeypatch):
    monkeypatch.setitem(op_facts.FACTS, ("", "Exp"), op_facts.IN_PLACE)  # the runtime needs a new buffer for it
    monkeypatch.setitem(op_facts.FACTS, ("", "Neg"), op_facts.IN_PLACE)
    path = chain(tmp_path / "net.onnx")

    def verified():
        words = {"budget": "100%", "cache_dir": str(tmp_path / "cache"), "force": True}
        report = compile_model(path, load_settings(words), silent())
        assert report.exit_code == 0
        return report.verification

    first = verified()
    assert first.rounds_of_learning >= 1
    assert first.first_predicted_peak_bytes < first.predicted_peak_bytes == first.measured_peak_bytes
    assert {each.cause for each in first.learnt} == {"an in-place share was not taken"}
    assert all(each.is_corrected and each.op_type in ("Exp", "Neg") for each in first.learnt)
    again = verified()
    assert (again.learnt, again.rounds_of_learning) == ((), 0)


def upsampled(path):
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], "a"),
        helper.make_node("ConvTranspose", ["a", "w"], ["b"], "b", strides=[2, 2]),
        helper.make_node("ReduceMax", ["b"], ["y"], "y", keepdims=1),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 8, 32, 32]), ("y", [1, 1, 1, 1]))
    ]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [8, 4, 3, 3], [0.01] * (8 * 4 * 9))
    graph = helper.make_graph(nodes, "upsampled", ports[:1], ports[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_workspace_that_the_profile_did_not_see_is_planned_with(tmp_path, monkeypatch):
    run_fresh = profilers.run_fresh

    def without_workspace(*given):
        measured = run_fresh(*given)
        costs = tuple(msgspec.structs.replace(cost, workspace_bytes=0) for cost in measured.ops)
        return msgspec.structs.replace(measured, ops=costs)

    monkeypatch.setattr(profilers, "run_fresh", without_workspace)  # as where the values of inputs decide
    words = {"budget": "100%", "split": "off", "cache_dir": str(tmp_path / "cache")}
    report = compile_model(upsampled(tmp_path / "net.onnx"), load_settings(words), silent())
    seen = report.verification
    assert {each.cause for each in seen.learnt} == {"workspace"}
    assert report.exit_code == 0
    assert seen.predicted_workspace_bytes == seen.measured_workspace_bytes > 0
    assert report.solution.budget_bytes == seen.original_default_session_peak_bytes
