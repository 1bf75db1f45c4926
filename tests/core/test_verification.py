from __future__ import annotations

import msgspec
import pytest

from tests.report.samples import verification


def test_kept_promises_pass():
    assert verification().passed
    assert verification().failures == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"outputs_identical": False}, "outputs differ"),
        ({"outputs_identical": False, "outputs_close": False}, "by more than sums in another order explain"),
        ({"order_honoured": False}, "plan's order"),
        ({"measured_peak_bytes": 1}, "measured peak is 1 bytes"),
        ({"within_budget": False}, "above the budget"),
        ({"capped_run_ok": False}, "no cap"),
        ({"predicted_workspace_bytes": 100, "measured_workspace_bytes": 106}, "workspace"),
    ],
)
def test_each_broken_promise_is_named(changes, words):
    broken = msgspec.structs.replace(verification(), **changes)
    assert not broken.passed
    assert len(broken.failures) == 1
    assert words in broken.failures[0]


@pytest.mark.parametrize("measured", [95, 105, None])
def test_workspace_within_five_percent_is_close(measured):
    seen = msgspec.structs.replace(verification(), predicted_workspace_bytes=100, measured_workspace_bytes=measured)
    assert seen.passed


def test_close_outputs_are_kept():
    seen = msgspec.structs.replace(verification(), outputs_identical=False, outputs_close=True)
    assert seen.passed
    assert seen.are_outputs_kept


def test_not_measured_is_not_a_failure():
    assert msgspec.structs.replace(verification(), capped_run_ok=None).passed
