"""Verification must be able to fail: every promise is broken once."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from onnx import TensorProto, helper

from remat_cli.base.errors import RuntimeFailure
from remat_cli.core.schedule.program import InputSpec
from remat_cli.runtime.sessions.feeds import make_feeds
from remat_cli.runtime.verify.verify import verify
from remat_cli.runtime.verify.verify_request import VerifyRequest
from tests.runtime.models import GATES, MIB, ORDER, ORIGINAL_ORDER, X, save_model, skip_model, value, weight

GATE_CONSTANT_BYTES = 16
INPUT_BYTES = MIB


@pytest.fixture
def request_of(tmp_path):
    """A request for the skip model and a rewriting of it, without what takes long."""

    def make(**changes: object) -> VerifyRequest:
        skip_model(tmp_path / "original.onnx")
        request = VerifyRequest(
            reference=tmp_path / "original.onnx",
            rewritten=skip_model(tmp_path / "rewritten.onnx", again="Exp"),
            feeds=make_feeds([X], 0),
            more_feeds=(make_feeds([X], 1),),
            expected_order=ORDER,
            gate_ops=GATES,
            predicted_live_peak_bytes=6 * MIB,
            fixed_bytes=INPUT_BYTES + GATE_CONSTANT_BYTES,
            reference_fixed_bytes=INPUT_BYTES,
            outside_bytes=INPUT_BYTES,
            budget_bytes=7 * MIB + 64,
            intra_op_threads=1,
            capped=False,
            timed=False,
        )
        return dataclasses.replace(request, **changes)

    return make


@pytest.mark.parametrize("mode", ["on", "thorough"])
def test_kept_promises(request_of, mode):
    seen = []
    found = verify(
        request_of(capped=True, timed=True, predicted_overhead_percent=5.0, mode=mode),
        lambda done, total: seen.append((done, total)),
    )
    assert found.failures == ()
    assert found.predicted_peak_bytes == found.measured_peak_bytes == 7 * MIB + 16
    assert found.measured_peak_default_session_bytes == 7 * MIB + 20
    assert found.original_default_session_peak_bytes == 8 * MIB + 4
    assert found.capped_run_ok
    assert found.capped_run_bytes is not None
    assert 6 * MIB <= found.capped_run_bytes < 12 * MIB
    if mode == "thorough":
        assert found.smallest_cap_bytes is not None
        assert found.original_smallest_cap_bytes is not None
        assert 6 * MIB <= found.smallest_cap_bytes < found.original_smallest_cap_bytes < 12 * MIB
    else:
        assert found.smallest_cap_bytes is found.original_smallest_cap_bytes is None
    assert found.later_runs_block_bytes is not None
    assert found.later_runs_block_bytes >= 6 * MIB
    assert found.measured_workspace_bytes == found.predicted_workspace_bytes == 0
    assert found.predicted_overhead_percent == 5.0
    assert found.measured_overhead_percent is not None
    assert -90 < found.measured_overhead_percent < 400
    assert any("capped runs use" in note for note in found.notes)
    assert not any("proves little" in note for note in found.notes)
    assert seen == sorted(seen)
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1]


SLOW = {"products": 150}  # half a second or more
SHAPE_BYTES = 16  # of the constant that the first product is reshaped by


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"portable": True}, marks=pytest.mark.slow),
        pytest.param({"may_reassociate": True}, marks=pytest.mark.slow),
    ],
)
def test_a_slow_model_is_run_twelve_times_at_most(request_of, tmp_path, changes):
    original = skip_model(tmp_path / "slow.onnx", **SLOW)
    rewritten = skip_model(tmp_path / "slow.remat.onnx", again="Exp", **SLOW)
    pair = {"reference": original, "rewritten": rewritten, "predicted_live_peak_bytes": 6 * MIB + 4}
    pair |= {"fixed_bytes": INPUT_BYTES + GATE_CONSTANT_BYTES + SHAPE_BYTES}
    found = verify(request_of(**pair, capped=True, timed=True, budget_bytes=8 * MIB, **changes))
    assert found.capped_run_ok
    assert found.measured_overhead_percent is not None
    assert (found.later_runs_block_bytes is None) == ("portable" in changes)
    assert 10 <= found.inferences <= 12
    assert not any("proves little" in note for note in found.notes)


@pytest.mark.parametrize("portable", [False, True])
def test_fast_verification_runs_no_caps_and_no_clock(request_of, portable):
    found = verify(request_of(capped=True, timed=True, mode="fast", portable=portable))
    assert found.failures == ()
    assert found.capped_run_ok is found.measured_overhead_percent is found.later_runs_block_bytes is None
    assert found.inferences == (6 if portable else 4)


def test_weights_that_are_not_packed_count_as_planned(request_of):
    found = verify(request_of(outside_bytes=INPUT_BYTES + 100))
    assert found.measured_peak_bytes == found.predicted_peak_bytes + 100


def test_other_outputs_are_found(request_of, tmp_path):
    found = verify(request_of(rewritten=skip_model(tmp_path / "bad.onnx", again="Abs")))
    assert not found.outputs_identical
    assert "outputs differ" in found.failures[0]


def test_merged_recompute_is_found(request_of, tmp_path):
    """Without a gate the exact session keeps the order, and the default session merges the copies."""
    bare = skip_model(tmp_path / "bare.onnx", again="Exp", gated=False)
    found = verify(request_of(rewritten=bare, fixed_bytes=INPUT_BYTES))
    assert found.outputs_identical
    assert found.is_peak_exact
    assert not found.order_honoured
    assert found.measured_peak_default_session_bytes == 8 * MIB + 4
    assert not found.within_budget


def test_portable_models_are_held_to_the_exact_session_alone(request_of, tmp_path):
    bare = skip_model(tmp_path / "bare.onnx", again="Exp", gated=False)
    found = verify(request_of(rewritten=bare, fixed_bytes=INPUT_BYTES, portable=True))
    assert found.failures == ()
    assert any(note.startswith("portable:") for note in found.notes)


def test_another_order_is_found(request_of):
    found = verify(request_of(expected_order=(*ORDER[:-2], "y", "a/remat_1")))
    (failure,) = found.failures
    assert failure.startswith("the runtime did not run the ops in the plan's order: not 'y'")
    assert not verify(request_of(gate_ops=frozenset())).order_honoured


def test_one_byte_off_is_found(request_of):
    found = verify(request_of(predicted_live_peak_bytes=6 * MIB - 1))
    assert len(found.failures) == 1
    assert "not the predicted" in found.failures[0]
    assert not verify(request_of(fixed_bytes=INPUT_BYTES)).is_peak_exact  # the gate's constant forgotten


def test_over_budget_by_a_byte_is_found(request_of):
    assert verify(request_of(budget_bytes=7 * MIB + 20)).within_budget
    found = verify(request_of(budget_bytes=7 * MIB + 19))
    assert not found.within_budget
    assert not verify(request_of(workspace={"c2": MIB})).within_budget


def test_a_model_that_saves_nothing_is_not_capped(request_of):
    original = request_of().reference
    found = verify(
        request_of(
            rewritten=original,
            expected_order=ORIGINAL_ORDER,
            predicted_live_peak_bytes=7 * MIB,
            fixed_bytes=INPUT_BYTES,
            budget_bytes=8 * MIB + 4,
            capped=True,
        )
    )
    assert found.failures == ()
    assert found.capped_run_ok is None
    assert any("not lower than the original's" in note for note in found.notes)


def constant_model(path):
    nodes = [
        helper.make_node("Mul", ["x", "zero"], ["a"], name="a"),
        helper.make_node("Add", ["a", "one"], ["y"], name="y"),
    ]
    sizes = [4, 4]
    weights = [weight("zero", np.float32(0)), weight("one", np.float32(1))]
    return save_model(
        path, nodes, [value("x", TensorProto.FLOAT, sizes)], [value("y", TensorProto.FLOAT, sizes)], weights
    )


def test_outputs_that_cannot_differ_are_noted(request_of, tmp_path):
    path = constant_model(tmp_path / "constant.onnx")
    feeds = [{"x": np.full((4, 4), number, np.float32)} for number in (1, 2)]
    found = verify(
        request_of(reference=path, rewritten=path, feeds=feeds[0], more_feeds=(feeds[1],), expected_order=("a", "y"))
    )
    assert found.outputs_identical
    assert "output 'y' has the same value everywhere: comparing it proves little" in found.notes
    assert "the outputs do not depend on the inputs: comparing them proves little" in found.notes


def test_outputs_that_are_not_a_number_can_be_equal(request_of, tmp_path):
    path = skip_model(tmp_path / "m.onnx", again="Exp")
    feeds = {"x": np.full((1, MIB // 4), np.nan, np.float32)}
    assert verify(request_of(rewritten=path, feeds=feeds)).outputs_identical


def scaled_model(path, factor):
    sizes = [1, 64]
    node = helper.make_node("Mul", ["x", "factor"], ["y"], name="y")
    kinds = (value("x", TensorProto.FLOAT, sizes), value("y", TensorProto.FLOAT, sizes))
    return save_model(path, [node], [kinds[0]], [kinds[1]], [weight("factor", np.float32(factor))])


@pytest.fixture
def scaled(request_of, tmp_path):
    """Verification of a model whose outputs are those of the original times a factor."""

    def run(factor: float, **changes: object):
        reference, rewritten = (scaled_model(tmp_path / f"{f}.onnx", f) for f in (1.0, factor))
        feeds = [make_feeds([InputSpec("x", "float", (1, 64))], seed) for seed in (0, 1)]
        models = {"reference": reference, "rewritten": rewritten, "expected_order": ("y",)}
        return verify(request_of(**models, feeds=feeds[0], more_feeds=(feeds[1],), **changes))

    return run


@pytest.mark.parametrize("portable", [False, True])
def test_outputs_within_the_tolerance_are_kept_only_where_that_is_allowed(scaled, portable):
    found = scaled(1.00001, may_reassociate=True, portable=portable)
    assert not found.outputs_identical
    assert found.outputs_close
    assert found.outputs_max_relative_error == pytest.approx(1e-5, rel=0.2)
    assert not any("outputs" in line for line in found.failures)
    found = scaled(1.00001, portable=portable)
    assert found.outputs_close is found.outputs_max_relative_error is None
    assert "the outputs differ from the original's" in found.failures


def test_outputs_beyond_the_tolerance_are_found(scaled):
    found = scaled(1.001, may_reassociate=True)
    assert found.outputs_close is False
    assert found.outputs_max_relative_error == pytest.approx(1e-3, rel=0.2)
    assert "the outputs differ from the original's by more than sums in another order explain" in found.failures


def test_identical_outputs_are_not_compared_again(scaled):
    found = scaled(1.0, may_reassociate=True)
    assert found.outputs_identical
    assert found.outputs_close is found.outputs_max_relative_error is None


def test_model_that_the_runtime_refuses_is_one_line(request_of, tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    with pytest.raises(RuntimeFailure, match=r"^ONNX Runtime refuses bad\.onnx"):
        verify(request_of(rewritten=tmp_path / "bad.onnx"))
